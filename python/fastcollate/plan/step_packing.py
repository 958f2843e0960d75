"""Bins of a step: the rows of each mini-batch are packed, and the bins assigned to ranks."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcollate import _fastcollate
from fastcollate.arguments import counted
from fastcollate.arrays import offsets_of
from fastcollate.plan.bin_plan import BinPlan
from fastcollate.plan.layouts import Layout, Packed
from fastcollate.plan.lengths import Integers
from fastcollate.plan.packing import Packer

MAX_BINS = 1 << 24
"""How many bins all mini-batches together may have for the sake of their number."""


class PackedSlots(NamedTuple):
    """The slots of a step, ordered by mini-batch, rank, bin and place."""

    rows: Integers
    """The row in each slot; -1 is a synthetic one."""
    is_padding: NDArray[np.bool_]
    mini_batch_offsets: Integers
    bin_offsets: Integers


def checked_packer(layout: Layout | None) -> Packer | None:
    """Return what packs the rows of a mini-batch, if a step's layout has bins."""
    if not isinstance(layout, Packed) or layout.plan == "single_row":
        return None
    if layout.plan is not None:
        raise ValueError(
            "layout has a plan of bins, but a step packs each mini-batch by itself; pass "
            "layout=fc.Packed(capacity=...)"
        )
    packer = layout.packer
    if packer.oversize == "split":
        raise ValueError(
            f"layout is {layout!r}, which splits rows, but each row of a step belongs to one rank; "
            "pass oversize='error' or 'own_bin', and an algorithm other than 'concat'"
        )
    return packer


def packed_slots(
    lengths: Integers,
    mini_batches: Integers,
    dp_size: int,
    packer: Packer,
    groups: Integers | None,
    may_pad: bool,
) -> PackedSlots:
    """Pack the rows of each mini-batch, and assign the bins: each rank the next one.

    Parameters
    ----------
    lengths
        Tokens of rows, int64 (rows,).
    mini_batches
        Where mini-batches begin, and where the last ends, in rows.
    groups
        Where groups begin whose rows share a bin. Mini-batches begin where groups do.
    may_pad
        Whether a bin may hold a synthetic row alone.
    """
    multiple = math.lcm(dp_size, packer.bins_multiple_of)
    if max(multiple, packer.min_bins) * (len(mini_batches) - 1) > MAX_BINS:
        raise ValueError(
            f"every mini-batch needs a multiple of {multiple} bins (by dp_size and "
            f"bins_multiple_of) and at least {packer.min_bins} (min_bins), but a step has at most "
            f"{MAX_BINS:,} bins; pass smaller numbers"
        )
    costs = packer.costs(lengths)
    numbers = None
    if groups is not None:
        numbers = np.repeat(np.arange(len(groups) - 1), np.diff(groups))

    rows, counts_of_bins, ends = [], [], [0]
    plan = None
    for mini_batch, (start, end) in enumerate(
        zip(mini_batches[:-1].tolist(), mini_batches[1:].tolist(), strict=True)
    ):
        part = slice(start, end)
        of_mini_batch = packer if costs is None else packer._replace(cost=costs[part])
        of_part = None if numbers is None else numbers[part] - numbers[start]
        try:
            plan, missing = _packed(lengths[part], of_mini_batch, of_part, multiple)
        except ValueError as error:
            where = f"mini-batch {mini_batch}, rows {start} to {end - 1}, cannot be packed"
            counting = f" (lengths[0] is that of row {start})" if start > 0 else ""
            raise ValueError(f"{where}{counting}: {error}") from error
        if missing > 0 and not may_pad:
            raise ValueError(
                f"pad_rows is 'error', but mini-batch {mini_batch} fills only "
                f"{counted(plan.num_bins, 'bin')} and needs {plan.num_bins + missing}; pass larger "
                "mini-batches, or pad_rows='synthetic'"
            )
        of_bins, counts = _fastcollate.assign_bins(plan.offsets, plan.indices, missing, dp_size)
        rows.append(np.where(of_bins < 0, -1, of_bins + start))
        counts_of_bins.append(counts)
        ends.append(ends[-1] + len(of_bins))
    assert plan is not None
    slots = np.concatenate(rows)
    return PackedSlots(
        slots,
        slots < 0,
        np.array(ends, np.int64),
        offsets_of(np.concatenate(counts_of_bins)),
    )


def _packed(
    lengths: Integers, packer: Packer, groups: Integers | None, multiple: int
) -> tuple[BinPlan, int]:
    """Pack as many bins as there have to be, and say how many are missing for too few sequences."""
    freely = packer._replace(min_bins=0, bins_multiple_of=1)
    plan = freely.plan(lengths, groups)
    wanted = -(-max(plan.num_bins, packer.min_bins) // multiple) * multiple
    if wanted > plan.num_bins:
        items = len(lengths) if groups is None else int(groups[-1]) + 1
        plan = freely._replace(min_bins=min(wanted, items)).plan(lengths, groups)
    return plan, wanted - plan.num_bins
