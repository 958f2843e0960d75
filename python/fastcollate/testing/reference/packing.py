"""Packing of sequences into bins, in loops over items and bins."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import add
from typing import Any, NamedTuple

Piece = tuple[int, int, int]
"""A sequence, the offset of the piece in it, and the piece's tokens."""

Bin = list[int]
"""The items of a bin, by index, in the order in which they were placed."""


class Item(NamedTuple):
    """An item that is packed as a whole. Also: the limits of a bin."""

    size: int
    sequences: int
    cost: float


class Problem(NamedTuple):
    """Items and the limits of bins."""

    items: list[Item]
    limit: Item

    def has_room(self, contents: Bin, *more: int) -> bool:
        """Return True if a bin has room for more items."""
        held = [self.items[i] for i in (*contents, *more)]
        return (
            sum(item.size for item in held) <= self.limit.size
            and sum(item.sequences for item in held) <= self.limit.sequences
            and reduce(add, (item.cost for item in held)) <= self.limit.cost
        )

    def size(self, contents: Bin) -> int:
        """Return the tokens of a bin."""
        return sum(self.items[i].size for i in contents)

    def longest(self, *, last: bool) -> list[int]:
        """Return items by descending size; of equal ones, the last or the first comes first."""
        tie = -1 if last else 1
        return sorted(range(len(self.items)), key=lambda i: (-self.items[i].size, tie * i))


def first_fit_loops(problem: Problem, order: Sequence[int]) -> list[Bin]:
    """Place each item in the first bin with room."""
    bins: list[Bin] = []
    for item in order:
        for contents in bins:
            if problem.has_room(contents, item):
                contents.append(item)
                break
        else:
            bins.append([item])
    return bins


def bfd_loops(problem: Problem) -> list[Bin]:
    """Pack as TRL's ``_pack_bfd``: bins wait in queues, one for each number of free tokens."""
    bins: list[Bin] = []
    queues: dict[int, list[Bin]] = {}
    for item in problem.longest(last=False):
        for space in sorted(queues):
            fitting = [contents for contents in queues[space] if problem.has_room(contents, item)]
            if fitting:
                contents = fitting[0]
                queues[space] = [other for other in queues[space] if other is not contents]
                break
        else:
            contents = []
            bins.append(contents)
        contents.append(item)
        queues.setdefault(problem.limit.size - problem.size(contents), []).append(contents)
    return bins


def mffd_loops(problem: Problem) -> list[Bin]:
    """Pack as NeMo-RL's modified first fit decreasing, without an empty last bin."""
    capacity, sizes = problem.limit.size, [item.size for item in problem.items]
    order = problem.longest(last=False)
    large = [i for i in order if 2 * sizes[i] > capacity]
    medium = [i for i in order if 3 * sizes[i] > capacity >= 2 * sizes[i]]
    small = sorted(
        (i for i in range(len(sizes)) if 6 * sizes[i] > capacity >= 3 * sizes[i]),
        key=lambda i: sizes[i],
    )
    tiny = [i for i in order if capacity >= 6 * sizes[i]]
    bins = [[item] for item in large]

    # A medium item each, the largest that fits.
    without_medium = []
    for contents in bins:
        chosen = next((i for i in medium if problem.has_room(contents, i)), None)
        if chosen is None:
            without_medium.append(contents)
        else:
            medium.remove(chosen)
            contents.append(chosen)

    # From the last bin on, two small items: the smallest, and the largest that fits with it.
    for contents in reversed(without_medium):
        if len(small) >= 2 and problem.has_room(contents, *small[:2]):
            contents.append(small.pop(0))
            contents.append(next(i for i in reversed(small) if problem.has_room(contents, i)))
            small.remove(contents[-1])

    # Any items that fit, the largest first.
    rest = sorted(medium + small + tiny, key=lambda i: (-sizes[i], i))
    for contents in bins:
        while (
            chosen := next((i for i in rest if problem.has_room(contents, i)), None)
        ) is not None:
            rest.remove(chosen)
            contents.append(chosen)

    # More bins, kept in the order of their tokens; the first with room is the emptiest of these.
    more: list[Bin] = []
    for item in rest:
        place = next((n for n, held in enumerate(more) if problem.has_room(held, item)), None)
        contents = [] if place is None else more.pop(place)
        contents.append(item)
        loads = [problem.size(other) for other in more]
        more.insert(bisect_right(loads, problem.size(contents)), contents)
    return bins + more


