"""Padding a batch on the device, against padding it on the host."""

from __future__ import annotations

from functools import partial

import fastcollate as fc
from common.report import Effort, Figures
from common.workload import Rollouts
from device.batches import build
from device.copying import one_copy
from device.machines import Machine


def of_padding(effort: Effort, machine: Machine, rows: Rollouts) -> Figures:
    """Measure both, with the time to build the batches and without."""
    build_jagged = partial(build, rows, layout="jagged", dtypes="compact", pool="pinned")
    build_padded = partial(build, rows, pool="pinned")
    jagged, padded = build_jagged(), build_padded()

    def there(batch: fc.Batch) -> fc.Batch:
        moved = batch.to(machine.device, non_blocking=True).pad_on_device("left")
        machine.wait()
        return moved

    times = effort.run(
        {
            "padded there": partial(there, jagged),
            "padded here": partial(one_copy, padded, machine),
            "built and padded there": lambda: there(build_jagged()),
            "built and padded here": lambda: one_copy(build_padded(), machine),
        }
    )
    return {
        "bytes": one_copy(padded, machine).metrics["handover/bytes"],
        "jagged bytes": one_copy(jagged, machine).metrics["handover/bytes"],
        **times,
    }
