"""Packing of sequences into bins."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from fastcollate.common.arguments import suggests_names, tally
from fastcollate.common.arrays import describe
from fastcollate.plan.bin_plan import NO_LIMIT, BinPlan
from fastcollate.plan.costs import costs_of
from fastcollate.plan.grouping import group_numbers
from fastcollate.plan.layouts import Packed
from fastcollate.rows.lengths import check_lengths


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
        allows it; the number of bins exceeds that of sequences (or groups, or pieces); costs are
        negative or not finite; the number of group ids or costs is not that of sequences; or the
        layout has its bins already.
    TypeError
        An argument has the wrong type.

    Notes
    -----
    The behaviour matches SkyRL's ``make_seq_packer`` and NeMo-RL's ``get_packer``, both with the
    adjustment of the number of bins; slime's ``first_fit_pack`` and prime-rl's
    ``packed_samples_into_micro_bs``, both with ``expand_bins_by_splitting``; TRL's
    ``pack_dataset``; torchtune's ``PackedDataset``; and axolotl's ``pack_group`` and
    ``allocate_sequentially``.

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
        if layout.algorithm == "concat":
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
    capacity = max(1, int(plan.loads.max(initial=0)))
    return BinPlan._trusted(**{**plan._named(), "capacity": capacity})
