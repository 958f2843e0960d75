"""Padding of single columns, without a batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from fastcollate._fastcollate import RowSpans, are_computed, arrow_chunks
from fastcollate.common.arguments import check_bool, check_choice, is_sequence, suggests_names
from fastcollate.common.arrays import (
    check_dtype_name,
    describe,
    dtype_name,
    is_array,
    is_tensor,
)
from fastcollate.common.text import show
from fastcollate.ops.trailing import with_equal_trailing
from fastcollate.ops.writing import (
    AS_LONGEST,
    SIDES,
    is_computed,
    pad_on_their_device,
    pad_rows,
)
from fastcollate.rows.column_input import EXPECTED, ragged
from fastcollate.rows.columns import Ragged
from fastcollate.rows.table_columns import is_column, read_column

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from fastcollate.plan.dtypes import ArrayType
    from fastcollate.rows.fields import Rows

Side = Literal["right", "left"]

MAX_DIMENSIONS = 64
"""Largest number of dimensions of NumPy and torch arrays."""


@overload
def pad(
    rows: Rows,
    side: Side = "right",
    fill: float = 0,
    *,
    pad_to: int | None = None,
    multiple_of: int = 1,
    pad_trailing: bool = False,
    dtype: Any = None,
    array_type: Literal["torch"] = "torch",
) -> torch.Tensor: ...
@overload
def pad(
    rows: Rows,
    side: Side = "right",
    fill: float = 0,
    *,
    pad_to: int | None = None,
    multiple_of: int = 1,
    pad_trailing: bool = False,
    dtype: Any = None,
    array_type: Literal["numpy"],
) -> NDArray[Any]: ...
@suggests_names
def pad(
    rows: Rows,
    side: Side = "right",
    fill: float = 0,
    *,
    pad_to: int | None = None,
    multiple_of: int = 1,
    pad_trailing: bool = False,
    dtype: Any = None,
    array_type: ArrayType = "torch",
) -> Any:
    r"""Pad rows of different lengths to one array, like an output of a batch.

    Parameters
    ----------
    rows
        Rows in any form that :func:`build_batch` takes: lists, arrays or tensors of
        (tokens, \*trailing), one padded or nested block of them, Arrow, or a :class:`Ragged`.
    side
        The side of padding.
    fill
        The value of padding, which must fit `dtype`.
    pad_to
        Width of the result; the length of the longest row if None. A longer row is an error.
    multiple_of
        Round the width up to a multiple.
    pad_trailing
        True: trailing dimensions of rows may differ; each is padded at its end, to the largest.
    dtype
        One of bool, uint8, int16, int32, int64, float16, bfloat16, float32 and float64, as a name,
        NumPy dtype or torch dtype: integers that do not fit are errors, floats are rounded. If
        None, arrays, tensors and Arrow keep their own. Lists follow their first number: bool,
        int64, or float32; a later number that does not fit is an error, as are arrays of different
        dtypes if the first is a float. Numbers beyond the range of a float dtype become infinite,
        as in NumPy.
    array_type
        ``"torch"`` or ``"numpy"``.

    Returns
    -------
    Tensor or array
        (rows, width, \*trailing). Its memory comes from the default pool.

    Raises
    ------
    TypeError, ValueError
        An item that is not a row of numbers, rows of different trailing shapes (without
        `pad_trailing`) or numbers of dimensions, a row longer than `pad_to`, or a value that does
        not fit. The message names the row and the position.

    Notes
    -----
    Tensors that require a gradient, or are on another device, are padded by torch there, and
    gradients flow through; with ``array_type="numpy"`` they are copied to the host.

    For tensors the result equals ``torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)``.

    Examples
    --------
    >>> fc.pad([[5, 6], [], [7]], side="left", multiple_of=4, array_type="numpy")
    array([[0, 0, 5, 6],
           [0, 0, 0, 0],
           [0, 0, 0, 7]])
    """
    check_choice("array_type", array_type, ("torch", "numpy"))
    if isinstance(side, (int, float)):
        raise TypeError(f"side is {show(side)}; pass the padding value by name: fill={side}")
    check_choice("side", side, SIDES)
    check_bool("pad_trailing", pad_trailing)
    layout = AS_LONGEST[side]
    if pad_to is not None or multiple_of != 1:
        layout = SIDES[side](pad_to=pad_to, multiple_of=multiple_of)
    rows, found = _with_dtype(rows, dtype)
    name = check_dtype_name(found, "rows")
    if pad_trailing and isinstance(rows, (list, tuple)):
        rows = with_equal_trailing(rows, partial(pad, fill=fill, dtype=name, array_type=array_type))
    if array_type == "torch" and _are_computed(rows):
        try:
            column = rows if isinstance(rows, Ragged) else ragged(rows, dtype)
        except (TypeError, ValueError) as error:
            raise type(error)(f"rows cannot be read: {error}") from error
        return pad_on_their_device(column, name, layout, fill)
    try:
        return pad_rows(rows, name, layout, fill, array_type)
    except TypeError as error:
        if dtype is None and name == "int64" and _hold_float(rows):
            raise TypeError(f"{error} as the first number is, or dtype='float32'") from error
        raise


def _with_dtype(rows: Any, dtype: Any) -> tuple[Any, Any]:
    """Return rows in a form that the core reads, and a dtype: the rows' own if None is given."""
    if isinstance(rows, (list, tuple)):
        return rows, _common_dtype(rows) if dtype is None else dtype
    if isinstance(rows, Ragged):
        return rows, dtype_name(rows.dtype) if dtype is None else dtype
    if is_column(rows):
        rows = read_column(rows)
    if is_array(rows) and not (isinstance(rows, np.ndarray) and rows.dtype.kind == "O"):
        return rows, dtype_name(rows.dtype) if dtype is None else dtype
    if not isinstance(rows, (list, tuple)):
        if (chunks := arrow_chunks(rows, "rows")) is not None:
            arrays = [(values, at[:-1], np.diff(at)) for values, at in chunks]
            if dtype is None:
                dtype = dtype_name(chunks[0][0].dtype) if chunks else "int64"
            return RowSpans(arrays), dtype
        if not is_sequence(rows):
            raise TypeError(f"rows is {describe(rows)}; {EXPECTED}")
        rows = list(rows)
    return rows, _common_dtype(rows) if dtype is None else dtype


