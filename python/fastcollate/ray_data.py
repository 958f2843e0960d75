"""Collators for Ray Data, which hands tables over as Arrow if it is asked by a class of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.data.collate_fn import ArrowBatchCollateFn

if TYPE_CHECKING:
    from fastcollate.batch import Batch


class ArrowCollator(ArrowBatchCollateFn):
    """A collator that Ray Data calls with Arrow tables (see :meth:`Collator.for_ray_data`)."""

    def __init__(self, collate: Callable[[Any], Batch | dict[str, Any]]) -> None:
        self._collate = collate

    def __call__(self, table: Any) -> Any:
        """Make a batch of a table's rows."""
        return self._collate({name: _column(table[name]) for name in table.column_names})

    def __repr__(self) -> str:
        return f"ArrowCollator({self._collate!r})"


def _column(column: Any) -> Any:
    """Return a column that others than Ray can read too.

    Rows that were NumPy arrays have a type of Ray's, whose storage does not say all of their shape.
    """
    if not getattr(column.type, "extension_name", "").startswith("ray."):
        return column
    chunks = [chunk.to_numpy(zero_copy_only=False) for chunk in column.chunks]
    if len({chunk.shape[1:] for chunk in chunks} | {chunk.dtype for chunk in chunks}) == 2:
        return np.concatenate(chunks)
    rows = np.empty(sum(map(len, chunks)), object)
    for index, row in enumerate(row for chunk in chunks for row in chunk):
        rows[index] = row
    return rows
