"""Rows with trailing dimensions of different sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastcollate.common.arguments import tally
from fastcollate.common.arrays import (
    concatenate,
    is_array,
    is_tensor,
    offsets_of,
    read_array,
    to_numpy,
)
from fastcollate.rows.columns import Ragged


def with_equal_trailing(rows: Sequence[Any], pad: Callable[..., Any]) -> Any:
    """Return rows with trailing dimensions padded to the largest of each, the last one first.

    `pad` pads runs of values on the right, to a width.
    """
    are_tensors = all(map(is_tensor, rows))
    arrays = [row if are_tensors else _read_row(row, index) for index, row in enumerate(rows)]
    rank = max((array.ndim for array in arrays), default=0)
    for index, array in enumerate(arrays):
        if array.ndim == 1 and len(array) == 0:
            arrays[index] = array.reshape((0,) * rank)
        elif array.ndim != rank:
            found = tally(array.ndim, "dimension")
            raise ValueError(f"rows[{index}] has {found}, another row {rank}; pass equally many")
    if rank < 2:
        return rows
    sizes = np.array([tuple(array.shape) for array in arrays], np.int64)
    values = concatenate([array.reshape(-1) for array in arrays])
    for axis in range(rank - 1, 0, -1):
        lengths = np.repeat(sizes[:, axis], sizes[:, :axis].prod(1))
        runs = Ragged(values, offsets_of(lengths))
        widest = int(sizes[:, axis].max())
        values = pad(runs, pad_to=widest)
    return Ragged(values, offsets_of(sizes[:, 0]))


def _read_row(row: Any, index: int) -> np.ndarray:
    try:
        found = read_array(to_numpy(row))
    except ValueError as error:
        raise ValueError(f"rows[{index}] cannot be read: {error}") from error
    return found if found.size or is_array(row) else found.astype(np.bool_)  # of no dtype
