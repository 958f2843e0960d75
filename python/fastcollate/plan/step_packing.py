"""Bins of a step: the rows of each mini-batch are packed, and the bins dealt out to ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcollate import _fastcollate
from fastcollate.arguments import checked_count, counted
from fastcollate.arrays import describe, offsets_of
from fastcollate.plan.bin_plan import BinPlan
from fastcollate.plan.costs import costs_of
from fastcollate.plan.lengths import Integers
from fastcollate.plan.packing import checked_options
from fastcollate.plan.packing import pack as pack_bins

MAX_BINS = 1 << 24
"""How many bins all mini-batches together may have for the sake of their number."""


class PackedSlots(NamedTuple):
    """The slots of a step, ordered by mini-batch, rank, bin and place."""

    rows: Integers
    """The row in each slot; -1 is a synthetic one."""
    is_padding: NDArray[np.bool_]
    mini_batch_offsets: Integers
    bin_offsets: Integers
    pad_to_multiple_of: int


def checked_pack_options(pack: Any) -> dict[str, Any]:
    """Check what can be said of a step's options of packing before there are lengths."""
    if not isinstance(pack, Mapping):
        advice = "pass options of fastcollate.planning.pack, such as dict(capacity=16384)"
        raise TypeError(f"pack is {describe(pack)}; {advice}")
    options = checked_options(pack)
    if "keep_together" in options:
        raise ValueError("keep_together is an argument of plan_step itself; leave it out of pack")
    if options.get("algorithm") == "concat" or options.get("oversize") == "split":
        raise ValueError(
            "pack splits rows, parts of which could be on several ranks; in a step pass an "
            "algorithm that does not, and oversize='error' or 'own_bin'"
        )
    return options


def packed_slots(
    lengths: Integers,
    mini_batches: Integers,
    dp_size: int,
    options: Mapping[str, Any],
    groups: Integers | None,
    may_pad: bool,
) -> PackedSlots:
    """Pack the rows of each mini-batch, and deal the bins out: each rank the next one.

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
    options = dict(options)
    bins_multiple_of = options.pop("bins_multiple_of", 1)
    bins_multiple_of = checked_count("bins_multiple_of", bins_multiple_of, "a number of bins")
    multiple = math.lcm(dp_size, bins_multiple_of)
    min_bins = checked_count("min_bins", options.pop("min_bins", 0), "a number of bins", least=0)
    if max(multiple, min_bins) * (len(mini_batches) - 1) > MAX_BINS:
        raise ValueError(
            f"pack asks for multiples of {multiple} bins and at least {min_bins} in every "
            "mini-batch, which are more than can be made; pass smaller numbers"
        )
    if options.get("max_cost") is not None:
        options["cost"] = costs_of("cost", options.get("cost", "flops"), lengths)
    names = None
    if groups is not None:
        names = np.repeat(np.arange(len(groups) - 1), np.diff(groups))

    rows, counts_of_bins, ends = [], [], [0]
    plan = None
    for mini_batch, (start, end) in enumerate(
        zip(mini_batches[:-1].tolist(), mini_batches[1:].tolist(), strict=True)
    ):
        part = slice(start, end)
        own = {**options, "keep_together": None if names is None else names[part]}
        if "cost" in own and not isinstance(own["cost"], str):
            own["cost"] = own["cost"][part]
        try:
            plan, missing = _packed(lengths[part], own, min_bins, multiple)
        except ValueError as error:
            where = f"mini-batch {mini_batch}, rows {start} to {end - 1}, cannot be packed"
            counting = f" (numbers count from row {start} on)" if start > 0 else ""
            raise ValueError(f"{where}{counting}: {error}") from error
        if missing > 0 and not may_pad:
            raise ValueError(
                f"pad_rows is 'error', but mini-batch {mini_batch} has only "
                f"{counted(plan.num_bins, 'sequence')} to be packed apart, for "
                f"{counted(plan.num_bins + missing, 'bin')}; pass larger mini-batches, or allow "
                "padding"
            )
        of_bins, counts = _fastcollate.deal_bins(plan.offsets, plan.indices, missing, dp_size)
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
        plan.pad_to_multiple_of,
    )


def _packed(
    lengths: Integers, options: Mapping[str, Any], min_bins: int, multiple: int
) -> tuple[BinPlan, int]:
    """Pack as many bins as there have to be, and say how many are missing for too few sequences."""
    plan = pack_bins(lengths, **options)
    wanted = -(-max(plan.num_bins, min_bins) // multiple) * multiple
    if wanted > plan.num_bins:
        names = options["keep_together"]
        items = len(lengths) if names is None else len(np.unique(names))
        plan = pack_bins(lengths, **options, min_bins=min(wanted, items))
    return plan, wanted - plan.num_bins
