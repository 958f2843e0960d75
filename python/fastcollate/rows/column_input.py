"""Ragged columns from any container of rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np

from fastcollate._fastcollate import arrow_chunks, check_range
from fastcollate.common.arguments import is_sequence, suggests_names
from fastcollate.common.arrays import (
    NUMBERS,
    check_array,
    concatenate,
    convert,
    describe,
    dtype_like,
    dtype_name,
    first_misfit,
    is_tensor,
    misfit,
    offsets_of,
    read_array,
    row_and_token,
)
from fastcollate.rows.columns import Ragged, jagged_rows
from fastcollate.rows.table_columns import is_column, read_column

_KIND = attrgetter("dtype", "layout", "is_nested", "device", "ndim")
"""Attributes that tensors must share to be concatenated without conversion."""

EXPECTED = (
    "pass rows ([x] for a single row x): lists, arrays or tensors, an Arrow array of lists, or a "
    "nested tensor"
)
A_ROW = "pass one list or array of numbers per row, as in [[1, 2, 3]] for a single one"


@suggests_names
def ragged(x: Any, dtype: Any = None) -> Ragged:
    r"""Make a :class:`Ragged` of rows, without a copy if their memory is contiguous.

    Parameters
    ----------
    x
        One of

        * a list, tuple or other sequence of rows. A row is a list or tuple of numbers, nested for
          trailing dimensions, or an array or tensor of (tokens, \*trailing). Either all rows are
          tensors, or none is. Rows are copied into one array, tensors on their device.
        * any object with Arrow's ``__arrow_c_array__`` or ``__arrow_c_stream__`` (pyarrow, Polars,
          DuckDB, arro3): lists of numbers, large, fixed-size or views, or fixed-size lists in lists
          for trailing dimensions; or a table of one such column; or a ``Column`` of a dataset of
          the library ``datasets``; or a ``Series`` of pandas. An array becomes a read-only view;
          several chunks are copied into one, as are booleans, which Arrow packs.
        * a nested tensor: a view of a jagged one, a copy of a strided one.
        * a dense array or tensor, (rows, width, \*trailing): a view if it is contiguous.
          :func:`fastcollate.unpad` removes the padding of padded rows.
        * a ``Ragged``, which is returned as it is.
    dtype
        The dtype to convert to, as a name, NumPy dtype or torch dtype. If None, lists get NumPy's
        dtype (int64, float64 or bool; float64 if there are no numbers), and other rows keep theirs.

    Returns
    -------
    Ragged
        Over a tensor if `x` is a tensor or has tensors as rows, else over a NumPy array.

    Raises
    ------
    TypeError, ValueError
        If `x` holds other values, a null, or rows of different trailing shapes or dtypes, or if a
        value does not fit `dtype`. Floats are rounded, but never to integers. The message names the
        row and the position.

    Examples
    --------
    >>> fc.ragged([[5, 6], [], [7]]).offsets
    array([0, 2, 2, 3])
    """
    if isinstance(x, Ragged):
        return _convert(x, dtype)
    if is_tensor(x):
        return _convert(_of_nested(x) if x.is_nested else _of_dense(x), dtype)
    if isinstance(x, np.ndarray) and not (x.ndim == 1 and x.dtype.kind == "O"):
        return _convert(_of_dense(x), dtype)
    if is_column(x):
        x = read_column(x)
    if not isinstance(x, (list, tuple)):
        if (chunks := arrow_chunks(x, "x")) is not None:
            parts = [Ragged(values, offsets) for values, offsets in chunks]
            filled = [part for part in parts if len(part)] or parts[:1]
            column = filled[0] if len(filled) == 1 else Ragged.concat(filled)
            return _convert(column, dtype)
        if not is_sequence(x):
            raise TypeError(f"x is {describe(x)}; {EXPECTED}")
        check_range(x)
    x = list(x)
    if all(isinstance(row, (list, tuple)) for row in x):
        return _convert(_of_lists(x), dtype)
    return _convert(_of_arrays(x, dtype), dtype)


def _convert(column: Ragged, dtype: Any, first_row: int = 0) -> Ragged:
    """Convert a column, which is `x` from `first_row` on; errors name the value."""
    if dtype is None:
        return column
    target = dtype_like(column.values, dtype)
    if column.dtype == target:
        return column
    values = column.values
    if (index := first_misfit(values, target)) is not None:
        at = np.unravel_index(index, tuple(values.shape))
        place = f"x{_subscript(column, at, first_row)}"
        raise misfit(place, values[at].item(), dtype_name(target))
    return Ragged(convert(values, target), column.offsets)


def _subscript(column: Ragged, at: Sequence[Any], first_row: int = 0) -> str:
    """Return the subscript of a value: row, position, and indices of trailing dimensions."""
    token, *within = map(int, at)
    row, position = row_and_token(column.offsets, token)
    place = (first_row + row, position, *within)
    return "".join(f"[{index}]" for index in place)


# Dense and nested


def _of_dense(x: Any) -> Ragged:
    x = check_dense(x)
    rows, width, *trailing = x.shape
    return Ragged(x.reshape(rows * width, *trailing), np.arange(rows + 1, dtype=np.int64) * width)


def check_dense(x: Any) -> Any:
    """Return an array or tensor of rows as it is, subclasses of ndarray as ndarray."""
    x = check_array("x", x)
    if x.ndim < 2:
        raise ValueError(
            f"x has shape {tuple(x.shape)}; pass an array of shape (rows, tokens, ...), or a list "
            "of rows"
        )
    return x


def _of_nested(x: Any) -> Ragged:
    import torch

    if x.layout is not torch.jagged:
        rows = list(x.unbind())
        if not rows:
            return Ragged(torch.empty(0, dtype=x.dtype, device=x.device), [0])
        return _of_arrays(rows)
    if not isinstance(x.shape[1], torch.SymInt):
        raise ValueError("x is not jagged in dimension 1; transpose it so that it is")
    offsets, lengths = jagged_rows("x", x)
    if x.lengths() is not None and len(lengths) > 0:
        starts = offsets[:-1]
        ends = (starts + lengths).tolist()
        return _of_arrays([x.values()[i:j] for i, j in zip(starts.tolist(), ends, strict=True)])
    # In torch, offsets may leave out values at both ends.
    return Ragged(x.values()[offsets[0] : offsets[-1]], offsets - offsets[0])


# Sequences of rows


def _of_lists(rows: Sequence[Sequence[Any]]) -> Ragged:
    """Let NumPy read all items at once; only if it fails, look for the invalid row."""
    # Subclasses may override iteration, and so have another length.
    rows = [row if type(row) in (list, tuple) else list(row) for row in rows]
    lengths = np.fromiter(map(len, rows), np.int64)
    items = list(chain.from_iterable(rows))
    try:
        values = read_array(items)
    except ValueError as error:  # trailing shapes differ
        _blame(rows)
        raise ValueError(f"x cannot be read ({error}); {EXPECTED}") from error
    if values.dtype.kind not in NUMBERS:
        _blame(rows)
        raise TypeError(f"x has items of dtype {values.dtype}; {EXPECTED}")
    column = Ragged(values, offsets_of(lengths))
    if values.dtype.kind == "f" and (abs(values) >= 2.0**63).any():
        _refuse_rounded(column, items)
    return column


def _refuse_rounded(column: Ragged, items: Sequence[Any]) -> None:
    """Refuse integers that NumPy converted to floats, as no integer dtype holds all of them."""
    exact = read_array(items, object)
    if not any(issubclass(kind, (float, np.floating)) for kind in set(map(type, exact.flat))):
        index = (exact >= 2**63).reshape(-1).tolist().index(True)
        place = _subscript(column, np.unravel_index(index, exact.shape))
        raise _beyond_int64(f"x{place}", exact.flat[index])


def _beyond_int64(place: str, number: int) -> ValueError:
    return misfit(place, number, "int64", "floats, or integers of less than 64 bits")


def _blame(rows: Sequence[Sequence[Any]]) -> None:
    """Raise for the first row that holds no numbers or differs in trailing shape."""
    first: tuple[int, tuple[int, ...]] | None = None
    for index, row in enumerate(rows):
        for position, item in enumerate(row):
            try:
                value = read_array(item)
            except ValueError as error:
                raise ValueError(
                    f"x[{index}][{position}] is {describe(item)}, which holds lists of different "
                    "lengths; pass tokens of one shape"
                ) from error
            if isinstance(item, int) and value.dtype.kind == "O":
                raise _beyond_int64(f"x[{index}][{position}]", item)
            if value.dtype.kind not in NUMBERS:
                raise TypeError(f"x[{index}][{position}] is {describe(item)}; pass numbers")
            first = first or (index, value.shape)
            if value.shape != first[1]:
                raise _other_shape(index, value.shape, *first)


def _other_shape(
    row: int, shape: tuple[int, ...], first: int, expected: tuple[int, ...]
) -> ValueError:
    return ValueError(
        f"x[{row}] has tokens of shape {shape}, but x[{first}] of {expected}; "
        "pass tokens of one shape"
    )


def _of_arrays(rows: Sequence[Any], dtype: Any = None) -> Ragged:
    if dtype is None and _are_alike(rows):
        return Ragged(concatenate(rows), offsets_of([row.shape[0] for row in rows]))
    arrays = as_arrays(rows)
    # An empty list has neither dtype nor trailing shape.
    told = [i for i, row in enumerate(rows) if not (isinstance(row, (list, tuple)) and not row)]
    first = told[0]
    for index in told[1:]:
        array, expected = arrays[index], arrays[first]
        if array.shape[1:] != expected.shape[1:]:
            raise _other_shape(index, tuple(array.shape[1:]), first, tuple(expected.shape[1:]))
        if array.dtype != expected.dtype and dtype is None:
            raise TypeError(
                f"x[{index}] holds {dtype_name(array.dtype)}, but x[{first}] "
                f"{dtype_name(expected.dtype)}; pass dtype to convert them"
            )
    if len({arrays[index].dtype for index in told}) > 1:
        for index in told:
            row = Ragged(arrays[index], [0, len(arrays[index])])
            arrays[index] = _convert(row, dtype, index).values
    offsets = offsets_of(list(map(len, arrays)))
    return Ragged(concatenate([arrays[index] for index in told]), offsets)


def _are_alike(rows: Sequence[Any]) -> bool:
    """Return True for dense tensors that can be concatenated without conversion."""
    if not is_tensor(rows[0]) or rows[0].ndim == 0 or not all(map(is_tensor, rows)):
        return False
    check_array("x[0]", rows[0])
    if len(set(map(_KIND, rows))) > 1:
        return False
    return rows[0].ndim == 1 or len({row.shape[1:] for row in rows}) == 1


def as_arrays(rows: Sequence[Any]) -> list[Any]:
    """Return rows as arrays, or all as tensors."""
    arrays = []
    for index, row in enumerate(rows):
        place = f"x[{index}]"
        if is_tensor(row) != is_tensor(rows[0]):
            raise TypeError(
                f"{place} is {describe(row)}, but x[0] is {describe(rows[0])}; "
                "pass all rows as tensors, or none"
            )
        try:
            array = row if is_tensor(row) or isinstance(row, np.ndarray) else read_array(row)
        except ValueError as error:
            raise ValueError(f"{place} cannot be read ({error}); {A_ROW}") from error
        if array.ndim == 0 or (array is not row and array.dtype.kind not in NUMBERS):
            raise TypeError(f"{place} is {describe(row)}; {A_ROW}")
        arrays.append(check_array(place, array))
    return arrays
