"""The time to copy a batch to the device."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

import fastcollate as fc
from common.report import Effort, Figures
from common.workload import Rollouts
from device.batches import build
from device.machines import Machine


def of_copying(effort: Effort, machine: Machine, rows: Rollouts) -> Figures:
    """Measure one copy per batch, one per tensor, and the rate of the bus: one pinned block."""
    pinned, pageable = build(rows, pool="pinned"), build(rows)
    size = int(pinned.to(machine.device).metrics["handover/bytes"])
    block = machine.pinned(size)
    target = torch.empty(size, dtype=torch.uint8, device=machine.device)

    def bus() -> None:
        target.copy_(block, non_blocking=True)
        machine.wait()

    times = effort.run(
        {
            "bus": bus,
            "one copy, pinned": partial(one_copy, pinned, machine),
            "per tensor, pinned": partial(per_tensor, pinned, machine),
            "one copy, pageable": partial(one_copy, pageable, machine),
            "per tensor, pageable": partial(per_tensor, pageable, machine),
        }
    )
    return {"bytes": float(size), **times}


def one_copy(batch: fc.Batch, machine: Machine) -> fc.Batch:
    """Copy a batch, and wait for it."""
    moved = batch.to(machine.device, non_blocking=True)
    machine.wait()
    return moved


def per_tensor(batch: fc.Batch, machine: Machine) -> dict[str, Any]:
    """Copy each tensor, and wait for all."""
    moved = {key: value.to(machine.device, non_blocking=True) for key, value in batch.items()}
    machine.wait()
    return moved
