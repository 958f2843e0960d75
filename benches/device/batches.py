"""The batches that go to the device, from about 1 MB to 1 GB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fastcollate as fc
from common.report import Effort
from common.workload import Rollouts, long_rollouts

ROWS = (6, 60, 600, 6_000)


def all_rollouts(effort: Effort) -> list[Rollouts]:
    """Make the rows of each batch."""
    return [long_rollouts(rows) for rows in ((2, 4) if effort.is_smoke else ROWS)]


def build(rows: Rollouts, **options: Any) -> fc.Batch:
    """Build a batch of tensors."""
    return fc.build_batch(**rows, pad_token_id=0, array_type="torch", **options)


def bytes_of(batch: Mapping[str, Any]) -> int:
    """Return the bytes of a batch's tensors."""
    return sum(tensor.nbytes for tensor in batch.values())


def size_text(size: float) -> str:
    """Write a number of bytes with three digits."""
    for unit in ("B", "kB", "MB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1e3
    return f"{size:.3g} GB"
