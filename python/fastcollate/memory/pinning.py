"""Page-locked ("pinned") memory, which a device can read while the host goes on.

It comes from torch's caching allocator and returns there, never to a pool of fastcollate: a user's
own ``tensor.to("cuda", non_blocking=True)`` may still be in flight when the last view of a slab
dies. Only that allocator tracks this: torch records an event with it for every such copy.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from fastcollate.common.arguments import tally, warn_user
from fastcollate.common.arrays import is_tensor
from fastcollate.memory.in_flight import let_go_of_all
from fastcollate.memory.slabs import over

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIRST_LOOK, LAST_LOOK = 0.0005, 0.05
"""Seconds between checks of a full pool: the first interval and the longest."""

REPORT_AFTER = 5.0
"""Seconds of waiting after which a warning is logged."""

_log = logging.getLogger(__name__)
_has_warned = False


def allocate(size: int) -> Any:
    """Allocate pinned memory from torch: uint8 (size,).

    Raises
    ------
    RuntimeError
        The memory cannot be locked (see ``ulimit -l``), or this is a forked child.
    """
    import torch

    # Explicit, because of torch.set_default_device.
    return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)


def round_up(size: int) -> int:
    """Return the bytes that torch's allocator takes for a size: the next power of two."""
    return 1 << max(size - 1, 0).bit_length()


def obstacle() -> str | None:
    """Return the reason why no memory can be pinned here; None if none is known beforehand."""
    workers = sys.modules.get("torch.utils.data")
    if workers is not None and workers.get_worker_info() is not None:
        return (
            "this is a worker of a DataLoader, and memory does not stay pinned when a batch is "
            "sent; pass DataLoader(pin_memory=True)"
        )
    if _has_accelerator():
        return None
    return "torch finds no accelerator that pins memory; do not ask for pinned memory here"


@cache
def _has_accelerator() -> bool:
    import torch

    if not hasattr(torch, "accelerator"):  # before torch 2.6
        return torch.cuda.is_available()
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return device is not None and device.type != "mps"


def pinned(size: int) -> Any | None:
    """Allocate pinned memory, uint8 (size,); None, with one warning, if there is none."""
    why = obstacle()
    if why is None:
        try:
            return allocate(size)
        except RuntimeError as error:
            why = f"{tally(size, 'byte')} cannot be pinned: {str(error).partition(chr(10))[0]}"
    _warn(why)
    return None


def _warn(why: str) -> None:
    global _has_warned
    if not _has_warned:
        _has_warned = True
        message = f"no memory is pinned, and batches are in pageable memory: {why}"
        warn_user(message)


@dataclass(eq=False)
class _Place:
    """The entry of one slab: taken while the slab is allocated and while its storage is alive."""

    size: int
    trace: Any = None

    def is_taken(self) -> bool:
        return self.trace is None or not self.trace.expired()


class PinnedSlabs:
    """Limits the number of pinned slabs that are alive."""

    def __init__(self, max_bytes: int | None, depth: int, timeout: float) -> None:
        self.max_bytes, self.depth, self.timeout = max_bytes, depth, timeout
        self.reset()
        _every.add(self)

    def reset(self) -> None:
        """Drop all entries and the lock."""
        self._lock = threading.RLock()  # a finalizer or signal handler may use the pool
        self._places: list[_Place] = []

    def take(self, size: int) -> Any | None:
        """Allocate pinned memory once the limits allow it; None if it cannot be pinned.

        Raises
        ------
        ValueError
            The pool is smaller than `size`.
        TimeoutError
            No slab was freed in time.
        """
        whole = round_up(size)
        if self.max_bytes is not None and whole > self.max_bytes:
            raise ValueError(
                f"the batch has {tally(size, 'byte')}, for which torch takes {whole:,}, but the "
                f"pool has max_bytes={self.max_bytes}; pass a pool with a larger max_bytes"
            )
        begin, pause, is_reported = time.monotonic(), FIRST_LOOK, False
        while True:
            place = _Place(size)
            try:
                if self._enter(place):
                    slab = pinned(size)
                    place.trace = None if slab is None else _trace(slab)
                    return slab
            finally:
                if place.trace is None:
                    with suppress(ValueError):  # it was not taken
                        self._places.remove(place)
            alive = tally(len(self._places), "pinned batch", "pinned batches")
            let_go_of_all()
            waited = time.monotonic() - begin
            if waited >= self.timeout:
                raise TimeoutError(
                    f"{alive} of the pool (depth={self.depth}) still alive after {waited:.1f} s; "
                    "delete batches and their views, or pass a larger depth"
                    + ("" if self.max_bytes is None else " or max_bytes")
                )
            if waited >= REPORT_AFTER and not is_reported:
                is_reported = True
                message = "a batch waits for one of %s to be deleted (depth=%d)"
                _log.warning(message, alive, self.depth)
            time.sleep(min(pause, self.timeout - waited))
            pause = min(2 * pause, LAST_LOOK)

    def sizes(self) -> list[int]:
        """Return the bytes of each slab that is alive."""
        with self._lock:
            return [place.size for place in self._places if place.trace and place.is_taken()]

    def rounded_sizes(self) -> list[int]:
        """Return the bytes that torch's allocator takes for each slab that is alive."""
        return list(map(round_up, self.sizes()))

    def _enter(self, place: _Place) -> bool:
        """Add an entry if the limits allow it, so that the slow allocation needs no lock."""
        with self._lock:
            for gone in [place for place in self._places if not place.is_taken()]:
                with suppress(ValueError):  # a finalizer was faster
                    self._places.remove(gone)
            taken = sum(round_up(other.size) for other in self._places)
            whole = round_up(place.size)
            fits = self.max_bytes is None or taken + whole <= self.max_bytes
            has_room = len(self._places) < self.depth and fits
            if has_room:
                self._places.append(place)
            return has_room


_every: weakref.WeakSet[PinnedSlabs] = weakref.WeakSet()


def _reset_all() -> None:
    """Reset in a child: slabs belong to the parent, as does a thread that may hold a lock."""
    for slabs in _every:
        slabs.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)


def _trace(slab: Any) -> Any:
    """Return a weak reference to a slab's storage, which all tensors over it keep alive."""
    from torch.multiprocessing.reductions import StorageWeakRef

    trace: Any = StorageWeakRef
    return trace(slab.untyped_storage())


class PinnedAllocator:
    """Allocates the pinned memory of one batch."""

    def __init__(self, slabs: PinnedSlabs | None) -> None:
        self._slabs = slabs
        self._slab: Any = None

    def __call__(self, size: int) -> NDArray[Any] | None:
        """Return `size` bytes; None if they cannot be pinned."""
        size = max(size, 1)
        self._slab = pinned(size) if self._slabs is None else self._slabs.take(size)
        if self._slab is None:
            return None
        array: NDArray[Any] = self._slab.numpy()
        return array

    def over_slab(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return a batch's outputs as tensors over the slab itself, not over NumPy's view of it.

        torch records copies by storage, and does not track NumPy's.
        """
        slab = self._slab
        if slab is None:
            return data
        start = slab.data_ptr()

        def is_inside(value: Any) -> bool:
            return is_tensor(value) and 0 <= value.data_ptr() - start < len(slab)

        return {
            key: over(slab, value.data_ptr() - start, value) if is_inside(value) else value
            for key, value in data.items()
        }
