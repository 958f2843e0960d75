"""What is packed: sequences, pieces of split ones and groups, and what a bin may hold of them."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcollate import _fastcollate
from fastcollate.arguments import checked_count, counted
from fastcollate.arrays import describe, offsets_of, places_of
from fastcollate.plan.costs import costs_of
from fastcollate.plan.grouping import group_numbers
from fastcollate.plan.lengths import Integers

MAX_PIECES = 1 << 26
"""Into how many pieces all sequences together may be split."""

NO_LIMIT = (1 << 63) - 1


class Pieces(NamedTuple):
    """Sequences, or pieces of them: the sequence of each, where it begins in it, its tokens."""

    indices: Integers
    starts: Integers
    lengths: Integers
    are_whole: bool = False
    """Whether each is the sequence of its number."""

    @classmethod
    def whole(cls, lengths: Integers) -> Pieces:
        """Return sequences that are not split."""
        return cls(np.arange(len(lengths)), np.zeros(len(lengths), np.int64), lengths, True)

    def ordered(self, order: Integers) -> Pieces:
        """Return the pieces in another order."""
        if self.are_whole:
            return Pieces(order, np.zeros(len(order), np.int64), self.lengths[order], True)
        return Pieces(self.indices[order], self.starts[order], self.lengths[order])


class Members(NamedTuple):
    """Which pieces an item has."""

    offsets: Integers
    """Where items begin among the pieces, and where the last ends."""
    pieces: Integers

    @classmethod
    def of(cls, groups: Integers) -> Members:
        """Return the pieces of each group, in order."""
        return cls(offsets_of(np.bincount(groups)), np.argsort(groups, kind="stable"))

    def of_item(self, item: int) -> Integers:
        """Return the pieces of an item."""
        return self.pieces[self.offsets[item] : self.offsets[item + 1]]

    def expand(self, offsets: Integers, items: Integers) -> tuple[Integers, Integers]:
        """Return bins of items as bins of pieces."""
        counts = np.diff(self.offsets)[items]
        places = places_of(self.offsets[items], counts)
        return offsets_of(counts)[offsets], self.pieces[places]


class Items(NamedTuple):
    """What is in one bin as a whole: sequences, pieces or groups."""

    noun: str
    sizes: Integers
    counts: Integers | None = None
    """Pieces of each; if not given, items are pieces."""
    costs: NDArray[np.float64] | None = None
    members: Members | None = None


class Limit(NamedTuple):
    """What a bin may hold, and how that is counted."""

    capacity: int
    max_sequences: int
    multiple: int
    max_cost: float
    """Infinity where costs do not count."""
    cost: Any

    @classmethod
    def of(
        cls, capacity: Any, max_sequences: Any, multiple: Any, max_cost: Any, cost: Any
    ) -> Limit:
        """Check the arguments of :func:`fastcollate.planning.pack`."""
        capacity = checked_count("capacity", capacity, "a number of tokens")
        if max_sequences is None:
            max_sequences = NO_LIMIT
        max_sequences = checked_count("max_sequences", max_sequences, "a number of sequences")
        multiple = checked_count("multiple_of", multiple, "a number of tokens", bits=32)
        if max_cost is None:
            if not (isinstance(cost, str) and cost == "flops"):
                raise ValueError("cost says what max_cost counts; pass max_cost, too")
            return cls(capacity, max_sequences, multiple, math.inf, cost)
        if not isinstance(max_cost, Real) or isinstance(max_cost, bool):
            raise TypeError(f"max_cost is {describe(max_cost)}; pass a number")
        if not float(max_cost) > 0:
            raise ValueError(f"max_cost is {max_cost}; pass a number above 0")
        return cls(capacity, max_sequences, multiple, float(max_cost), cost)

    @property
    def load(self) -> tuple[int, int, float]:
        """How many tokens and sequences a bin holds, and what they cost at most."""
        return self.capacity, self.max_sequences, self.max_cost

    def places(self, lengths: Integers) -> Integers:
        """Return the room that pieces of these lengths take."""
        return lengths if self.multiple == 1 else -(-lengths // self.multiple) * self.multiple

    def costs(self, lengths: Integers) -> NDArray[np.float64] | None:
        """Return what pieces of these lengths cost, if that is limited."""
        if self.max_cost == math.inf:
            return None
        return costs_of("cost", self.cost, lengths, "sequence")

    def concat(self, lengths: Integers) -> tuple[Integers, Pieces]:
        """Return sequences end to end, cut into bins."""
        if lengths.max(initial=0) > 0:
            longest = self._longest_piece(lengths, int(np.argmax(lengths)))
            _check_pieces(int((lengths // longest).sum()))
        offsets, indices, starts, lengths = _fastcollate.concat_bins(
            lengths, self.capacity, min(self.multiple, self.capacity), self.max_sequences
        )
        return offsets, Pieces(indices, starts, lengths)

    def split(self, pieces: Pieces, groups: Integers | None) -> tuple[Pieces, Integers | None]:
        """Split sequences that exceed a bin, but for those that are not alone in their group."""
        lengths = pieces.lengths
        exceeds = self.places(lengths) > self.capacity
        if (costs := self.costs(lengths)) is not None:
            exceeds |= costs > self.max_cost
        if groups is not None:
            exceeds &= np.bincount(groups)[groups] == 1
        if not exceeds.any():
            return pieces, groups
        longest = self._longest_piece(lengths, int(np.argmax(exceeds)))
        counts = np.where(exceeds, -(-lengths // longest), 1)
        _check_pieces(int(counts.sum()))
        indices = np.repeat(pieces.indices, counts)
        numbers = places_of(np.zeros_like(counts), counts)
        starts = numbers * longest
        lengths = lengths[indices] - starts
        np.minimum(lengths, longest, out=lengths, where=exceeds[indices])
        if groups is not None:
            # Only what is alone in its group was split: every piece is a group now.
            groups = group_numbers("keep_together", groups[indices] * int(counts.max()) + numbers)
        return Pieces(indices, starts, lengths), groups

    def items(self, pieces: Pieces, groups: Integers | None) -> Items:
        """Return what is packed as a whole."""
        sizes, costs = self.places(pieces.lengths), self.costs(pieces.lengths)
        if groups is None:
            return Items("sequence" if pieces.are_whole else "piece", sizes, None, costs)
        members = Members.of(groups)
        if costs is not None:
            costs = np.bincount(groups, costs).astype(np.float64)
        if len(sizes) > 0:
            sizes = np.add.reduceat(sizes[members.pieces], members.offsets[:-1])
        return Items("group", sizes, np.diff(members.offsets), costs, members)

    def check(self, items: Items, pieces: Pieces, oversize: str) -> None:
        """Check that a bin has room for every item, or may exceed its capacity and cost."""
        self._check("max_sequences", items.counts, items, pieces, "")
        if oversize != "own_bin":
            advice = "oversize='own_bin'"
            if items.noun == "sequence":
                advice += " or 'split'"
            self._check("capacity", items.sizes, items, pieces, f"{advice}, or ")
            self._check("max_cost", items.costs, items, pieces, f"{advice}, or ")

    def _check(
        self,
        argument: str,
        values: NDArray[Any] | None,
        items: Items,
        pieces: Pieces,
        advice: str,
    ) -> None:
        """Check that no item has more than one of the limits."""
        limit = getattr(self, argument)
        if values is None or not (exceeds := values > limit).any():
            return
        item = int(np.argmax(exceeds))
        members = np.array([item]) if items.members is None else items.members.of_item(item)
        index, length = int(pieces.indices[members[0]]), int(pieces.lengths[members[0]])
        value = values[item]
        found = {
            "max_sequences": "",
            "capacity": f"{value:,} tokens",
            "max_cost": f"a cost of {value:,.15g}",
        }[argument]
        if len(members) > 1:
            head = f"keep_together puts {len(members):,} sequences, of which {index} is the first, "
            head += f"in one bin{found and ', with '}{found}"
        elif argument == "max_cost":
            head = f"lengths[{index}] is {length}, with {found}"
        elif length == value:
            head = f"lengths[{index}] is {length}"
        else:
            head = f"lengths[{index}] is {length}, rounded up to {value}"
        raise ValueError(
            f"{head}, which exceeds {argument}={limit:.15g}; pass {advice}a larger {argument}"
        )

    def _longest_piece(self, lengths: Integers, index: int) -> int:
        """Return how many tokens pieces have; one that needs them names an error."""
        where = f"lengths[{index}] is {lengths[index]}, but no piece of it fits into a bin"
        most = self.capacity // self.multiple
        if most == 0:
            raise ValueError(
                f"{where}: multiple_of={self.multiple} exceeds capacity={self.capacity}"
            )
        if self.max_cost == math.inf:
            return most * self.multiple
        if not isinstance(self.cost, str) and not callable(self.cost):
            raise ValueError(
                f"lengths[{index}] is {lengths[index]}, and what pieces of it cost is not known: "
                "cost has one number per sequence; pass a name or a function"
            )
        # The most that does not cost too much, by bisection.
        fits, exceeds = 0, most + 1
        while exceeds - fits > 1:
            middle = (fits + exceeds) // 2
            if self._cost_of(middle) <= self.max_cost:
                fits = middle
            else:
                exceeds = middle
        if fits == 0:
            tokens = counted(self.multiple, "token")
            raise ValueError(
                f"{where}: {tokens} cost {self._cost_of(1):,.15g}, which exceeds "
                f"max_cost={self.max_cost:.15g}"
            )
        return fits * self.multiple

    def _cost_of(self, multiples: int) -> float:
        """Return what a piece of so many multiples of tokens costs."""
        length = np.array([multiples * self.multiple], np.int64)
        return float(costs_of("cost", self.cost, length, "sequence")[0])


def _check_pieces(count: int) -> None:
    if count > MAX_PIECES:
        raise ValueError(
            f"sequences would be split into more than {MAX_PIECES:,} pieces; "
            "pass a larger capacity or max_cost"
        )
