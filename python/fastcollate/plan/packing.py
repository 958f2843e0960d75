"""Packing of sequences into bins."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from fastcollate.common.arguments import check_choice, suggests_names, tally
from fastcollate.common.arrays import describe, offsets_of
from fastcollate.plan.bin_plan import NO_LIMIT, BinPlan
from fastcollate.plan.binned import Growth
from fastcollate.plan.costs import CostArgument, costs_of
from fastcollate.plan.grouping import group_numbers
from fastcollate.plan.layouts import Packed
from fastcollate.plan.tree_bins import TreeBins
from fastcollate.rows.lengths import Integers, check_indices, check_lengths


@suggests_names
def pack(
    lengths: Any,
    layout: Packed,
    *,
    keep_together: Any | None = None,
    costs: ArrayLike | None = None,
) -> BinPlan:
    """Pack sequences into bins (rows or micro-batches) with the options of a packed layout.

    The bins, their order and the order inside them match the framework named for each algorithm,
    ties included. All take n log n time; with `max_cost` or `keep_together`, more if many bins are
    full by one measure and nearly empty by another.

    Parameters
    ----------
    lengths
        The tokens of each sequence: integers (n,), as an array, a tensor or a sequence. Empty
        sequences are packed, too.
    layout
        The capacity, or the number of bins, and the options of packing.
    keep_together
        The group id of each sequence (n,), in any order. Sequences of a group share a bin, in the
        order of the input; algorithms treat them as one sequence at the index of the first.
    costs
        The costs of sequences (n,), instead of the layout's ``cost``: finite and not negative.

    Returns
    -------
    BinPlan
        Identical on every machine. No bin is empty.

    Raises
    ------
    ValueError
        A length is negative; a sequence or a group exceeds a bin by itself, unless `oversize`
        allows it; there are more bins than sequences (or groups, or pieces); costs are
        negative or not finite; there is not one group id or cost per sequence; or the
        layout has its bins already.
    TypeError
        An argument has the wrong type.

    Notes
    -----
    The behaviour matches SkyRL's ``make_seq_packer`` and NeMo-RL's ``get_packer``, both with the
    adjustment of the number of bins; slime's ``first_fit_pack``, miles'
    ``first_fit_decreasing_pack`` and prime-rl's ``packed_samples_into_micro_bs``, all with
    ``expand_bins_by_splitting``; LLaMA-Factory's ``greedy_knapsack``; TRL's ``pack_dataset``;
    torchtune's ``PackedDataset``; and axolotl's ``pack_group`` and ``allocate_sequentially``.

    Examples
    --------
    >>> plan = fc.planning.pack([5, 3, 7, 2, 3], fc.Packed(10))
    >>> plan
    BinPlan: 5 sequences in 2 bins of 10 tokens, 100.0% full
    >>> plan.bins
    [[2, 4], [0, 1, 3]]
    """
    if not isinstance(layout, Packed):
        raise TypeError(
            f"layout is {describe(layout)}; pass fc.Packed(capacity=...) or fc.Packed(num_bins=...)"
        )
    if (packer := layout.packer) is None:
        raise ValueError(
            f"layout is {layout!r}, which has its bins already; pass fc.Packed(capacity=...) or "
            "fc.Packed(num_bins=...)"
        )
    lengths = check_lengths("lengths", lengths, "sequence")
    numbers = None
    if costs is not None:
        if layout.max_cost is None and layout.grow_by == "move":
            raise ValueError(
                f"costs is given, but layout is {layout!r}, which does not use them; pass max_cost "
                "or grow_by='split' to the layout"
            )
        layout.check_whole("costs")
        numbers = costs_of("costs", costs, lengths, "sequence")
    groups = None
    if keep_together is not None:
        groups = group_numbers("keep_together", keep_together)
        if len(groups) != len(lengths):
            raise ValueError(
                f"keep_together has {tally(len(groups), 'item')}, but there are "
                f"{tally(len(lengths), 'length')}; pass one per sequence"
            )
        layout.check_whole("keep_together")
    offsets, indices, starts, lens = packer.pack(lengths, groups, numbers)
    plan = BinPlan._trusted(
        offsets=offsets,
        indices=indices,
        starts=starts,
        lengths=lens,
        num_sequences=len(lengths),
        capacity=layout.capacity or NO_LIMIT,
        multiple_of=layout.multiple_of,
    )
    if layout.num_bins is None:
        return plan
    return _fitted(plan)


@suggests_names
def grow(
    bins: BinPlan | Sequence[Any],
    lengths: Any | None = None,
    *,
    min_bins: int = 0,
    bins_multiple_of: int = 1,
    allow_fewer_bins: bool = False,
    grow_by: Growth = "move",
    cost: Literal["flops", "tokens"] | CostArgument | ArrayLike | None = None,
) -> BinPlan:
    """Add bins to existing ones, by moving sequences or by splitting bins.

    Parameters
    ----------
    bins
        A plan, or the sequences of each bin, as :func:`partition` returns them: each sequence in
        one bin.
    lengths
        The tokens of each sequence, integers (n,); left out with a plan, which has them.
    min_bins, bins_multiple_of, allow_fewer_bins, grow_by
        As in :class:`fastcollate.Packed`. Sequences that stayed together may be separated.
    cost
        The costs by which ``grow_by="split"`` chooses and splits bins, as there, or one number per
        sequence (n,); ``"flops"`` by default.

    Returns
    -------
    BinPlan
        With the capacity of `bins`, or, for bins of your own, the tokens of the fullest one.

    Raises
    ------
    ValueError
        A sequence is in no bin or in two; a bin is empty; there are fewer sequences
        than bins, unless `allow_fewer_bins` is True; `cost` is given with ``grow_by="move"``,
        negative or not finite; or an option is invalid.
    TypeError
        An argument has the wrong type.

    Notes
    -----
    With ``grow_by="split"``, ``cost="tokens"`` and `allow_fewer_bins`, these are the bins of
    slime's and miles' ``expand_bins_by_splitting``.

    Examples
    --------
    >>> parts = fc.planning.partition([8, 7, 6, 5, 4], 2)
    >>> fc.planning.grow(parts, [8, 7, 6, 5, 4], min_bins=3).bins
    [[1, 3], [0, 2], [4]]
    """
    check_choice("grow_by", grow_by, get_args(Growth))
    plan = _plan_of(bins, lengths)
    layout = Packed(
        plan.capacity,
        min_bins=min_bins,
        bins_multiple_of=bins_multiple_of,
        allow_fewer_bins=allow_fewer_bins,
        grow_by=grow_by,
    )
    costs = None
    if grow_by == "split":
        cost = "flops" if cost is None else cost
        if plan.is_split:
            costs = costs_of("cost", cost, plan.lengths, "piece")
        else:
            costs = costs_of("cost", cost, plan.sequence_lengths, "sequence")[plan.indices]
    elif cost is not None:
        raise ValueError("cost is given, but grow_by is 'move'; leave cost out, or pass 'split'")
    packer: Any = layout.packer
    offsets, order = packer.grow(plan._core, costs)
    tables = {"indices": plan.indices, "starts": plan.starts, "lengths": plan.lengths}
    return BinPlan._trusted(
        offsets=offsets,
        **{name: values[order] for name, values in tables.items()},
        num_sequences=plan.num_sequences,
        capacity=plan.capacity,
        multiple_of=plan.multiple_of,
    )


def _indices_of(bins: Sequence[Any]) -> tuple[Integers, list[int]]:
    """Return the sequences of all bins, checked, and the number of each bin."""
    if all(isinstance(bin_, (list, tuple)) for bin_ in bins):
        with contextlib.suppress(TypeError, ValueError):  # the loop names the bin
            indices = check_indices("bins", list(chain.from_iterable(bins)), "sequences")
            return indices, list(map(len, bins))
    columns = [check_indices(f"bins[{at}]", bin_, "sequences") for at, bin_ in enumerate(bins)]
    return np.concatenate([np.zeros(0, np.int64), *columns]), list(map(len, columns))


def _plan_of(bins: Any, lengths: Any) -> BinPlan:
    """Return bins as a plan, checked."""
    if isinstance(bins, TreeBins):
        raise TypeError(
            "bins is a plan of a tree, whose rows share tokens; pass min_bins or bins_multiple_of "
            "to TreePlan.pack"
        )
    if isinstance(bins, BinPlan):
        if lengths is not None:
            raise ValueError("lengths is given, but bins is a plan, which has them; leave it out")
        return bins
    if not isinstance(bins, (list, tuple)):
        raise TypeError(
            f"bins is {describe(bins)}; pass the plan that fastcollate.planning.pack returned, or "
            "a list of sequences for each bin"
        )
    if lengths is None:
        raise ValueError("lengths is None, but bins are lists; pass the tokens of each sequence")
    lengths = check_lengths("lengths", lengths, "sequence")
    indices, counts = _indices_of(bins)
    if 0 in counts:
        raise ValueError(f"bins[{counts.index(0)}] is empty; leave it out")
    if (last := indices.max(initial=-1)) >= (count := len(lengths)):
        raise ValueError(
            f"bins have sequence {last}, but lengths has {tally(count, 'item')}; pass one per "
            "sequence"
        )
    found = np.bincount(indices, minlength=count)
    if (wrong := np.flatnonzero(found != 1)).size > 0:
        raise ValueError(
            f"sequence {wrong[0]} is {tally(int(found[wrong[0]]), 'time')} in bins; pass each "
            "sequence in one bin"
        )
    plan = BinPlan._trusted(
        offsets=offsets_of(counts),
        indices=indices,
        starts=np.zeros_like(indices),
        lengths=lengths[indices],
        num_sequences=count,
        capacity=1,
        multiple_of=1,
    )
    return _fitted(plan)


def _fitted(plan: BinPlan) -> BinPlan:
    """Return a plan with the load of the fullest bin as its capacity."""
    capacity = max(1, int(plan.loads.max(initial=0)))
    return BinPlan._trusted(**{**plan._named(), "capacity": capacity})
