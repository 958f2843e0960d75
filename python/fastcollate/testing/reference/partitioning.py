"""Partitioning of sequences, with lists of sets and linear searches."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Part = list[int]


class _Set(NamedTuple):
    """The items of one part, with the comparison order of sets."""

    sum: Any
    size: int
    items: list[int]


class _State:
    """One set per part, heaviest first. Ordered by descending spread, then descending weight."""

    def __init__(self, sets: list[_Set]) -> None:
        self.sets = sorted(sets, reverse=True)
        self.spread = self.sets[0].sum - self.sets[-1].sum

    def __lt__(self, other: _State) -> bool:
        if self.spread != other.spread:
            return bool(self.spread > other.spread)
        return self.sets[0] > other.sets[0]


def karmarkar_karp_loops(weights: Sequence[Any], k: int, equal_size: bool = False) -> list[Part]:
    """Partition items by the largest differencing method, as verl's ``karmarkar_karp``.

    Weights are added in their own arithmetic, in the order in which a set grows. Every merge
    touches all sets, as verl's does, and takes about as long.

    Parameters
    ----------
    weights
        Weights of items: numbers, or objects that can be added and compared like them.
    k
        Number of parts.
    equal_size
        If True, all parts have equally many items; `k` divides their number.

    Returns
    -------
    list[list[int]]
        The parts, heaviest first, and the items of each in the order in which it grew.
    """
    order = sorted(range(len(weights)), key=lambda item: (weights[item], item))
    size = k if equal_size else 1
    states = []
    for start in range(0, len(order), size):
        sets = [_Set(0 + weights[item], 1, [item]) for item in order[start : start + size]]
        states.append(_State(sets + [_Set(0, 0, [])] * (k - len(sets))))
    heapq.heapify(states)
    while len(states) > 1:
        first, second = heapq.heappop(states), heapq.heappop(states)
        merged = []
        for large, small in zip(first.sets, reversed(second.sets), strict=True):
            total = large.sum
            for item in small.items:
                total = total + weights[item]
            merged.append(_Set(total, large.size + small.size, large.items + small.items))
        heapq.heappush(states, _State(merged))
    return [each.items for each in states[0].sets]


def lpt_loops(weights: Sequence[float], k: int, equal_size: bool = False) -> list[Part]:
    """Assign each item, the heaviest first, to the lightest part so far."""
    parts: list[Part] = [[] for _ in range(k)]
    loads = [0.0] * k
    for item in sorted(range(len(weights)), key=lambda item: (-weights[item], item)):
        with_room = [
            part for part in range(k) if not equal_size or len(parts[part]) * k < len(weights)
        ]
        least = min(with_room, key=lambda part: (loads[part], len(parts[part]), part))
        parts[least].append(item)
        loads[least] += weights[item]
    return [sorted(part) for part in parts]


def lpt_swap_loops(weights: Sequence[float], k: int, equal_size: bool = False) -> list[Part]:
    """Swap items between the heaviest part and the lightest, as long as that helps."""
    parts = lpt_loops(weights, k, equal_size)
    while True:
        loads = [sum(weights[item] for item in part) for part in parts]
        light = min(range(k), key=lambda part: (loads[part], part))
        heavy = max(range(k), key=lambda part: (loads[part], part))
        difference = loads[heavy] - loads[light]
        exchanges = []
        for item in parts[heavy]:
            for back in parts[light] if equal_size else [-1, *parts[light]]:
                moved = weights[item] - (weights[back] if back >= 0 else 0)
                left = abs(difference - 2 * moved)
                if left < difference:
                    exchanges.append((left, item, back))
        if not exchanges:
            return [sorted(part) for part in parts]
        _, item, back = min(exchanges)
        parts[heavy].remove(item)
        parts[light].append(item)
        if back >= 0:
            parts[light].remove(back)
            parts[heavy].append(back)


def search_parts_loops(
    costs: Sequence[Any], lengths: Sequence[int], capacity: int, first: int, step: int
) -> list[Part] | None:
    """Partition items by cost into the first number of parts of which none is too long.

    From 256 steps on, numbers are left out: the stride doubles until the parts do; what lies
    between that number and the one before is bisected, down to a 128th.
    """
    counts = range(first, len(lengths) + 1, step)
    if not counts:
        return None

    def finest(place: int) -> int:
        return max(1, (first // step + place) // 128)

    before, place, stride = -1, 0, 4 * finest(0)
    while (parts := parts_within(costs, lengths, capacity, counts[place])) is None:
        if place == len(counts) - 1:
            return None
        if finest(place) == 1:
            stride = 1
        before, place = place, min(place + stride, len(counts) - 1)
        stride *= 2
    while before >= 0 and place - before > finest(before):
        middle = (before + place) // 2
        fewer = parts_within(costs, lengths, capacity, counts[middle])
        if fewer is None:
            before = middle
        else:
            place, parts = middle, fewer
    return parts


def parts_within(
    costs: Sequence[Any], lengths: Sequence[int], capacity: int, count: int
) -> list[Part] | None:
    """Return `k` parts, unless one is too long."""
    parts = [sorted(part) for part in karmarkar_karp_loops(costs, count)]
    if all(sum(lengths[item] for item in part) <= capacity for part in parts):
        return parts
    return None


def micro_batches_loops(
    lengths: Sequence[int],
    capacity: int,
    dp_size: int,
    multiple_of: int,
    order: str,
    min_bins: int,
    cost: Callable[[int], Any],
) -> list[list[Part]] | None:
    """Split sequences into micro-batches, a list per rank; None if there are too few."""
    costs = [cost(length) for length in lengths]
    per_rank = min_bins
    while per_rank % multiple_of or per_rank * dp_size * capacity < sum(lengths):
        per_rank += 1
    step = multiple_of * dp_size
    parts = search_parts_loops(costs, lengths, capacity, per_rank * dp_size, step)
    if parts is None:
        return None

    parts.sort(key=lambda part: (sum(costs[item] for item in part), part[0]), reverse=True)
    ranks: list[list[Part]] = [[] for _ in range(dp_size)]
    loads: list[Any] = [0] * dp_size
    for start in range(0, len(parts), dp_size):
        idle = sorted(range(dp_size), key=lambda rank: (loads[rank], rank))
        for rank, part in zip(idle, parts[start : start + dp_size], strict=True):
            ranks[rank].append(part)
            for item in part:
                loads[rank] += costs[item]
    return [ordered(rank, order) for rank in ranks]


def ordered(parts: list[Part], order: str) -> list[Part]:
    """Reorder parts, which come costliest first."""
    if order == "small_ends":
        left: list[Part] = []
        right: list[Part] = []
        for place, part in enumerate(parts):
            (right if place % 2 else left).append(part)
        return left[::-1] + right
    return parts[::-1] if order == "ascending" else parts
