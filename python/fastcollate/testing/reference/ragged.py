"""Fields with any number of values per token, as lists of a list per token."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fastcollate.testing.reference.reading import readable, rows_of


def is_ragged(field: Any) -> bool:
    """Return True for a `fastcollate.Field` with any number of values per token."""
    return type(field).__name__ == "Field" and bool(field.ragged)


def as_lists(field: Any) -> Any:
    """Return a ragged field with rows of lists, whatever form they were given in."""
    rows = field.rows
    if isinstance(rows, tuple) and len(rows) == 2 and all(hasattr(one, "offsets") for one in rows):
        rows = list(zip(*map(rows_of, rows), strict=True))
    return dataclasses.replace(field, rows=[_lists(row) for row in rows_of(rows)])


def _lists(row: Any) -> list[list[Any]]:
    """Return the values of each token of a row."""
    if hasattr(row, "offsets"):
        row = rows_of(row)
    is_pair = isinstance(row, tuple) and len(row) == 2
    if is_pair and all(hasattr(readable(one), "dtype") for one in row):
        values, counts = (readable(one).tolist() for one in row)
        ends = np.cumsum([0, *counts]).tolist()
        return [values[start:end] for start, end in pairwise(ends)]
    return [list(np.asarray(readable(token)).tolist()) for token in row]


def joined_lists(
    placed: Sequence[Any], shape: tuple[int, ...]
) -> tuple[list[Any], npt.NDArray[np.int64]]:
    """Return all values and the offsets of the lists at the positions of a grid of this shape."""
    lists = [one for row in placed for one in row] if len(shape) == 2 else placed
    values = [value for of_token in lists for value in of_token]
    return values, np.cumsum([0, *map(len, lists)], dtype=np.int64)
