"""Copies in flight; debug mode checks that their source memory does not change."""

from __future__ import annotations

import os
import weakref
import zlib
from collections import deque
from typing import Any, NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class Event(Protocol):
    """An event on a device, done when all work recorded before it is done."""

    def query(self) -> bool:
        """Return True if the event is done."""


class _Copy(NamedTuple):
    source: Any
    checksum: int
    done: Event
    what: str


def is_watched() -> bool:
    """Return True if copies are watched: ``FASTCOLLATE_DEBUG`` is set."""
    return os.environ.get("FASTCOLLATE_DEBUG", "0") not in ("", "0")


class InFlight:
    """Copies of host memory, with its checksums when they began.

    Thread-safe without a lock, which a forked child might never acquire.
    """

    def __init__(self) -> None:
        self._copies: deque[_Copy] = deque()
        self._changed: deque[str] = deque()
        _all.append(weakref.ref(self, _all.remove))

    def add(self, source: Any, done: Event, what: str) -> None:
        """Watch the copy of a uint8 tensor on the host until an event is done."""
        self._copies.append(_Copy(source, _checksum(source), done, what))

    def let_go(self) -> None:
        """Forget the copies that are done, but record those whose source has changed."""
        while (copy := pop_first(self._copies)) is not None:
            if not copy.done.query():
                self._copies.appendleft(copy)
                return
            if _checksum(copy.source) != copy.checksum:
                self._changed.append(copy.what)

    def check(self) -> None:
        """Forget the copies that are done.

        Raises
        ------
        RuntimeError
            The source of one of them was changed during the copy or since.
        """
        self.let_go()
        if (what := pop_first(self._changed)) is not None:
            raise RuntimeError(
                f"{what} was changed on the host while its copy was in flight, or soon after, so "
                "the values on the device are unknown; wait for the copy (by an event, or "
                "torch.cuda.synchronize) and change a clone, or leave non_blocking out"
            )


_all: list[weakref.ref[InFlight]] = []


def let_go_of_all() -> None:
    """Release the memory of copies that are done, for a pool that waits for it."""
    for reference in tuple(_all):
        if (in_flight := reference()) is not None:
            in_flight.let_go()


def pop_first(items: deque[T]) -> T | None:
    """Take the first item; None if there is none: another thread may have taken it."""
    try:
        return items.popleft()
    except IndexError:
        return None


def _checksum(source: Any) -> int:
    return zlib.crc32(source.numpy())


watched = InFlight()
"""The copies of :meth:`fastcollate.Batch.to`."""