def _common_dtype(rows: Sequence[Any]) -> str:
    """Return the dtype of the first array or number among rows; int64 if there is none.

    If the first is a float, all arrays need the same dtype: conversion would round their values.
    """
    for first, row in enumerate(rows):
        if (name := _first_dtype(row, first)) is not None:
            break
    else:
        return "int64"
    if "float" in name and not _are_of_one_kind(rows):
        for index, row in enumerate(rows):
            is_nested = isinstance(row, (list, tuple)) and len(row) > 0 and hasattr(row[0], "dtype")
            for item in row if is_nested else (row,):
                found = getattr(item, "dtype", None)
                if found is not None and is_array(item) and dtype_name(found) != name:
                    raise TypeError(
                        f"rows[{index}] holds {dtype_name(found)}, but rows[{first}] {name}; "
                        "pass dtype to convert them"
                    )
    return name


def _are_of_one_kind(rows: Sequence[Any]) -> bool:
    """Return True if rows are quickly seen to be lists of plain numbers, or arrays of one dtype."""
    if set(map(type, rows)) <= {list, tuple}:
        return set(map(type, map(itemgetter(0), filter(None, rows)))) <= {bool, int, float}
    kinds = {getattr(row, "dtype", None) for row in rows}
    return None not in kinds and len(kinds) == 1


def _first_dtype(row: Any, index: int) -> str | None:
    """Return the dtype of the first array or number of a row; None if there is none."""
    item, depth = row, 0
    while isinstance(item, (list, tuple)) and len(item) > 0:
        item, depth = item[0], depth + 1
        if depth == MAX_DIMENSIONS:
            raise ValueError(
                f"rows[{index}] is nested in more than {MAX_DIMENSIONS} dimensions; pass numbers, "
                "or lists of them"
            )
    if (dtype := getattr(item, "dtype", None)) is not None:
        return dtype_name(dtype)
    for kind, name in ((bool, "bool"), (int, "int64"), (float, "float32")):
        if isinstance(item, kind):
            return name
    return None


def _hold_float(rows: Any) -> bool:
    """Return True if any of the rows holds a float."""
    lists = (row for row in rows if isinstance(row, (list, tuple)))
    return any(isinstance(item, (float, np.floating)) for row in lists for item in row)


def _are_computed(rows: Any) -> bool:
    """Return True if rows are tensors that torch has to pad."""
    if not isinstance(rows, (list, tuple)):
        values = rows.values if isinstance(rows, Ragged) else rows
        return is_tensor(values) and is_computed(values)
    return are_computed(rows)
