"""Values per row: numbers, arrays and objects, and their form."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from numbers import Number
from typing import Any, Literal, TypeAlias

import numpy as np

from fastcollate._fastcollate import fix_lists
from fastcollate.common.arguments import as_list, suggests_names
from fastcollate.common.arrays import (
    NUMBERS,
    check_dtype_name,
    check_unmasked,
    convert,
    describe,
    dtype_like,
    dtype_name,
    first_misfit,
    is_array,
    is_float,
    is_tensor,
    misfit,
    read_array,
)
from fastcollate.common.text import show

GRIDS = ("image_grid_thw", "video_grid_thw", "target_sizes", "target_sizes_videos")
"""Fields of models that count positions in three dimensions, from these grids."""

IMAGES = (
    *("pixel_values", "pixel_values_videos", "pixel_attention_mask", "image_sizes"),
    *(*GRIDS, "second_per_grid_ts", "image_pixel_values"),
)
"""Fields of images and videos, which models take for the tokens in their places."""

SOUNDS = (
    *("input_features", "input_features_mask", "feature_attention_mask"),
    *("input_values", "audio_input_features"),
)
"""Fields of audio, which models take in the same way."""


@suggests_names
@dataclass(frozen=True, eq=False)
class PerRow:
    """Values per row, for ``fields=`` of :func:`fastcollate.build_batch`.

    Parameters
    ----------
    values
        One number per row, written as (B,); or one array for all rows, written as (B, ...). Or a
        sequence of one array, tensor or list per row, of any shapes, such as ``pixel_values`` and
        ``image_grid_thw``, kept as a list with their own dtypes. Or one string or other object per
        row, kept as a list of the same objects and never moved to a device.
    dtype
        As for :class:`Field`; if None, bool if all are booleans, which then choose rows as in
        ``losses[batch["is_good"]]``, float32 if any number is a float, and else int64. ``object``
        keeps the values as they are, including None.
    concat
        Concatenate the arrays of the rows along their first dimension, and add int64 offsets
        (B + 1,) of the rows under the key with the suffix ``_offsets``. Models assign them in the
        order of tokens, in which :meth:`Batch.model_inputs` has them.
    """

    values: Any
    dtype: Any = None
    concat: bool = False


def numbers_of_rows(key: str, rows: Any) -> Any:
    """Return one number per row as an array or a list, which may hold None."""
    advice = "with spread, pass one number per row"
    if _is_array(rows):
        if rows.ndim != 1:
            raise ValueError(f"{key} has shape {tuple(rows.shape)}; {advice}")
        return rows
    try:
        numbers = as_list(rows)
    except (TypeError, OverflowError) as error:
        raise TypeError(f"{key} is {show(rows)}; {advice}") from error
    if numbers and (getattr(numbers[0], "ndim", 0) > 0 or isinstance(numbers[0], (list, tuple))):
        raise ValueError(f"{key}[0] is {describe(numbers[0])}; {advice}")
    return numbers


Form: TypeAlias = Literal["number", "array", "object"]
"""Kinds of values in the rows of a :class:`PerRow`."""


_FORMS: dict[Form, str] = {
    "number": "a number",
    "array": "an array",
    "object": "neither a number nor an array",
}


class SomeRows:
    """Values of some rows of many, by row."""

    def __init__(self, count: int, values: dict[int, Any]) -> None:
        self._count, self.values = count, values

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, row: int) -> Any:
        return self.values[row]


def rows_to_read(values: Any, own: Sequence[int] | None) -> Sequence[int]:
    """Return the rows of a list that a shard reads: the first, and its own; else all."""
    if own is None or type(values) is not list or max(own, default=0) >= len(values):
        return range(len(values))
    return list(dict.fromkeys((0, *own)))


def per_row_values(
    key: str, field: PerRow, own: Sequence[int] | None = None
) -> tuple[Form, Any, Sequence[int]]:
    """Return values as an array of numbers, or as a list of one array or object per row.

    The first item is the form of values, the last the rows that were read: those of
    :func:`rows_to_read`, if no dtype follows from the others.
    """
    values = field.values
    own = own if type(values) is list else None
    if is_object(field.dtype) or not _is_array(values):
        try:
            if isinstance(values, (str, bytes, bytearray, Mapping, Set)):
                raise TypeError("its items are not rows")
            values = values if own is not None else as_list(values)
        except (TypeError, OverflowError) as error:  # __len__ may return anything
            message = f"{key} is {show(values)}; pass one number, array or object per row"
            raise TypeError(message) from error
        rows = rows_to_read(values, own)
        form = "object" if is_object(field.dtype) else _common_form(key, values, rows)
        if field.dtype is None and (form == "number" or field.concat):
            rows = range(len(values))
            form = _common_form(key, values, rows)
        if form == "number":
            count, values = len(values), _as_numbers(key, values, field.dtype, rows)
            if not isinstance(rows, range):
                own_values, values = values, np.zeros(count, values.dtype)
                values[rows] = own_values
        elif form == "object" and field.dtype is not None and not is_object(field.dtype):
            raise TypeError(
                f"{key}[0] is {show(values[0])}; pass numbers or arrays, or dtype=object"
            )
    else:
        form, rows = "number", range(len(values))
    if field.concat and form != "array":
        raise ValueError(
            f"{key} has concat=True, but its values are {form}s; pass arrays, or concat=False"
        )
    return form, values, rows


def _common_form(key: str, values: list[Any], rows: Sequence[int]) -> Form:
    """Return the kind of value that all rows hold."""
    first: Form | None = None
    for row in rows:
        if values[row] is None:
            raise no_value(key, row)
        form = form_of(f"{key}[{row}]", values[row])
        first = first or form
        if form != first:
            raise ValueError(
                f"{key}[{row}] is {_FORMS[form]}, but {key}[0] is {_FORMS[first]}; pass "
                "one kind for all rows, or dtype=object to keep values as they are"
            )
    return first or "number"


def form_of(place: str, value: Any) -> Form:
    """Return the kind of value of one row."""
    if isinstance(value, (str, bytes)):
        return "object"
    if value is None or isinstance(value, (Number, np.generic)):
        return "number"
    try:
        array = value if is_array(value) else read_array(value)
    except ValueError as error:  # lists of different lengths in it
        advice = "an array of numbers, or dtype=object to keep values as they are"
        raise unreadable(place, error, advice) from error
    # The dtype attribute of a subclass may be anything.
    if isinstance(array, np.ndarray) and np.asarray(array).dtype.kind in "OSTU":
        return "object"
    return "array" if array.ndim > 0 else "number"


def is_object(dtype: Any) -> bool:
    """Return True if a dtype holds Python objects."""
    return dtype is object or (isinstance(dtype, (str, np.dtype)) and dtype == "object")


def no_value(key: str, row: int) -> ValueError:
    """Return the error of a row without a value."""
    return ValueError(
        f"{key}[{row}] is None; pass a value for every row, dtype=object to keep None, or leave "
        f"{key} out"
    )


def unreadable(place: str, error: Exception, advice: str = "an array of numbers") -> ValueError:
    """Return the error of a row that cannot be read as an array."""
    return ValueError(f"{place} cannot be read ({error}); pass {advice}")


def _as_numbers(key: str, values: list[Any], dtype: Any, rows: Sequence[int]) -> np.ndarray:
    """Return one number per row as an array, int64, float64 or bool."""
    items = (values[row] for row in rows)
    numbers = [value.item() if hasattr(value, "item") else value for value in items]
    if dtype is None and numbers and all(isinstance(number, bool) for number in numbers):
        return np.array(numbers)
    holds_floats = dtype is None or "float" in check_dtype_name(dtype, key)
    is_float = holds_floats and any(isinstance(number, float) for number in numbers)
    is_float |= dtype is not None and holds_floats and not all(map(_fits_int64, numbers))
    for row, number in zip(rows, numbers, strict=True):
        if not isinstance(number, (int, float)):
            raise TypeError(
                f"{key}[{row}] is {show(number)}; pass integers and floats, or "
                "dtype=object to keep values as they are"
            )
        if isinstance(number, float):
            if not holds_floats:
                raise misfit(f"{key}[{row}]", number, dtype)
        elif not is_float and not _fits_int64(number):
            raise misfit(f"{key}[{row}]", number, "int64", "dtype='float32' or 'float64'")
        elif number.bit_length() > 1023:
            raise misfit(f"{key}[{row}]", number, "float64", "a smaller number")
    return np.array(numbers, np.float64 if is_float else np.int64)


def _fits_int64(number: Any) -> bool:
    return not isinstance(number, int) or -(2**63) <= number < 2**63


def as_arrays(
    key: str, values: list[Any], field: PerRow, array_type: str, rows: Sequence[int]
) -> SomeRows:
    """Return one array for each of some rows, of the batch's kind."""
    dtype = None if field.dtype is None else check_dtype_name(field.dtype, key)
    arrays = {row: _as_array(f"{key}[{row}]", values[row], dtype, array_type) for row in rows}
    if field.concat and any(array.shape == (0,) for array in arrays.values()):
        # An empty list, whose shape and dtype say nothing.
        of_others = next((one[:0] for one in arrays.values() if len(one) > 0), arrays[0])
        arrays = {row: one if len(one) > 0 else of_others for row, one in arrays.items()}
    for row, array in arrays.items() if field.concat else ():
        if array.shape[1:] != arrays[0].shape[1:]:
            raise ValueError(
                f"{key}[{row}] has shape {tuple(array.shape)}, which cannot be joined with "
                f"{key}[0] of shape {tuple(arrays[0].shape)}; pass concat=False"
            )
    if field.concat:
        common_dtype(key, list(arrays.values()))
    return SomeRows(len(values), arrays)


