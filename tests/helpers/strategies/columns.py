"""Kinds of input that hold all rows of a column in one object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np

import fastcollate as fc
from strategies.kinds import Array, as_kind

Column: TypeAlias = Callable[[Array, list[int]], Any]
"""Makes a column from all of its values and the length of each row."""


def as_column(rows: Sequence[Any], kind: str, *, ids: bool) -> Any:
    """Convert rows to one object.

    Parameters
    ----------
    rows
        Lists of numbers; there is at least one.
    kind
        One of `COLUMN_KINDS`.
    ids
        True for token ids, whose output is int64; False for a field, whose output is float32.

    Returns
    -------
    object
        The column, or `rows` themselves if that kind cannot hold them.
    """
    holder, _, dtype = kind.partition(".")
    values = [value for row in rows for value in row]
    lens = [len(row) for row in rows]
    narrow = as_kind(values, f"numpy.{'int' if ids else 'float'}{dtype}", ids=ids)
    if isinstance(narrow, list):
        return rows
    column = _HOLDERS[holder](narrow, lens)
    return rows if column is None else column


def _rows(values: Array, lens: list[int]) -> list[Array]:
    return np.split(values, np.cumsum(lens)[:-1])


def _ragged_torch(values: Array, lens: list[int]) -> Any:
    import torch

    return fc.ragged([torch.tensor(row) for row in _rows(values, lens)])


def _ragged_padded(values: Array, lens: list[int]) -> Any:
    # Values after the rows must not be read.
    table = np.full((len(lens), max(lens) + 1), 77, values.dtype)
    for out, row in zip(table, _rows(values, lens), strict=True):
        out[: len(row)] = row
    return fc.unpad(table, lengths=lens, side="right")


def _nested(values: Array, lens: list[int]) -> Any:
    import torch

    rows = [torch.tensor(row) for row in _rows(values, lens)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


def _arrow(values: Array, lens: list[int], *, large: bool = False) -> Any:
    import pyarrow as pa

    offsets = np.cumsum([0, *lens])
    kind, dtype = (pa.LargeListArray, pa.int64()) if large else (pa.ListArray, pa.int32())
    return kind.from_arrays(pa.array(offsets, dtype), pa.array(values))


def _arrow_fixed(values: Array, lens: list[int]) -> Any:
    import pyarrow as pa

    if lens[0] == 0 or len(set(lens)) > 1:
        return None
    return pa.FixedSizeListArray.from_arrays(pa.array(values), lens[0])


def _arrow_sliced(values: Array, lens: list[int]) -> Any:
    around = np.full(2, 77, values.dtype)
    return _arrow(np.concatenate([around, values, around]), [2, *lens, 2]).slice(1, len(lens))


def _arrow_chunked(values: Array, lens: list[int]) -> Any:
    import pyarrow as pa

    half = len(lens) // 2
    column = _arrow(values, lens)
    return pa.chunked_array([column[:half], column[half:]])


_HOLDERS: dict[str, Column] = {
    "ragged": lambda values, lens: fc.ragged(_rows(values, lens)),
    "ragged padded": _ragged_padded,
}
if find_spec("torch") is not None:
    _HOLDERS |= {"ragged torch": _ragged_torch, "nested": _nested}
if find_spec("pyarrow") is not None:
    _HOLDERS |= {
        "arrow": _arrow,
        "arrow large": lambda values, lens: _arrow(values, lens, large=True),
        "arrow fixed": _arrow_fixed,
        "arrow sliced": _arrow_sliced,
        "arrow chunked": _arrow_chunked,
    }

COLUMN_KINDS = [f"{holder}.{bits}" for holder in _HOLDERS for bits in (32, 64)]
"""Types that hold all rows: `fastcollate.Ragged`; torch's and Arrow's if installed."""
