"""Packing of sequences into bins."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastcollate._fastcollate import GROWTHS, OVERSIZES, PACK_ALGORITHMS, PackSpec
from fastcollate.arguments import check_choice, checked_count, counted, suggests_names
from fastcollate.arrays import describe
from fastcollate.plan.bin_plan import BinPlan
from fastcollate.plan.costs import NAMED_COSTS, CostArgument, Costs, costs_of
from fastcollate.plan.grouping import group_numbers
from fastcollate.plan.lengths import Integers, checked_lengths

Algorithm: TypeAlias = Literal[
    "ffd", "stable_ffd", "ff", "bfd", "mffd", "next_fit", "concat", "balanced"
]
Oversize: TypeAlias = Literal["error", "own_bin", "split"]
Growth: TypeAlias = Literal["moving", "splitting"]

NO_LIMIT = (1 << 63) - 1

_OVERSIZE_OF: dict[str, Oversize] = {"balanced": "own_bin", "concat": "split"}
"""Default of ``oversize`` by algorithm; that of all others is ``"error"``."""


@suggests_names
def pack(
    lengths: Any,
    capacity: int | None = None,
    *,
    num_bins: int | None = None,
    algorithm: Algorithm = "ffd",
    max_sequences: int | None = None,
    multiple_of: int = 1,
    min_bins: int = 0,
    bins_multiple_of: int = 1,
    grow_by: Growth = "moving",
    keep_together: Any | None = None,
    oversize: Oversize | None = None,
    max_cost: float | None = None,
    cost: Literal["flops", "tokens"] | CostArgument | ArrayLike = "flops",
) -> BinPlan:
    """Pack sequences into bins (rows or micro-batches) of a capacity.

    The bins, their order and the order inside them match the framework named for each algorithm,
    ties included. All take n log n time; with `max_cost` or `keep_together`, more if many bins are
    full by one measure and nearly empty by another.

    Parameters
    ----------
    lengths
        The tokens of each sequence: integers (n,), as an array, a tensor or a sequence. Empty
        sequences are packed, too.
    capacity
        Maximum tokens of a bin.
    num_bins
        The number of bins, instead of a capacity. The capacity is the smallest, to 0.1 %, with
        which `algorithm` needs no more bins: MULTIFIT (Coffman, Garey and Johnson, 1978). Missing
        bins then take the last sequence of other bins.
    algorithm
        The choice of a bin for each sequence. A sequence that fits no bin opens another.

        - ``"ffd"``, first fit decreasing: the first bin that fits, longest sequence first, ties in
          reverse order. SkyRL's and NeMo-RL's.
        - ``"stable_ffd"``: the same with ties in order. prime-rl's.
        - ``"ff"``, first fit: the first bin that fits, in the order of the input. axolotl's, and
          slime's with ``oversize="own_bin"``.
        - ``"bfd"``, best fit decreasing: the fullest bin that fits, of several the first that was
          that full; longest sequence first, ties in order. TRL's.
        - ``"mffd"``, modified first fit decreasing: sequences of more than half of the capacity get
          a bin each, which others fill up; the rest goes to the emptiest of more bins. NeMo-RL's.
          Older versions of NeMo-RL add an empty bin if there is no rest.
        - ``"next_fit"``: the last bin, in the order of the input. NeMo-RL's concatenative packer,
          and torchtune's without splitting.
        - ``"concat"``: the same, but the part that exceeds the bin is cut off and opens the next.
          torchtune's with splitting, and TRL's ``"wrapped"``.
        - ``"balanced"``: the bin with the fewest tokens, longest sequence first, ties in order.
          SkyRL's.
    max_sequences
        Maximum sequences of a bin, counting pieces of split ones; unlimited by default.
    multiple_of
        Round the width of each sequence up to a multiple of this. The capacity counts widths.
    min_bins, bins_multiple_of
        Minimum number of bins, and a number that it must be a multiple of, such as the number of
        ranks.
    grow_by
        The source of missing bins. ``"moving"``: each takes the last sequence of another bin: of
        the one with the most sequences, of several the last, until it has one left, then of the
        next; SkyRL's and NeMo-RL's. ``"splitting"``: the costliest bin of several sequences is
        split in two of about the same `cost`, repeatedly; slime's, with ``cost="tokens"``, and
        prime-rl's, with ``cost=lambda lengths: lengths**2``.
    keep_together
        The group id of each sequence (n,), in any order. Sequences of a group share a bin, in the
        order of the input; algorithms treat them as one sequence at the index of the first.
    oversize
        Treatment of a sequence that exceeds the capacity, or `max_cost`, by itself. ``"error"``: an
        error; ``"own_bin"``: it gets a bin above the limit; ``"split"``: it is split into pieces as
        long as possible, and a shorter rest, all packed like sequences. The default is ``"error"``,
        but ``"own_bin"`` for ``"balanced"``, and ``"split"`` for ``"concat"``, which allows nothing
        else.
    max_cost, cost
        Maximum cost of a bin, in addition to the capacity, and the cost of sequences, which
        ``grow_by="splitting"`` uses, too: ``"flops"``, ``24576 * L + L * L`` for a sequence of L
        tokens; ``"tokens"``; :class:`Costs`; a function that maps lengths, int64 (m,), to costs; or
        costs (n,). Costs are finite and not negative; to split by cost, a longer piece must not
        cost less. Not with ``"concat"``.

    Returns
    -------
    BinPlan
        Identical on every machine. No bin is empty.

    Raises
    ------
    ValueError
        A length is negative; a sequence or a group exceeds a bin by itself, unless `oversize`
        allows it; the number of bins exceeds that of sequences (or groups, or pieces); a capacity,
        number or multiple is below 1; costs are negative or not finite; the number of group ids is
        not that of sequences; or options exclude each other.
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
    >>> plan = fc.planning.pack([5, 3, 7, 2, 3], capacity=10)
    >>> plan
    BinPlan: 5 sequences in 2 bins of 10 tokens, 100.0% full
    >>> plan.bins
    [[2, 4], [0, 1, 3]]
    """
    packer = Packer.of(
        capacity,
        num_bins=num_bins,
        algorithm=algorithm,
        max_sequences=max_sequences,
        multiple_of=multiple_of,
        min_bins=min_bins,
        bins_multiple_of=bins_multiple_of,
        grow_by=grow_by,
        oversize=oversize,
        max_cost=max_cost,
        cost=cost,
    )
    lengths = checked_lengths("lengths", lengths, "sequence")
    if keep_together is None:
        return packer.plan(lengths)
    groups = group_numbers("keep_together", keep_together)
    if len(groups) != len(lengths):
        raise ValueError(
            f"keep_together has {counted(len(groups), 'item')}, but there are "
            f"{counted(len(lengths), 'length')}; pass one per sequence"
        )
    packer.check_whole("keep_together")
    return packer.plan(lengths, groups)


class Packer(NamedTuple):
    """The options of :func:`pack`, checked."""

    algorithm: Algorithm
    oversize: Oversize
    capacity: int
    max_sequences: int
    multiple_of: int
    max_cost: float
    """Infinity if there is no limit."""
    cost: Any
    min_bins: int
    bins_multiple_of: int
    grow_by: Growth
    num_bins: int | None
    """If given, `capacity` is `NO_LIMIT`."""

    @classmethod
    def of(
        cls,
        capacity: Any,
        *,
        num_bins: Any = None,
        algorithm: Any,
        max_sequences: Any,
        multiple_of: Any,
        min_bins: Any,
        bins_multiple_of: Any,
        grow_by: Any = "moving",
        oversize: Any,
        max_cost: Any,
        cost: Any,
    ) -> Packer:
        """Check the options."""
        check_choice("algorithm", algorithm, PACK_ALGORITHMS)
        if oversize is None:
            oversize = _OVERSIZE_OF.get(algorithm, "error")
        check_choice("oversize", oversize, OVERSIZES)
        check_choice("grow_by", grow_by, GROWTHS)
        if num_bins is not None:
            num_bins = checked_count("num_bins", num_bins, "a number of bins")
            given = {
                "capacity": capacity is not None,
                "min_bins": min_bins != 0,
                "bins_multiple_of": bins_multiple_of != 1,
                "grow_by": grow_by != "moving",
                f"algorithm={algorithm!r}": algorithm == "concat",
                "oversize='split'": oversize == "split",
            }
            if wrong := [name for name, is_given in given.items() if is_given]:
                raise ValueError(
                    f"num_bins is {num_bins}, which says how many bins there are and leaves their "
                    f"capacity open, but {wrong[0]} is given, too; leave one of them out"
                )
            capacity = NO_LIMIT
        elif capacity is None:
            raise TypeError("capacity and num_bins are None; pass a number of tokens, or of bins")
        packer = cls(
            algorithm,
            oversize,
            checked_count("capacity", capacity, "a number of tokens"),
            checked_count(
                "max_sequences",
                NO_LIMIT if max_sequences is None else max_sequences,
                "a number of sequences",
            ),
            checked_count("multiple_of", multiple_of, "a number of tokens", bits=32),
            _checked_max_cost(max_cost, cost, is_counted=grow_by == "splitting"),
            cost,
            checked_count("min_bins", min_bins, "a number of bins", least=0),
            checked_count("bins_multiple_of", bins_multiple_of, "a number of bins"),
            grow_by,
            num_bins,
        )
        if algorithm == "concat":
            if oversize != "split":
                raise ValueError(
                    f"oversize is {oversize!r}, but algorithm='concat' splits sequences; "
                    "leave oversize out, or pass algorithm='next_fit'"
                )
            if max_cost is not None:
                packer.check_whole("max_cost")
        return packer

    def check_whole(self, name: str) -> None:
        """Reject an option that is incompatible with cutting sequences at any token."""
        if self.algorithm == "concat":
            raise ValueError(
                f"{name} is given, but algorithm='concat' cuts sequences at any token; leave "
                f"{name} out, or pass another algorithm"
            )

    @property
    def spec(self) -> PackSpec:
        """The compiled form."""
        cost = self.cost
        if isinstance(cost, Costs):
            cost = cost.spec
        elif callable(cost):
            cost = partial(costs_of, "cost", cost, noun="sequence")
        elif not isinstance(cost, str):
            cost = "flops"  # replaced by the costs of the sequences
        return PackSpec(*self._replace(cost=cost))

    def costs(self, lengths: Integers) -> NDArray[np.float64] | None:
        """Return the costs of sequences of the given lengths; None if no option uses them."""
        if self.max_cost == math.inf and self.grow_by == "moving":
            return None
        return costs_of("cost", self.cost, lengths, "sequence")

    def plan(self, lengths: Integers, groups: Integers | None = None) -> BinPlan:
        """Pack sequences of the given lengths, int64 (n,), or groups of them, numbered (n,)."""
        is_named = isinstance(self.cost, str) and self.cost in NAMED_COSTS
        is_known = is_named or isinstance(self.cost, Costs) or callable(self.cost)
        costs = None if is_known else self.costs(lengths)
        offsets, indices, starts, lens = self.spec.pack(lengths, groups, costs)
        plan = BinPlan._from_own(
            offsets=offsets,
            indices=indices,
            starts=starts,
            lengths=lens,
            num_sequences=len(lengths),
            capacity=self.capacity,
            multiple_of=self.multiple_of,
        )
        if self.num_bins is None:
            return plan
        return replace(plan, capacity=max(1, int(plan.loads.max(initial=0))))


def _checked_max_cost(max_cost: Any, cost: Any, *, is_counted: bool) -> float:
    if max_cost is None:
        if not is_counted and not (isinstance(cost, str) and cost == "flops"):
            raise ValueError(
                "cost is given, but max_cost is None; pass both, or grow_by='splitting' (ranks of "
                "a step are balanced by shard_by of plan_step)"
            )
        return math.inf
    if not isinstance(max_cost, Real) or isinstance(max_cost, bool):
        raise TypeError(f"max_cost is {describe(max_cost)}; pass a number")
    per_bin = cost.per_bin if isinstance(cost, Costs) else 0.0
    if not float(max_cost) > per_bin:
        beside = f", the per_bin of {cost!r}" if per_bin > 0 else ""
        raise ValueError(f"max_cost is {max_cost}; pass a number above {per_bin:g}{beside}")
    return float(max_cost)
