"""Bins of a step: packing of each mini-batch, and assignment of bins to ranks."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcollate._fastcollate import SYNTHETIC_LENS
from fastcollate.arguments import counted
from fastcollate.arrays import offsets_of
from fastcollate.plan.costs import costs_of
from fastcollate.plan.layouts import Layout, Packed, Tree
from fastcollate.plan.lengths import Integers
from fastcollate.plan.packing import Packer

MAX_BINS = 1 << 24
"""Limit of the bins of a step required by ``min_bins``, multiples and ranks."""


class PackedSlots(NamedTuple):
    """The slots of a step, ordered by mini-batch, rank, bin and position."""

    rows: Integers
    """The row in each slot; -1 for a synthetic one."""
    is_padding: NDArray[np.bool_]
    mini_batch_offsets: Integers
    bin_offsets: Integers
    shared: Integers | None = None
    """In trees, the number of tokens each row shares with the one before it in its bin."""


def checked_packer(layout: Layout | None) -> Packer | None:
    """Return the packer of mini-batches, if a step's layout has bins."""
    if isinstance(layout, Tree) and layout.capacity is not None:
        return layout.packer
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
    pad_rows: str,
    shard_by: Any,
) -> PackedSlots:
    """Pack the rows of each mini-batch into the same number of bins for every rank.

    Parameters
    ----------
    lengths
        Tokens of rows, int64 (rows,).
    mini_batches
        Offsets of mini-batches in rows, with the end of the last.
    groups
        Offsets of groups whose rows share a bin. Mini-batches begin at the start of a group.
    pad_rows
        Contents of bins without a row; ``"error"`` forbids them.
    shard_by
        Assignment of bins to ranks: ``"contiguous"``, ``"strided"`` or costs.
    """
    multiple = bins_multiple(packer, dp_size, len(mini_batches) - 1)
    limited = packer.costs(lengths)
    costs, synthetic_cost = sharding_costs(shard_by, lengths, pad_rows)
    numbers = None
    if groups is not None:
        numbers = np.repeat(np.arange(len(groups) - 1), np.diff(groups))
    num_bins = None if packer.num_bins is None else packer.num_bins * dp_size
    spec = packer._replace(bins_multiple_of=multiple, num_bins=num_bins).spec

    rows, counts_of_bins, ends = [], [], [0]
    for mini_batch, (start, end) in enumerate(
        zip(mini_batches[:-1].tolist(), mini_batches[1:].tolist(), strict=True)
    ):
        part = slice(start, end)
        try:
            of_bins, counts, filled = spec.pack_for_ranks(
                lengths[part],
                None if numbers is None else numbers[part] - numbers[start],
                None if limited is None else limited[part],
                None if costs is None else costs[part],
                synthetic_cost,
                isinstance(shard_by, str) and shard_by == "strided",
                dp_size,
            )
        except ValueError as error:
            where = f"mini-batch {mini_batch}, rows {start} to {end - 1}, cannot be packed"
            counting = f" (lengths[0] is that of row {start})" if start > 0 else ""
            raise ValueError(f"{where}{counting}: {error}") from error
        check_filled(pad_rows, mini_batch, filled, len(counts))
        rows.append(np.where(of_bins < 0, -1, of_bins + start))
        counts_of_bins.append(counts)
        ends.append(ends[-1] + len(of_bins))
    slots = np.concatenate(rows)
    return PackedSlots(
        slots,
        slots < 0,
        np.array(ends, np.int64),
        offsets_of(np.concatenate(counts_of_bins)),
    )


def bins_multiple(packer: Packer, dp_size: int, mini_batches: int) -> int:
    """Return the multiple of a mini-batch's number of bins, after checking `MAX_BINS`."""
    multiple = math.lcm(dp_size, packer.bins_multiple_of)
    least = max(multiple, packer.min_bins, dp_size * (packer.num_bins or 1))
    if least * mini_batches > MAX_BINS:
        raise ValueError(
            f"every mini-batch needs a multiple of {multiple} bins (by dp_size and "
            f"bins_multiple_of) and at least {least} (min_bins, num_bins), but a step has at most "
            f"{MAX_BINS:,} bins; pass smaller numbers"
        )
    return multiple


def check_filled(pad_rows: str, mini_batch: int, filled: int, needed: int) -> None:
    """Check that a mini-batch's rows fill its bins, or that padding rows are allowed."""
    if filled < needed and pad_rows == "error":
        raise ValueError(
            f"pad_rows is 'error', but mini-batch {mini_batch} fills only "
            f"{counted(filled, 'bin')} and needs {needed}; pass larger mini-batches, or "
            "pad_rows='synthetic'"
        )


def sharding_costs(
    shard_by: Any, lengths: Integers, pad_rows: str
) -> tuple[NDArray[np.float64] | None, float]:
    """Return the costs of rows and of a synthetic row, if ranks are balanced by cost."""
    if isinstance(shard_by, str) and shard_by in ("contiguous", "strided"):
        return None, 0.0
    costs = costs_of("shard_by", shard_by, lengths)
    if pad_rows != "synthetic":
        return costs, 0.0
    synthetic = np.array([sum(SYNTHETIC_LENS)], np.int64)
    return costs, float(costs_of("shard_by", shard_by, synthetic)[0])
