"""Trees of a step: packing of each mini-batch, and assignment of bins to ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcollate import _fastcollate
from fastcollate._fastcollate import PrefixTree
from fastcollate.arrays import offsets_of
from fastcollate.plan.costs import Costs, costs_of
from fastcollate.plan.layouts import Tree
from fastcollate.plan.lengths import Integers
from fastcollate.plan.packing import Packer
from fastcollate.plan.step_packing import (
    PackedSlots,
    bins_multiple,
    check_filled,
    sharding_costs,
)
from fastcollate.plan.tree_plan import TreePlan


def check_tree(layout: Tree, rows: Any, keep_together: str | None) -> None:
    """Check that a step with the layout `Tree` has one source of shared tokens."""
    if not isinstance(rows, TreePlan):
        raise TypeError(
            f"layout is {layout!r}, but rows says nothing of shared tokens; pass "
            "rows=fc.planning.prefix_tree(prompts, responses)"
        )
    given = layout.plan is not None, layout.share != "all"
    if any(given):
        name = ("plan", "share")[given.index(True)]
        raise ValueError(
            f"layout has a {name}, but rows says what a step's rows share; leave {name} out of "
            "the layout, or pass it to fc.planning.prefix_tree"
        )
    if layout.capacity is None:
        raise ValueError("layout has no capacity, which bins need; pass fc.Tree(capacity=...)")
    if keep_together is not None:
        raise ValueError(
            f"keep_together is {keep_together!r}, but a tree keeps those rows together that share "
            "tokens; leave keep_together out, or pass layout=fc.Packed(capacity=...)"
        )


def tree_slots(
    tree: TreePlan,
    mini_batches: Integers,
    dp_size: int,
    packer: Packer,
    pad_rows: str,
    shard_by: Any,
) -> PackedSlots:
    """Pack the trees of each mini-batch into the same number of bins for every rank.

    Rows of different mini-batches share nothing.

    Parameters
    ----------
    mini_batches
        Offsets of mini-batches in rows, with the end of the last.
    pad_rows
        Contents of bins without a row; ``"error"`` forbids them.
    shard_by
        Assignment of bins to ranks: ``"contiguous"``, ``"strided"`` or costs.
    """
    multiple = bins_multiple(packer, dp_size, len(mini_batches) - 1)
    lengths = tree.lengths
    costs, synthetic_cost = sharding_costs(shard_by, lengths, pad_rows)
    all_rows, all_shared, counts, ends = [], [], [], [0]
    for mini_batch, part in enumerate(tree._core.parted(mini_batches)):
        start, end = mini_batches[mini_batch : mini_batch + 2].tolist()
        try:
            offsets, rows, shared, missing = _packed(part, packer, multiple, end - start)
        except ValueError as error:
            where = f"mini-batch {mini_batch}, rows {start} to {end - 1}, cannot be packed"
            raise ValueError(f"{where}: {error}") from error
        filled = len(offsets) - 1
        check_filled(pad_rows, mini_batch, filled, filled + missing)
        rows = np.append(rows, np.full(missing, -1))
        shared = np.append(shared, np.zeros(missing, np.int64))
        offsets = np.append(offsets, offsets[-1] + np.arange(1, missing + 1))
        bin_costs = None
        if costs is not None:
            added = costs[rows] - _cost_of_shared(shard_by, shared)
            added[rows < 0] = synthetic_cost
            bin_costs = np.add.reduceat(np.maximum(added, 0), offsets[:-1])
        bins = _bins_of_ranks(len(offsets) - 1, bin_costs, shard_by, dp_size)
        sizes = np.diff(offsets)[bins]
        places = np.repeat(offsets[bins] - offsets_of(sizes)[:-1], sizes) + np.arange(len(rows))
        all_rows.append(rows[places])
        all_shared.append(shared[places])
        counts.append(sizes)
        ends.append(ends[-1] + len(rows))
    slots = np.concatenate(all_rows)
    return PackedSlots(
        slots,
        slots < 0,
        np.array(ends, np.int64),
        offsets_of(np.concatenate(counts)),
        np.concatenate(all_shared),
    )


def _packed(
    tree: PrefixTree, packer: Packer, multiple: int, num_rows: int
) -> tuple[Integers, Integers, Integers, int]:
    """Pack into the required number of bins, and return the number missing for lack of rows."""
    freely = packer._replace(min_bins=0, bins_multiple_of=1)
    packed = tree.pack(freely.spec)
    filled = len(packed[0]) - 1
    wanted = -(-max(filled, packer.min_bins) // multiple) * multiple
    if wanted > filled:
        packed = tree.pack(freely._replace(min_bins=min(wanted, num_rows)).spec)
    offsets, rows, shared = packed
    return offsets, rows, shared, wanted - len(offsets) + 1


def _cost_of_shared(shard_by: Any, shared: Integers) -> NDArray[np.float64]:
    """Return the cost of shared tokens, which rows do not compute again."""
    found = np.zeros(len(shared))
    is_shared = shared > 0
    if is_shared.any():
        found[is_shared] = costs_of("shard_by", shard_by, shared[is_shared])
        if isinstance(shard_by, Costs):
            found[is_shared] -= shard_by.per_sequence
    return found


def _bins_of_ranks(
    count: int, costs: NDArray[np.float64] | None, shard_by: Any, dp_size: int
) -> Integers:
    """Return the bins of all ranks, concatenated."""
    if costs is not None:
        return _fastcollate.deal_bins(costs, dp_size)
    bins: Integers = np.arange(count, dtype=np.int64)
    return bins.reshape(-1, dp_size).T.reshape(-1) if shard_by == "strided" else bins