def next_fit_loops(problem: Problem) -> list[Bin]:
    """Pack as NeMo-RL's concatenative packer."""
    bins: list[Bin] = [[]]
    for item in range(len(problem.items)):
        if bins[-1] and not problem.has_room(bins[-1], item):
            bins.append([])
        bins[-1].append(item)
    return bins if bins[-1] else []


def balance_loops(problem: Problem) -> list[Bin]:
    """Pack as SkyRL's balanced packer."""
    bins: list[Bin] = []
    for item in problem.longest(last=False):
        open_bins = [contents for contents in bins if problem.has_room(contents, item)]
        if open_bins:
            min(open_bins, key=problem.size).append(item)
        else:
            bins.append([item])
    return bins


PACKERS: dict[str, Callable[[Problem], list[Bin]]] = {
    "ff": lambda problem: first_fit_loops(problem, range(len(problem.items))),
    "ffd": lambda problem: first_fit_loops(problem, problem.longest(last=True)),
    "stable_ffd": lambda problem: first_fit_loops(problem, problem.longest(last=False)),
    "bfd": bfd_loops,
    "mffd": mffd_loops,
    "next_fit": next_fit_loops,
    "balanced": balance_loops,
}
"""By the names of :func:`fastcollate.planning.pack`: ``"ff"`` as axolotl's ``pack_group``,
``"ffd"`` as SkyRL's and NeMo-RL's first fit decreasing, ``"stable_ffd"`` as prime-rl's
``packed_samples_into_micro_bs``. ``"concat"`` is not a packer of whole items."""


def adjust_bin_count_loops(
    bins: Sequence[Sequence[Any]], min_bins: int, multiple: int, *, allow_fewer: bool = False
) -> list[list[Any]]:
    """Add bins as SkyRL and NeMo-RL do.

    Raises
    ------
    ValueError
        If there are fewer items than bins.
    """
    needed = max(len(bins), min_bins)
    while needed % multiple != 0:
        needed += 1
    if allow_fewer:
        needed = min(needed, max(len(bins), sum(map(len, bins))))
    adjusted = [list(contents) for contents in bins]
    if needed > len(bins) and sum(map(len, bins)) < needed:
        raise ValueError(f"there are fewer items than the {needed} bins")
    donors = sorted(range(len(bins)), key=lambda n: (len(bins[n]), n), reverse=True)
    while len(adjusted) < needed:
        donor = next(n for n in donors if len(adjusted[n]) > 1)
        adjusted.append([adjusted[donor].pop()])
    return adjusted


def split_heaviest_loops(
    bins: Sequence[Bin],
    weights: Sequence[float],
    min_bins: int,
    multiple: int,
    *,
    allow_fewer: bool = False,
) -> list[Bin]:
    """Add bins as slime and prime-rl do, and halve a bin whose items weigh nothing.

    Raises
    ------
    ValueError
        If there are fewer items than bins.
    """
    grown = [list(contents) for contents in bins]
    needed = _round_up(max(len(bins), min_bins), multiple)
    while len(grown) < needed:
        several = [n for n, contents in enumerate(grown) if len(contents) > 1]
        if not several:
            if allow_fewer:
                break
            raise ValueError(f"there are fewer items than the {needed} bins")
        heaviest = max(several, key=lambda n: (_sum(weights[i] for i in grown[n]), n))
        kept, given = _halves(grown[heaviest], weights)
        grown[heaviest] = kept
        grown.append(given)
    return grown


def _halves(contents: Bin, weights: Sequence[float]) -> tuple[Bin, Bin]:
    if not any(weights[item] for item in contents):
        middle = (len(contents) + 1) // 2
        return contents[:middle], contents[middle:]
    kept: Bin = []
    given: Bin = []
    for item in sorted(contents, key=lambda item: -weights[item]):
        is_lighter = _sum(weights[i] for i in kept) <= _sum(weights[i] for i in given)
        (kept if is_lighter else given).append(item)
    return kept, given


def concat_loops(
    lengths: Sequence[int], capacity: int, *, multiple: int = 1, max_sequences: int | None = None
) -> list[list[Piece]]:
    """Cut sequences where a bin is full, token by token, as torchtune and TRL's wrapped do."""
    bins: list[list[Piece]] = []
    for index, length in enumerate(lengths):
        if length == 0:
            if not bins or len(bins[-1]) == max_sequences:
                bins.append([])
            bins[-1].append((index, 0, 0))
        for token in range(length):
            if bins and bins[-1] and (piece := bins[-1][-1])[0] == index:
                longer = (index, piece[1], piece[2] + 1)
                if _room(bins[-1][:-1], multiple) + _round_up(longer[2], multiple) <= capacity:
                    bins[-1][-1] = longer
                    continue
            is_full = not bins or len(bins[-1]) == max_sequences
            if is_full or _room(bins[-1], multiple) + multiple > capacity:
                bins.append([])
            bins[-1].append((index, token, 1))
    return bins


