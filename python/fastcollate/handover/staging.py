"""Pinned slabs that batches go through on their way to a device, used again and again.

Nobody but the one who copies from them ever sees them. So all copies of a slab are known, and it
may be written again as soon as the host has seen that the last one is done. An event that only
orders streams does not tell the host anything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastcollate.handover.in_flight import Event
from fastcollate.handover.pinning import rounded
from fastcollate.handover.streams import Lane

FIRST_LOOK, LAST_LOOK = 0.0001, 0.01
"""Seconds after which a copy is looked at again: at first, and in the end."""

REPORT_EVERY = 60.0
"""Seconds of waiting after which the log says what for, again and again."""

_log = logging.getLogger(__name__)


class StoppedError(Exception):
    """What is waited for is not wanted any more."""


@dataclass(eq=False)
class Slab:
    """Memory on the host, uint8 (size,), and its last copy."""

    memory: Any
    done: Event | None = None

    def is_free(self) -> bool:
        """Say whether the host has seen that no copy reads it any more."""
        return self.done is None or self.done.query()


class Staging:
    """So many slabs, for one thread.

    Parameters
    ----------
    lane
        Where they come from and copy to.
    count
        How many there may be: one to be written while another is copied.
    is_stopped
        Says whether to give up.
    """

    def __init__(self, lane: Lane, count: int, is_stopped: Callable[[], bool]) -> None:
        self._lane, self._count, self._is_stopped = lane, count, is_stopped
        self._slabs: list[Slab] = []

    def take(self, size: int) -> Slab:
        """Return a slab of at least so many bytes that nothing reads.

        Raises
        ------
        StoppedError
            If it is not wanted any more.
        """
        free = self._await_free()
        if fitting := [slab for slab in free if len(slab.memory) >= size]:
            return min(fitting, key=lambda slab: len(slab.memory))
        if free and len(self._slabs) == self._count:
            self._slabs.remove(free[0])  # too small: torch's allocator has it again
        slab = Slab(self._memory(size))
        self._slabs.append(slab)
        return slab

    def _await_free(self) -> list[Slab]:
        """Return the slabs that are free; none is needed where there may be one more."""
        begin, pause, report = time.monotonic(), FIRST_LOOK, REPORT_EVERY
        while True:
            free = [slab for slab in self._slabs if slab.is_free()]
            if free or len(self._slabs) < self._count:
                return free
            if self._is_stopped():
                raise StoppedError
            if (waited := time.monotonic() - begin) >= report:
                _log.warning("the copies of %d slabs are not done for %.0f s", self._count, waited)
                report += REPORT_EVERY
            time.sleep(pause)
            pause = min(2 * pause, LAST_LOOK)

    def _memory(self, size: int) -> Any:
        import torch

        # torch takes as much anyway, and the next batch may be a bit larger.
        memory = self._lane.pinned(rounded(size))
        return torch.empty(size, dtype=torch.uint8, device="cpu") if memory is None else memory
