"""The positions of packed rows on a context-parallel rank, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fastcollate.rows.columns import Ragged
from fastcollate.testing.reference.fields import cast
from fastcollate.testing.reference.reading import Array, dtype_name, readable, rows_of


def cp_columns_loops(batch: Mapping[str, Any], cp_size: int, cp_rank: int) -> list[list[int]]:
    """List a rank's columns of each packed row, in order.

    Parameters
    ----------
    batch
        The outputs of a packed batch: ``row_cu_seqlens_padded`` (or ``row_cu_seqlens``, if nothing
        was rounded) are the offsets of segments. Columns after the last are a segment, too.
    cp_size, cp_rank
        As in `fastcollate.Batch.cp_split`.

    Raises
    ------
    ValueError
        If a segment cannot be cut into chunks of one length.
    """
    boundaries = batch.get("row_cu_seqlens_padded", batch["row_cu_seqlens"])
    width = batch["input_ids"].shape[1]
    rows = []
    for of_row in boundaries:
        columns: list[int] = []
        for begin, end in pairwise([*readable(of_row).tolist(), width]):
            chunk, rest = divmod(end - begin, 2 * cp_size)
            if rest and cp_size > 1:
                raise ValueError(f"the place from {begin} to {end} cannot be cut")
            chunks = [
                list(range(begin + index * chunk, begin + (index + 1) * chunk))
                for index in range(2 * cp_size)
            ]
            if cp_size == 1:
                columns += range(begin, end)
            else:
                columns += chunks[cp_rank] + chunks[2 * cp_size - 1 - cp_rank]
        rows.append(columns)
    return rows


def cp_split_loops(
    batch: Mapping[str, Any], keys: Iterable[str], cp_size: int, cp_rank: int
) -> dict[str, Any]:
    """Select a rank's positions of the outputs `keys`, which have a value per position."""
    rows = cp_columns_loops(batch, cp_size, cp_rank)
    out = dict(batch)
    for key in keys:
        values = readable(batch[key])
        taken = [[values[row, column] for column in columns] for row, columns in enumerate(rows)]
        shape = (len(rows), values.shape[1] // cp_size, *values.shape[2:])
        out[key] = cast(taken, dtype_name(batch[key])).reshape(shape)
    if "ragged" in out:
        width = batch["input_ids"].shape[1]
        lists = rows_of(Ragged(batch["ragged"], batch["ragged_offsets"]))
        of_rank = [
            lists[row * width + column] for row, columns in enumerate(rows) for column in columns
        ]
        values = [value for one in of_rank for value in one]
        out["ragged"] = cast(values, dtype_name(batch["ragged"]))
        out["ragged_offsets"] = np.cumsum([0, *map(len, of_rank)], dtype=np.int64)
    return out


def cp_merge_loops(parts: Sequence[Any], batch: Mapping[str, Any]) -> Array:
    """Put the values of all ranks back, one by one."""
    parts = list(map(readable, parts))
    shape = (*batch["input_ids"].shape, *parts[0].shape[2:])
    out: Array = np.empty(shape, parts[0].dtype)
    for rank, part in enumerate(parts):
        for row, columns in enumerate(cp_columns_loops(batch, len(parts), rank)):
            for place, column in enumerate(columns):
                out[row, column] = part[row, place]
    return out
