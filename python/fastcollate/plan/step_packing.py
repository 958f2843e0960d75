"""Bins of a step: packing of each mini-batch, and assignment of bins to ranks."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcollate._fastcollate import SYNTHETIC_LENS
from fastcollate.common.arguments import tally
from fastcollate.common.arrays import offsets_of
from fastcollate.plan.binned import BinnedLayout
from fastcollate.plan.costs import Costs, costs_of
from fastcollate.plan.layout import Layout
from fastcollate.plan.layouts import Tree
from fastcollate.plan.tree_plan import TreePlan
from fastcollate.rows.lengths import Integers

MAX_BINS = 1 << 24
"""Limit of the bins of a step required by ``min_bins``, multiples and ranks."""


def check_bins(layout: Layout | None) -> BinnedLayout | None:
    """Return a step's layout if it packs mini-batches."""
    if not isinstance(layout, BinnedLayout) or layout.plan == "single_row":
        return None
    if isinstance(layout, Tree):
        return None if layout.capacity is None else layout
    if layout.packer is None:
        raise ValueError(
            "layout has a plan of bins, but a step packs each mini-batch by itself; pass "
            "layout=fc.Packed(capacity=...)"
        )
    if layout.packer.oversize == "split":
        raise ValueError(
            f"layout is {layout!r}, which splits rows, but each row of a step belongs to one rank; "
            "pass oversize='error' or 'own_bin', and an algorithm other than 'concat'"
        )
    return layout


def check_tree(layout: Tree, rows: Any, keep_together: str | None) -> None:
    """Check that a step with the layout `Tree` has one source of shared tokens."""
    if not isinstance(rows, TreePlan):
        merge = ", merge=plan" if hasattr(rows, "turn_rows") else ""
        raise TypeError(
            f"layout is {layout!r}, but rows has no shared tokens; pass "
            f"rows=fc.planning.prefix_tree(prompts, responses{merge})"
        )
    given = layout.plan is not None, layout.share != "all"
    if any(given):
        name = ("plan", "share")[given.index(True)]
        raise ValueError(
            f"layout has a {name}, but rows already has the shared tokens; leave {name} out of "
            "the layout, or pass it to fc.planning.prefix_tree"
        )
    if layout.capacity is None:
        raise ValueError("layout has no capacity, which bins need; pass fc.Tree(capacity=...)")
    if keep_together is not None:
        raise ValueError(
            f"keep_together is {keep_together!r}, but a tree keeps rows that share tokens "
            "together; leave keep_together out, or pass layout=fc.Packed(capacity=...)"
        )


