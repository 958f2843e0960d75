"""Collators for Ray Data, which passes Arrow tables only to subclasses of its own class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.data.collate_fn import ArrowBatchCollateFn


class ArrowCollator(ArrowBatchCollateFn):
    """A collator that Ray Data calls with Arrow tables (see :meth:`Collator.for_ray_data`)."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, table: Any) -> Any:
        """Make a batch of a table's rows."""
        return self._collate(table)

    def __repr__(self) -> str:
        return f"ArrowCollator({self._collate!r})"