def common_dtype(key: str, arrays: Sequence[Any]) -> Any:
    """Return the dtype of arrays or tensors when they are concatenated."""
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) == 1:
        return dtypes.pop()
    names = set(map(dtype_name, dtypes))
    if all(name.startswith(("int", "uint", "bool")) for name in names):
        common = np.result_type(*names)
        if common.kind == "f":
            raise ValueError(
                f"{key} holds {' and '.join(sorted(names))}, but no integer dtype holds both; "
                "pass dtype"
            )
        return dtype_like(arrays[0], common.name)
    if isinstance(arrays[0], np.ndarray):
        return np.result_type(*dtypes)
    import torch

    return functools.reduce(torch.promote_types, dtypes)


def _is_array(values: Any) -> bool:
    """Return True for an array or tensor of numbers with a first dimension of rows."""
    if isinstance(values, np.ndarray):
        return values.ndim > 0 and values.dtype.kind not in "OSTU"
    return is_tensor(values) and values.dim() > 0


def dtype_of(numbers: Any) -> str:
    """Return the name of the dtype that an output of these numbers has."""
    if dtype_name(numbers.dtype) == "bool":
        return "bool"
    return "float32" if is_float(numbers) else "int64"


def _as_array(place: str, value: Any, dtype: str | None, array_type: str) -> Any:
    """Return a row's value as an array of the batch's kind."""
    check_unmasked(place, value)
    array: Any
    try:
        if array_type == "numpy":
            array = read_array(value.detach().cpu() if is_tensor(value) else value)
        else:
            import torch

            # Regardless of torch.set_default_device.
            array = torch.as_tensor(fix_lists(value), device=None if is_tensor(value) else "cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{place} is {describe(value)}, which cannot be read ({error}); pass an array of "
            "numbers"
        ) from error
    if dtype is None:
        return array
    if isinstance(array, np.ndarray) and array.dtype.kind not in NUMBERS:
        raise TypeError(f"{place} is {describe(value)}; pass an array of numbers")
    target = dtype_like(array, dtype)
    if (index := first_misfit(array, target)) is not None:
        at = np.unravel_index(index, tuple(array.shape))
        subscript = "".join(f"[{one}]" for one in at)
        raise misfit(f"{place}{subscript}", array[at].item(), dtype)
    return convert(array, target)
