"""Partitioning: parts of about the same weight, and micro-batches of limited size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from fastcollate import _fastcollate
from fastcollate.common.arguments import (
    check_bool,
    check_choice,
    check_count,
    check_index,
    suggests_names,
    tally,
)
from fastcollate.common.arrays import picked
from fastcollate.plan.bin_plan import BinPlan
from fastcollate.plan.costs import CostArgument, check_weights, weights_of
from fastcollate.plan.shard import Shard
from fastcollate.plan.tables import offsets_defect
from fastcollate.rows.lengths import Integers, check_lengths

Algorithm = Literal["karmarkar_karp", "lpt", "lpt_swap"]
Order = Literal["small_ends", "descending", "ascending"]


@suggests_names
def partition(
    lengths: Any,
    k: int,
    *,
    algorithm: Algorithm = "karmarkar_karp",
    equal_size: bool = False,
    cost: Literal["tokens", "flops"] | CostArgument | ArrayLike | None = None,
) -> list[list[int]]:
    """Divide sequences into parts of about the same weight.

    Parameters
    ----------
    lengths
        The weight of each sequence (n,): token counts, or any integers or floats that are finite
        and not negative; an array, a tensor or a sequence.
    k
        Number of parts, at most n.
    algorithm
        ``"karmarkar_karp"``: the largest differencing method, usually the best. ``"lpt"``: largest
        first, each to the part with the least so far (ties: the fewest sequences, then the first);
        five to ten times as fast. ``"lpt_swap"``: as ``"lpt"``, after which the heaviest part gives
        a sequence to the lightest, or exchanges one with it, as long as that makes the heavier of
        the two lighter; nearly as fast as ``"lpt"``, and nearly as good as ``"karmarkar_karp"``.
    equal_size
        Require the same number of sequences in all parts.
    cost
        The weights, instead of `lengths`, which are then token counts: ``"tokens"``; ``"flops"``,
        ``24576 * L + L * L`` for L tokens; :class:`Costs`; a function that maps lengths, int64
        (n,), to costs; or the costs (n,).

    Returns
    -------
    list[list[int]]
        The indices of each part, ascending; no part is empty. With ``"karmarkar_karp"``, parts come
        heaviest first.

    Raises
    ------
    ValueError
        `k` is below 1, or above the number of sequences; with `equal_size`, `k` does not divide it;
        weights are negative, NaN or infinite, or not one for each sequence; or the algorithm is
        unknown.
    TypeError
        An argument has the wrong type.

    Notes
    -----
    ``"karmarkar_karp"`` returns the parts of verl's ``get_seqlen_balanced_partitions``, ties
    included. Integers are added exactly, float32 weights in float32 and others in float64, in
    verl's order, so that sums round alike. The other algorithms add in float64.

    Examples
    --------
    >>> fc.planning.partition([8, 7, 6, 5, 4], 2)
    [[1, 3, 4], [0, 2]]
    >>> fc.planning.partition([8, 7, 6, 5], 2, equal_size=True)
    [[1, 2], [0, 3]]
    """
    k = check_count("k", k, "a number of parts")
    check_choice("algorithm", algorithm, get_args(Algorithm))  # the core has one more
    check_bool("equal_size", equal_size)
    if cost is None:
        weights = check_weights("lengths has", lengths, "sequence")
    else:
        lengths = check_lengths("lengths", lengths, "sequence")
        weights = weights_of("cost", cost, lengths, "sequence")
    if (count := len(weights)) < k:
        raise ValueError(
            f"k is {k}, but lengths has {tally(count, 'item')} and no part may be empty; "
            "pass more sequences, or a smaller k"
        )
    if equal_size and count % k != 0:
        raise ValueError(
            f"k is {k}, which does not divide {tally(count, 'sequence')} into parts of equal "
            f"size; pass a divisor of {count} as k, or equal_size=False"
        )
    return _fastcollate.lists_of(*_fastcollate.partition(weights, k, algorithm, equal_size))


@suggests_names
def micro_batches(
    lengths: Any,
    capacity: int,
    dp_size: int = 1,
    bins_multiple_of: int = 1,
    order: Order = "small_ends",
    *,
    min_bins: int = 1,
    cost: Literal["tokens", "flops"] | CostArgument | ArrayLike = "flops",
) -> MicroBatches:
    """Split sequences into micro-batches of about the same cost and limited token count.

    Every rank gets the same number of micro-batches: the smallest for which Karmarkar-Karp parts by
    cost stay within the capacity (the smallest number by tokens often exceeds it), up to 256 times
    `bins_multiple_of`. Larger numbers are not tried one by one, and may exceed the smallest by 1%.

    Parameters
    ----------
    lengths
        The tokens of each sequence of all ranks: integers (n,), as an array, a tensor or a
        sequence.
    capacity
        Maximum tokens of a micro-batch.
    dp_size
        Number of data-parallel ranks.
    bins_multiple_of
        A number that the micro-batches per rank must be a multiple of, such as the size of a
        virtual pipeline.
    order
        Order of a rank's micro-batches: ``"descending"`` or ``"ascending"`` by cost, or
        ``"small_ends"``, the cheapest at both ends, where a pipeline fills and drains.
        Micro-batches at the same index cost about the same on all ranks.
    min_bins
        Minimum number of micro-batches per rank.
    cost
        The cost to balance: ``"flops"``, ``24576 * L + L * L`` for L tokens; ``"tokens"``;
        :class:`Costs`; a function that maps lengths, int64 (n,), to costs; or the costs (n,).

    Returns
    -------
    MicroBatches
        Identical on every machine.

    Raises
    ------
    ValueError
        A sequence exceeds the capacity; `capacity`, `dp_size`, `bins_multiple_of` or `min_bins` is
        below 1; there are fewer sequences than micro-batches; a length is negative; costs are
        negative, NaN or infinite, or not one for each sequence; or the order is unknown.
    TypeError
        An argument has the wrong type.

    Notes
    -----
    For one rank and up to 256 micro-batches, these are the micro-batches of verl's
    ``rearrange_micro_batches``, and with ``"small_ends"`` in the order of
    ``use_dynamic_bsz_balance=True``. For any number, use
    :func:`fastcollate.compat.verl.rearrange_micro_batches`.

    The search tries about ten numbers, in ``O(n log n)`` time each. In theory, more micro-batches
    may exceed a capacity that fewer keep to; among large numbers, the one found may then exceed the
    smallest by more.

    Examples
    --------
    >>> micro = fc.planning.micro_batches([4, 3, 3, 2, 2, 2], capacity=6, dp_size=2)
    >>> micro
    MicroBatches: 6 sequences in 2 micro-batches for each of 2 ranks, at most 5 of 6 tokens
    >>> micro.of_rank(0), micro.of_rank(1)
    ([[1, 3], [2]], [[0], [4, 5]])
    """
    lengths = check_lengths("lengths", lengths, "sequence")
    capacity = check_count("capacity", capacity, "a number of tokens")
    dp_size = check_count("dp_size", dp_size, "a number of ranks")
    multiple = check_count("bins_multiple_of", bins_multiple_of, "a number of micro-batches")
    min_bins = check_count("min_bins", min_bins, "a number of micro-batches")
    costs = weights_of("cost", cost, lengths, "sequence")
    too_long = np.flatnonzero(lengths > capacity)
    if len(too_long) > 0:
        index = int(too_long[0])
        raise ValueError(
            f"lengths[{index}] is {lengths[index]}, which exceeds capacity={capacity}; "
            "pass a larger capacity"
        )

    # No two sequences of more than half of the capacity share one.
    parts = max(-(-int(lengths.sum()) // capacity), int(np.count_nonzero(2 * lengths > capacity)))
    per_rank = max(min_bins, -(-parts // dp_size))
    per_rank = -(-per_rank // multiple) * multiple
    count = len(lengths)
    if per_rank * dp_size > count:
        raise ValueError(
            f"there must be at least {_of_ranks(per_rank, dp_size)}, but lengths has "
            f"{tally(count, 'item')} and no micro-batch may be empty; pass more sequences, or a "
            "smaller dp_size, bins_multiple_of or min_bins"
        )
    found = _fastcollate.split_micro_batches(
        costs, lengths, capacity, per_rank * dp_size, multiple * dp_size, False, (dp_size, order)
    )
    if found is None:
        most = count // (multiple * dp_size) * multiple
        raise ValueError(
            f"no split of {tally(count, 'sequence')} into {_of_ranks(most, dp_size)} was found "
            f"that keeps to capacity={capacity}, and there are too few sequences for more "
            "micro-batches; pass a larger capacity, or more sequences"
        )
    offsets, indices = found
    return MicroBatches._trusted(
        offsets=offsets,
        indices=indices,
        starts=np.zeros(len(indices), np.int64),  # `zeros_like` touches each page
        lengths=picked(lengths, indices),
        num_sequences=count,
        capacity=capacity,
        multiple_of=1,
        dp_size=dp_size,
    )


@dataclass(frozen=True, eq=False, repr=False)
class MicroBatches(BinPlan):
    """The sequences of each micro-batch, and the micro-batches of each data-parallel rank.

    Made by :func:`fastcollate.planning.micro_batches`: a bin plan whose bins are micro-batches, in
    the order of ranks.

    Parameters
    ----------
    offsets, indices, starts, lengths, num_sequences, capacity, multiple_of
        As in :class:`BinPlan`. All ranks have the same number of micro-batches.
    dp_size
        Number of data-parallel ranks.

    Raises
    ------
    ValueError
        The tables are inconsistent: a sequence is not in exactly one micro-batch, a micro-batch is
        empty or too long, or ranks have different numbers of micro-batches.
    """

    _what: ClassVar[str] = "plan of micro-batches"

    dp_size: int = 1

    def _defect(self) -> str | None:
        reason = BinPlan._defect(self) or offsets_defect(
            "offsets", self.offsets, len(self.indices), "micro-batches", "sequences"
        )
        if reason is not None:
            return reason
        number, loads = self.num_bins, self.loads
        if self.dp_size < 1 or number == 0 or number % self.dp_size != 0:
            return f"dp_size is {self.dp_size}, which does not divide {number} micro-batches"
        if loads.max() > self.capacity:
            return (
                f"micro-batch {np.argmax(loads)} has {loads.max()} tokens, but capacity is "
                f"{self.capacity}"
            )
        return None

    @property
    def per_rank(self) -> int:
        """Number of micro-batches of each rank."""
        return self.num_bins // self.dp_size

    @property
    def inverse(self) -> Integers:
        """The index of each sequence in `indices`, int64 (n,).

        ``results[micro.inverse]`` reorders results of all ranks, concatenated in the order of
        micro-batches, to the order of the sequences.
        """
        return np.argsort(self.indices)

    def of_rank(self, rank: int) -> list[list[int]]:
        """Return the sequences of each micro-batch of a rank.

        Raises
        ------
        IndexError
            There is no such rank; ranks are numbered from 0.
        """
        start = check_index("rank", rank, self.dp_size) * self.per_rank
        ends = self.offsets[start : start + self.per_rank + 1]
        return _fastcollate.lists_of(ends - ends[0], self.indices[ends[0] : ends[-1]])

    def shard(self, micro_batch: int, rank: int) -> Shard:
        """Return the rows of a rank's micro-batch, for `build_batch` and ``batch.select``.

        Raises
        ------
        IndexError
            There is no such rank or micro-batch; both are numbered from 0.
        """
        place = check_index("rank", rank, self.dp_size) * self.per_rank
        place += check_index("micro_batch", micro_batch, self.per_rank)
        part = slice(*self.offsets[place : place + 2].tolist())
        rows, lengths = self.indices[part], self.lengths[part]
        return Shard(rows, np.zeros(len(rows), np.bool_), self.num_sequences, lengths=lengths)

    def __repr__(self) -> str:
        return (
            f"MicroBatches: {tally(self.num_sequences, 'sequence')} in "
            f"{_of_ranks(self.per_rank, self.dp_size)}, at most "
            f"{self.loads.max():,} of {tally(self.capacity, 'token')}"
        )


def _of_ranks(per_rank: int, dp_size: int) -> str:
    """Return a count as text: ``2 micro-batches for each of 8 ranks``."""
    number = tally(per_rank, "micro-batch", "micro-batches")
    return number if dp_size == 1 else f"{number} for each of {tally(dp_size, 'rank')}"