def pack_slots(
    tree: TreePlan | None,
    lengths: Integers,
    mini_batches: Integers,
    dp_size: int,
    layout: BinnedLayout,
    groups: Integers | None,
    pad_rows: str,
    shard_by: Any,
) -> dict[str, Any]:
    """Pack the rows of each mini-batch into the same number of bins for every rank.

    Returns the tables of slots that a :class:`StepPlan` has, by name.

    Parameters
    ----------
    tree
        The tokens that rows share, if any. Rows of different mini-batches share nothing.
    lengths
        Tokens of rows, int64 (rows,).
    mini_batches
        Offsets of mini-batches in rows, with the end of the last.
    layout
        A layout that :func:`checked_bins` returned.
    groups
        Offsets of groups whose rows share a bin. Mini-batches begin at the start of a group.
    pad_rows
        Contents of bins without a row; ``"error"`` forbids them.
    shard_by
        Assignment of bins to ranks: ``"contiguous"``, ``"strided"`` or costs.
    """
    _check_number_of_bins(layout, dp_size, len(mini_batches) - 1)
    _, is_strided, costs, synthetic_cost = ranks_of(dp_size, shard_by, lengths, pad_rows)
    spec = layout.packer
    assert spec is not None
    if tree is None:
        limited = layout.packing_costs(lengths)
        numbers = None
        if groups is not None:
            numbers = np.repeat(np.arange(len(groups) - 1), np.diff(groups))
    else:
        parts = tree._core.parted(mini_batches)
        costs_of_shared = _costs_of_shared(None if costs is None else shard_by, tree.shared)

    found, ends = [], [0]
    for mini_batch, (start, end) in enumerate(pairwise(mini_batches.tolist())):
        part = slice(start, end)
        own_costs = None if costs is None else costs[part]
        ranks = (dp_size, is_strided, own_costs, synthetic_cost)
        try:
            if tree is None:
                rows, counts, filled = spec.pack_for_ranks(
                    lengths[part],
                    None if numbers is None else numbers[part] - numbers[start],
                    None if limited is None else limited[part],
                    start,
                    ranks,
                )
                rows, shared = np.where(rows < 0, -1, rows + start), rows[:0]
            else:
                rows, counts, filled, shared = parts[mini_batch].pack_for_ranks(
                    spec, *costs_of_shared, ranks
                )
        except ValueError as error:
            where = f"mini-batch {mini_batch}, rows {start} to {end - 1}, cannot be packed"
            raise ValueError(f"{where}: {error}") from error
        if filled < len(counts) and pad_rows == "error":
            raise ValueError(
                f"pad_rows is 'error', but mini-batch {mini_batch} fills only "
                f"{tally(filled, 'bin')} and needs {len(counts)}; pass larger mini-batches, or "
                "pad_rows='synthetic'"
            )
        found.append((rows, counts, shared))
        ends.append(ends[-1] + len(rows))
    slots, all_counts, all_shared = map(np.concatenate, zip(*found, strict=True))
    return {
        "rows": slots,
        "is_padding": slots < 0,
        "mini_batch_offsets": np.array(ends, np.int64),
        "bin_offsets": offsets_of(all_counts),
        "shared": None if tree is None else all_shared,
    }


def _check_number_of_bins(layout: BinnedLayout, dp_size: int, mini_batches: int) -> None:
    """Check a step's number of bins against `MAX_BINS`."""
    num_bins = getattr(layout, "num_bins", None) or 1
    multiple = math.lcm(dp_size, layout.bins_multiple_of)
    least = max(multiple, layout.min_bins, dp_size * num_bins)
    if least * mini_batches > MAX_BINS:
        raise ValueError(
            f"every mini-batch needs a multiple of {multiple} bins (by dp_size and "
            f"bins_multiple_of) and at least {least} (min_bins, num_bins), but a step has at most "
            f"{MAX_BINS:,} bins; pass smaller numbers"
        )


def _costs_of_shared(
    shard_by: Any, shared: Integers
) -> tuple[Integers, NDArray[np.float64], float]:
    """Return the numbers of shared tokens, what rows save by sharing them, and a bin's own cost."""
    if shared.max(initial=0) <= 64 * len(shared):
        shared = np.flatnonzero(np.bincount(shared)[1:]) + 1  # an eighth of the time
    else:
        shared = np.unique(shared[shared > 0])
    if shard_by is None:
        return shared, np.zeros(len(shared)), 0.0
    if isinstance(shard_by, Costs):
        return shared, shard_by.of_shared(shared), shard_by.per_bin
    return shared, costs_of("shard_by", shard_by, shared) if len(shared) else np.zeros(0), 0.0


def ranks_of(
    dp_size: int, shard_by: Any, lengths: Integers, pad_rows: str
) -> tuple[int, bool, NDArray[np.float64] | None, float]:
    """Return the number of ranks, if they are dealt to in turn, and costs to balance, if any.

    The costs are those of rows, and that of a synthetic row.
    """
    if isinstance(shard_by, str) and shard_by in ("contiguous", "strided"):
        return dp_size, shard_by == "strided", None, 0.0
    costs, synthetic = costs_of("shard_by", shard_by, lengths), 0.0
    if pad_rows == "synthetic":
        row = np.array([sum(SYNTHETIC_LENS)], np.int64)
        synthetic = float(costs_of("shard_by", shard_by, row)[0])
    return dp_size, False, costs, synthetic
