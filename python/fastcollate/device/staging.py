"""Pinned staging slabs for copies to a device, reused for later batches.

Only the copying thread has access to them. So all copies of a slab are known, and it may be written
again as soon as the host has queried the event of the last one as done. An event that only orders
streams tells the host nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastcollate.device.streams import Lane
from fastcollate.memory.in_flight import Event
from fastcollate.memory.pinning import round_up

FIRST_LOOK, LAST_LOOK = 0.0001, 0.01
"""Seconds between checks of a copy: the first interval and the longest."""

REPORT_EVERY = 60.0
"""Seconds between warnings while a copy is waited for."""

_log = logging.getLogger(__name__)


class StoppedError(Exception):
    """Waiting was stopped."""


@dataclass(eq=False)
class Slab:
    """Memory on the host, uint8 (size,), and its last copy."""

    memory: Any
    done: Event | None = None


class Staging:
    """A fixed number of slabs, for one thread.

    Parameters
    ----------
    lane
        Allocates the slabs and copies them.
    count
        The most slabs: one can be written while another is copied.
    is_stopped
        Returns True to give up waiting.
    """

    def __init__(self, lane: Lane, count: int, is_stopped: Callable[[], bool]) -> None:
        self._lane, self._count, self._is_stopped = lane, count, is_stopped
        self._slabs: list[Slab] = []

    def take(self, size: int) -> Slab:
        """Return a free slab of at least `size` bytes.

        Raises
        ------
        StoppedError
            Waiting was stopped.
        """
        free = self._await_free()
        if fitting := [slab for slab in free if len(slab.memory) >= size]:
            return min(fitting, key=lambda slab: len(slab.memory))
        if free and len(self._slabs) == self._count:
            self._slabs.remove(free[0])  # too small: returns to torch's allocator
        slab = Slab(self._memory(size))
        self._slabs.append(slab)
        return slab

    def _await_free(self) -> list[Slab]:
        """Return the free slabs; wait for one only if no more may be allocated."""
        begin, pause, report = time.monotonic(), FIRST_LOOK, REPORT_EVERY
        while True:
            free = [slab for slab in self._slabs if slab.done is None or slab.done.query()]
            if free or len(self._slabs) < self._count:
                return free
            if self._is_stopped():
                raise StoppedError
            if (waited := time.monotonic() - begin) >= report:
                _log.warning(
                    "the copies of %d slabs have not finished after %.0f s", self._count, waited
                )
                report += REPORT_EVERY
            time.sleep(pause)
            pause = min(2 * pause, LAST_LOOK)

    def _memory(self, size: int) -> Any:
        import torch

        # torch takes this much anyway, and the next batch may be slightly larger.
        memory = self._lane.pinned(round_up(size))
        return torch.empty(size, dtype=torch.uint8, device="cpu") if memory is None else memory
