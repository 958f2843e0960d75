"""Outputs of one array per bin, stored as one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from operator import is_
from typing import Any

from fastcollate.common.arrays import is_tensor


class Parts:
    """Arrays or tensors stored end to end as one, and their numbers of items.

    Making their list takes longer than a copy to a device or a pickle.
    """

    __slots__ = ("_items", "_list", "counts", "whole")

    def __init__(self, whole: Any, counts: list[int]) -> None:
        self.whole, self.counts = whole, counts
        self._list: list[Any] | None = None
        self._items: tuple[Any, ...] = ()

    @property
    def views(self) -> list[Any]:
        """The list: views of the one array, made on first access."""
        if self._list is None:
            if is_tensor(self.whole):
                self._list = list(self.whole.split_with_sizes(self.counts))
            else:
                ends = pairwise(accumulate(self.counts, initial=0))
                self._list = [self.whole[start:end] for start, end in ends]
            self._items = tuple(self._list)
        return self._list

    def map(self, function: Callable[[Any], Any]) -> Parts | list[Any]:
        """Return the parts of a function's result for the one array.

        If a user has put others into the list, return the list of its results for each.
        """
        found, items = self._list, self._items
        if found is None or (len(found) == len(items) and all(map(is_, found, items))):
            return type(self)(function(self.whole), self.counts)
        return [function(item) for item in found]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.whole, self.counts)


def listed(value: Any) -> Any:
    """Return an output as users get it."""
    return value.views if type(value) is Parts else value
