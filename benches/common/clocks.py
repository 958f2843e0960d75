"""Clocks: the processor's clock, or events on a GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol


class Clock(Protocol):
    """Measures when a device reaches a mark in its queue."""

    device: str

    def now(self) -> Any:
        """Mark the end of the queue."""

    def between(self, begin: Any, end: Any) -> float:
        """Return the seconds from one mark to another, after the device reaches the last."""

    def wait(self) -> None:
        """Wait until the device has finished its queue."""


class HostClock:
    """The clock of a synchronous device."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def now(self) -> float:
        """Return the time."""
        return time.perf_counter()

    def between(self, begin: float, end: float) -> float:
        """Subtract."""
        return end - begin

    def wait(self) -> None:
        """Do nothing."""


class GpuClock:
    """The clock of the current GPU, which is asynchronous."""

    device = "cuda"

    def now(self) -> Any:
        """Record an event on the current stream."""
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, begin: Any, end: Any) -> float:
        """Wait for the last event, and return the time between both."""
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def wait(self) -> None:
        """Wait for all streams."""
        import torch

        torch.cuda.synchronize()


def seconds_of(clock: Clock, call: Callable[[], object], repeats: int = 5) -> float:
    """Return the median seconds of a call, until the device has finished it."""
    times = []
    for _ in range(1 + repeats):  # the first one warms up
        begin = clock.now()
        call()
        times.append(clock.between(begin, clock.now()))
    return statistics.median(times[1:])
