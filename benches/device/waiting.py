"""The share of a training loop's time that the device waits for batches."""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

import fastcollate as fc
from common.clocks import Clock, seconds_of
from common.report import Effort, Figures
from common.workload import Rollouts
from device.batches import build, bytes_of
from device.machines import Machine

FACTORS = (1, 2, 5)
"""Times of a step, relative to the time of its batch without prefetching."""

WARM_UP = 3
"""Steps that are not counted: memory is taken, and processes start."""

WIDTHS, LEAST = (8192, 4096, 2048, 1024, 512, 256), 8
"""Widths of the matrices, and the least number of multiplications of all steps but the smallest."""

SHARED_MEMORY = Path("/dev/shm")
"""The folder of the memory that workers send, on Linux."""

WORKERS = min(4, os.cpu_count() or 1)
"""Processes of a DataLoader."""

Loop = Callable[[int], AbstractContextManager[Iterator[Any]]]
"""From a number of batches to what gives them on the device."""


def of_waiting(effort: Effort, machine: Machine, rows: Rollouts) -> Iterator[tuple[str, Figures]]:
    """Measure loops over an existing batch, and over batches that are built.

    Yields the name of the case, and the figures of each length of step.
    """
    ready = build(rows, pool="pinned")
    size = bytes_of(ready)
    for source, loops in loops_of(machine, rows, ready).items():
        with loops["without"](9) as batches:
            alone = seconds_of(machine, partial(next, batches))
        for factor in FACTORS[:1] if effort.is_smoke else FACTORS:
            step = step_of(machine, factor * alone)
            seconds = seconds_of(machine, step)
            count = 2 if effort.is_smoke else min(max(int(1 / seconds), 5), 30)
            shares: dict[str, list[float]] = {name: [] for name in loops}
            for _ in range(1 if effort.is_smoke else 3):
                for name, loop in loops.items():
                    with loop(WARM_UP + count) as batches:
                        shares[name].append(waiting_share(machine, batches, step))
            medians = {name: statistics.median(values) for name, values in shares.items()}
            about = {"bytes": float(size), "factor": float(factor), "step": seconds}
            yield source, about | medians


def waiting_share(clock: Clock, batches: Iterator[Any], step: Callable[[], None]) -> float:
    """Return the share of the time in which the device has no step to do.

    The host waits for the step before the current one, like a loop that logs losses one step late:
    it is never far ahead of the device, and the device is busy meanwhile.
    """
    spans: list[tuple[Any, Any]] = []
    for batch in batches:
        begin = clock.now()
        step()
        spans.append((begin, clock.now()))
        del batch
        if len(spans) > 1:
            clock.between(*spans[-2])
    whole = clock.between(spans[WARM_UP - 1][1], spans[-1][1])
    return 1 - sum(clock.between(*span) for span in spans[WARM_UP:]) / whole


def step_of(clock: Clock, seconds: float) -> Callable[[], None]:
    """Return a call that multiplies matrices on the device for about the given time.

    They are as large as possible with several to a step, so the host has little to do.
    """
    for width in WIDTHS:
        matrix = torch.ones(width, width, device=clock.device)
        multiply = partial(torch.mm, matrix, matrix, out=torch.empty_like(matrix))
        each = seconds_of(clock, partial(times, LEAST, multiply)) / LEAST
        if LEAST * each <= seconds:
            break
    return partial(times, max(round(seconds / each), 1), multiply)


def times(count: int, call: Callable[[], object]) -> None:
    """Call repeatedly."""
    for _ in range(count):
        call()


# Loops


def loops_of(machine: Machine, rows: Rollouts, ready: fc.Batch) -> dict[str, dict[str, Loop]]:
    """Return all loops, by the source of batches and by name."""
    build_pinned = partial(build, rows, pool="pinned")
    loops: dict[str, dict[str, Loop]] = {}
    for source, make in {"copied": lambda: ready, "built": build_pinned}.items():
        loops[source] = {
            "without": partial(one_by_one, machine, make),
            "prefetch": partial(prefetched, machine, make),
        }
    if has_room_for(bytes_of(ready)):
        loops["built"]["DataLoader"] = partial(loaded, machine, rows)
    return loops


def one_by_one(
    machine: Machine, make: Callable[[], fc.Batch], count: int
) -> AbstractContextManager[Iterator[fc.Batch]]:
    """Make and copy each batch on demand."""
    return nullcontext(make().to(machine.device, non_blocking=True) for _ in range(count))


def prefetched(
    machine: Machine, make: Callable[[], fc.Batch], count: int
) -> AbstractContextManager[Iterator[fc.Batch]]:
    """Make and copy batches while earlier ones are used."""
    return fc.prefetch((make() for _ in range(count)), machine.device)


def loaded(
    machine: Machine, rows: Rollouts, count: int
) -> AbstractContextManager[Iterator[dict[str, Any]]]:
    """Let torch's workers make batches, and copy each tensor on demand."""
    loader = DataLoader(
        Made(rows, count),
        batch_size=None,
        num_workers=WORKERS,
        pin_memory=machine.device == "cuda",
    )
    return nullcontext(
        {key: value.to(machine.device, non_blocking=True) for key, value in batch.items()}
        for batch in loader
    )


class Made:
    """A torch dataset that builds batches on demand."""

    def __init__(self, rows: Rollouts, count: int) -> None:
        self._rows, self._count = rows, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Build a batch."""
        return dict(build(self._rows))


def has_room_for(size: int) -> bool:
    """Return True if workers can send batches of this size; otherwise they are killed."""
    if not SHARED_MEMORY.exists():
        return True
    return 3 * WORKERS * size < shutil.disk_usage(SHARED_MEMORY).free  # each is two batches ahead
