"""The time to build a batch into pinned memory."""

from __future__ import annotations

from functools import partial

import fastcollate as fc
from common.report import Effort, Figures
from common.workload import Rollouts
from device.batches import build, bytes_of
from device.machines import Machine


def of_pinning(effort: Effort, machine: Machine, rows: Rollouts) -> Figures:
    """Measure building from arrays, into new or used memory."""
    pool = fc.memory.BufferPool(max_bytes=4 << 30)
    pinned = partial(build, rows, pool="pinned")
    times = effort.run(
        {
            "pageable, first": partial(build, rows, pool=None),
            "pageable, recycled": partial(build, rows, pool=pool),
            "pinned, first": pinned,
            "pinned, recycled": pinned,
        },
        # The previous call may have freed the memory that this one reuses.
        prepare={"pinned, first": machine.unpin, "pinned, recycled": lambda: bytes_of(pinned())},
    )
    return {"bytes": float(bytes_of(pinned())), **times}