def pack_loops(
    lengths: Sequence[int],
    capacity: int,
    *,
    algorithm: str = "ffd",
    max_sequences: int | None = None,
    multiple: int = 1,
    min_bins: int = 0,
    bins_multiple_of: int = 1,
    allow_fewer_bins: bool = False,
    grow_by: str = "move",
    groups: Sequence[Any] | None = None,
    oversize: str = "own_bin",
    max_cost: float | None = None,
    cost: Callable[[int], float] = float,
) -> list[list[Piece]]:
    """Pack sequences.

    Parameters
    ----------
    lengths, capacity, max_sequences, max_cost
        As in :func:`fastcollate.planning.pack`.
    min_bins, bins_multiple_of, allow_fewer_bins, grow_by
        As in :func:`fastcollate.planning.pack`.
    algorithm
        Its name; ``"concat"`` takes `max_sequences` and `multiple` only.
    multiple
        Lengths are rounded up to a multiple of this.
    groups
        Names of the groups that stay together.
    oversize
        ``"own_bin"``, ``"split"`` or ``"error"``.
    cost
        Returns the cost of a sequence of the given length.

    Returns
    -------
    list
        The pieces of each bin.

    Raises
    ------
    ValueError
        If an item exceeds a bin under ``"error"``, or there are too few items for all bins.
    """
    limit = Item(
        capacity,
        len(lengths) * (max(lengths, default=0) + 1) if max_sequences is None else max_sequences,
        float("inf") if max_cost is None else max_cost,
    )

    def item_of(pieces: list[Piece]) -> Item:
        return Item(
            sum(_round_up(length, multiple) for *_, length in pieces),
            len(pieces),
            reduce(add, (cost(length) for *_, length in pieces)) if max_cost is not None else 0.0,
        )

    if algorithm == "concat":
        cut = concat_loops(lengths, capacity, multiple=multiple, max_sequences=max_sequences)
        members = [[piece] for contents in cut for piece in contents]
        items = iter(range(len(members)))
        bins = [[next(items) for _ in contents] for contents in cut]
    else:
        members = _members(lengths, groups, limit, item_of, multiple, cost, oversize)
        bins = PACKERS[algorithm](Problem([item_of(pieces) for pieces in members], limit))
    if grow_by == "move":
        bins = adjust_bin_count_loops(
            bins, min_bins, bins_multiple_of, allow_fewer=allow_fewer_bins
        )
    else:
        weights = [_sum(cost(length) for *_, length in pieces) for pieces in members]
        bins = split_heaviest_loops(
            bins, weights, min_bins, bins_multiple_of, allow_fewer=allow_fewer_bins
        )
    return [[piece for item in contents for piece in members[item]] for contents in bins]


def _members(
    lengths: Sequence[int],
    groups: Sequence[Any] | None,
    limit: Item,
    item_of: Callable[[list[Piece]], Item],
    multiple: int,
    cost: Callable[[int], float],
    oversize: str,
) -> list[list[Piece]]:
    """Return the pieces that stay together: groups, sequences, or parts of long ones."""
    members: list[list[Piece]] = []
    groups = range(len(lengths)) if groups is None else groups
    for name in dict.fromkeys(groups):
        pieces = [(i, 0, lengths[i]) for i, other in enumerate(groups) if other == name]
        item = item_of(pieces)
        is_within = item.size <= limit.size and item.cost <= limit.cost
        if item.sequences > limit.sequences or (oversize == "error" and not is_within):
            raise ValueError(f"{item} exceeds {limit}")
        if oversize != "split" or is_within:
            members.append(pieces)
            continue
        fitting = [n for n in range(multiple, limit.size + 1, multiple) if cost(n) <= limit.cost]
        if len(pieces) > 1 or not fitting:
            raise ValueError(f"{item} exceeds {limit}, and has no piece that fits")
        index, _, length = pieces[0]
        for start in range(0, length, fitting[-1]):
            members.append([(index, start, min(fitting[-1], length - start))])
    return members


def _sum(costs: Iterable[float]) -> float:
    """Add from left to right; ``sum`` of newer Pythons rounds less."""
    return reduce(add, costs, 0.0)


def _round_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def _room(pieces: Sequence[Piece], multiple: int) -> int:
    return sum(_round_up(length, multiple) for *_, length in pieces)
