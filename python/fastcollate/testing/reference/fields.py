"""Outputs of `fastcollate.Field`, `PerRow`, `RoutedExperts` and `Captured`, value by value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastcollate.testing.reference.grids import Grid, place
from fastcollate.testing.reference.ragged import as_lists, is_ragged, joined_lists
from fastcollate.testing.reference.reading import Array, is_number, readable, rows_of
from fastcollate.testing.reference.tree import TreeBatch

CAPTURED = ("RoutedExperts", "Captured")
"""Kinds of fields whose values an engine captured."""


def field_outputs(
    key: str, field: Any, tokens: Grid, answers: Grid, tree: TreeBatch | None = None
) -> dict[str, Any]:
    """Build the outputs of one item of `fields`: its own and accompanying ones."""
    streams = tokens if tree is None else tree.streams
    kind = type(field).__name__
    if kind == "PerRow":
        return _per_row(key, field)
    if kind in CAPTURED:
        return _captured(key, field, tokens, tree)
    if is_ragged(field):
        grid = streams if field.align == "sequence" else answers
        placed = place(grid, as_lists(field).rows, [])
        values, ends = joined_lists(placed, grid.shape)
        return {key: cast(values, _name(field.dtype) or "int32"), f"{key}_offsets": ends}
    rows = [readable(row) for row in rows_of(field.rows)]
    trailing = trailing_shape(rows)
    grid = streams if field.align == "sequence" else answers
    dtype = _name(field.dtype) or "float32"
    rows = shaped(rows, trailing)
    placed = place(grid, rows, np.full(trailing, field.fill))
    return {key: _set_dtype(placed, dtype, grid, trailing)}


def _captured(key: str, field: Any, tokens: Grid, tree: TreeBatch | None) -> dict[str, Any]:
    rows = [readable(row) for row in rows_of(field.rows)]
    layers, topk = trailing = trailing_shape(rows)
    is_routes = type(field).__name__ == "RoutedExperts"
    nothing = list(range(topk)) if is_routes else [-1] * topk
    none: Any = np.array([nothing] * layers, np.int64).reshape(trailing)
    starts = [0] * len(rows) if field.starts is None else [int(one) for one in field.starts]
    values, is_padding = [], []
    for row, start, count in zip(shaped(rows, trailing), starts, tokens.lens, strict=True):
        of_tokens: list[Any] = [none] * count
        lacks = [True] * count
        for position, one in enumerate(row, start):
            of_tokens[position], lacks[position] = one, is_none(one)
        values.append([none if lack else one for lack, one in zip(lacks, of_tokens, strict=True)])
        is_padding.append(lacks)

    dtype = _name(field.dtype) or (_dtype_of_routes(field, rows) if is_routes else "int32")
    if field.layers is not None:
        none = none[field.layers]
        values = [[one[field.layers] for one in row] for row in values]
    if tree is not None:
        tokens = tree.held(is_padding)
    placed = place(tokens, values, none)
    mask = "router_padding_mask" if is_routes else f"{key}_padding_mask"
    return {
        key: _set_dtype(placed, dtype, tokens, none.shape),
        mask: np.array(place(tokens, is_padding, True), np.bool_),
    }


NOTHING = -9
"""Fills the values of a token in rows of captured indices that a row lacks."""


def is_none(values: Any) -> bool:
    """Return True for values of a token that was not captured."""
    return bool(np.size(values)) and int(np.ravel(values)[0]) == NOTHING


def _dtype_of_routes(field: Any, rows: list[Any]) -> str:
    """Return the name of the dtype of expert indices that have none of their own."""
    if field.num_experts is not None:
        return smallest_dtype(field.num_experts - 1)
    return dtype_of_indices(rows)


def dtype_of_indices(rows: Sequence[Any]) -> str:
    """Return the name of the smallest dtype for expert indices; int32 if any is -1."""
    given = [int(index) for row in rows for index in np.ravel(row) if index != NOTHING]
    if -1 in given:
        return "int32"
    return smallest_dtype(max([trailing_shape(rows)[-1] - 1, *given]))


def smallest_dtype(largest: int) -> str:
    """Return the name of the smallest dtype for expert indices up to `largest`."""
    if largest < 2**8:
        return "uint8"
    return "int16" if largest < 2**15 else "int32"


def _per_row(key: str, field: Any) -> dict[str, Any]:
    if is_of_objects(field):
        return {key: list(field.values)}
    dtype = _name(field.dtype)
    values = readable(field.values)
    is_table = isinstance(values, np.ndarray)
    if not is_table:
        values = [readable(value) for value in values]
    if is_table or all(map(is_number, values)):
        return {key: cast(values, dtype or dtype_of_numbers(values))}
    arrays = [np.asarray(value) if dtype is None else cast(value, dtype) for value in values]
    if not field.concat:
        return {key: arrays}
    offsets = [0]
    for value in arrays:
        offsets.append(offsets[-1] + len(value))
    return {key: np.concatenate(arrays), f"{key}_offsets": np.array(offsets, np.int64)}


def dtype_of_numbers(values: Any) -> str:
    """Return the name of the dtype of numbers per row."""
    kinds = {np.asarray(value).dtype.kind for value in values}
    return "bool" if kinds == {"b"} else "int64" if kinds <= {*"biu"} else "float32"


def is_of_streams(field: Any) -> bool:
    """Return True for fields with one value per token of whole sequences."""
    return type(field).__name__ == "Field" and field.align == "sequence"


def is_of_objects(field: Any) -> bool:
    """Return True for fields whose values are kept unchanged."""
    first = next(iter(field.values), None)
    return field.dtype is object or isinstance(first, (str, bytes, dict))


def trailing_shape(rows: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape of a token's values from the first row that is not []."""
    for row in rows:
        shape: tuple[int, ...] = np.shape(row)
        if shape != (0,):
            return shape[1:]
    return ()


def shaped(rows: Sequence[Any], trailing: tuple[int, ...]) -> list[Any]:
    """Return rows as arrays of tokens with trailing dimensions, if there are any."""
    if trailing == ():
        return list(rows)  # whole numbers and floats in one list stay apart
    return [np.asarray(row).reshape(len(row), *trailing) for row in rows]


def _set_dtype(placed: list[Any], dtype: str, grid: Grid, trailing: tuple[int, ...]) -> Any:
    return cast(placed, dtype).reshape(*grid.shape, *trailing)


def cast(values: Any, dtype: str) -> Any:
    """Convert to an array or, for bfloat16, which NumPy lacks, to a tensor."""
    if dtype not in ("float16", "bfloat16"):
        return np.array(values, dtype)
    single: Array = np.array(values, np.float32)
    if dtype == "float16":
        return single.astype(np.float16)
    import torch

    return torch.from_numpy(single).to(torch.bfloat16)


def _name(dtype: Any) -> str | None:
    """Return the name of a dtype given as a name, torch's or NumPy's."""
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    return name if name == "bfloat16" or name != str(dtype) else np.dtype(dtype).name
