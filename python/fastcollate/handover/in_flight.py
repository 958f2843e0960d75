"""Copies that may not be done yet, watched in debug mode for changes of what they read."""

from __future__ import annotations

import os
import weakref
import zlib
from collections import deque
from typing import Any, NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class Event(Protocol):
    """What tells the host that a device has done what was asked before it."""

    def query(self) -> bool:
        """Say whether that is so."""


class _Copy(NamedTuple):
    source: Any
    checksum: int
    done: Event
    what: str


def is_watched() -> bool:
    """Say whether copies are watched: where the environment has ``FASTCOLLATE_DEBUG``."""
    return os.environ.get("FASTCOLLATE_DEBUG", "0") not in ("", "0")


class InFlight:
    """Copies of memory on the host, with what it held when they began.

    For many threads, and without a lock, which a forked child might never get.
    """

    def __init__(self) -> None:
        self._copies: deque[_Copy] = deque()
        self._changed: deque[str] = deque()
        _all.append(weakref.ref(self, _all.remove))

    def add(self, source: Any, done: Event, what: str) -> None:
        """Watch a copy of a uint8 tensor on the host, until an event is done."""
        self._copies.append(_Copy(source, _checksum(source), done, what))

    def let_go(self) -> None:
        """Forget the copies that are done, but not which of them read what was changed."""
        while (copy := _popped(self._copies)) is not None:
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
            If one of them read memory that was changed meanwhile, or since.
        """
        self.let_go()
        if (what := _popped(self._changed)) is not None:
            raise RuntimeError(
                f"{what} was changed on the host while its copy was in flight, or soon after, so "
                "the values on the device are unknown; wait for the copy (by an event, or "
                "torch.cuda.synchronize) and change a clone, or leave non_blocking out"
            )


_all: list[weakref.ref[InFlight]] = []


def let_go_of_all() -> None:
    """Free the memory of copies that are done: somebody waits for it."""
    for reference in tuple(_all):
        if (in_flight := reference()) is not None:
            in_flight.let_go()


def _popped(items: deque[T]) -> T | None:
    """Take the first item, if there is one: another thread may be faster."""
    try:
        return items.popleft()
    except IndexError:
        return None


def _checksum(source: Any) -> int:
    return zlib.crc32(source.numpy())


watched = InFlight()
"""Those of :meth:`fastcollate.Batch.to`."""
