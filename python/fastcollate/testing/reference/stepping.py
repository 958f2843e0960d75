"""Planning of a step, in loops over rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

Slot = tuple[int, bool]
"""A row of the step, -1 for a synthetic one, and whether it is padding."""


def prompt_boundaries_loops(uids: Sequence[Any]) -> list[tuple[int, int]]:
    """Find the rows of every prompt.

    Raises
    ------
    ValueError
        If a uid comes again after another.
    """
    boundaries: list[tuple[int, int]] = []
    start = 0
    for row in range(1, len(uids) + 1):
        if row == len(uids) or uids[row] != uids[row - 1]:
            if uids[start] in uids[:start]:
                raise ValueError(
                    f"uid {uids[start]!r} appears in non-contiguous positions at index {start}"
                )
            boundaries.append((start, row))
            start = row
    return boundaries


def plan_step_loops(
    lengths: Sequence[int],
    mini_batches: list[tuple[int, int]],
    *,
    dp_size: int,
    pad_rows: str = "copy_first",
    shard_by: str = "contiguous",
    cost: Callable[[int], float] | None = None,
    groups: list[tuple[int, int]] | None = None,
) -> list[list[list[Slot]]]:
    """Pad and split mini-batches.

    Parameters
    ----------
    lengths
        Tokens of each row.
    mini_batches
        First row of each, and one past its last.
    dp_size
        Number of ranks.
    pad_rows
        ``"copy_first"``, ``"copy_cycle"``, ``"synthetic"`` or ``"error"``.
    shard_by
        ``"contiguous"``, ``"strided"`` or ``"balanced"``, by `cost` of a row's length.
    groups
        The rows that must stay together.

    Returns
    -------
    list
        The slots that are written, by mini-batch and rank.

    Raises
    ------
    ValueError
        If padding is needed, but an error.
    """
    out = []
    for start, end in mini_batches:
        if pad_rows == "error" and (end - start) % dp_size:
            raise ValueError(f"rows {start} to {end} cannot be divided by {dp_size}")

        def pad(index: int, rows: range = range(start, end)) -> Slot:
            if pad_rows == "synthetic":
                return -1, True
            return rows[index % len(rows) if pad_rows == "copy_cycle" else 0], True

        def cost_of(slot: Slot) -> float:
            assert cost is not None
            return cost(2 if slot[0] < 0 else lengths[slot[0]])

        missing: list[Slot] = []
        if groups is None:
            items: list[list[Slot]] = [[(row, False)] for row in range(start, end)]
            missing = [pad(index) for index in range(-len(items) % dp_size)]
        else:
            items = [
                [(row, False) for row in range(*group)]
                for group in groups
                if start <= group[0] < end
            ]
        ranks = _ranks(items, dp_size, shard_by, cost_of, missing)
        filled = [[slot for item in rank for slot in item] for rank in ranks]
        count = max(map(len, filled))
        if pad_rows == "error" and count * dp_size != end - start:
            raise ValueError(f"rows {start} to {end} cannot be divided by {dp_size} in groups")
        paddings = itertools.count()
        for rank in filled:
            rank += [pad(next(paddings)) for _ in range(count - len(rank))]
        out.append(filled)
    return out


def _ranks(
    items: list[list[Slot]],
    dp_size: int,
    shard_by: str,
    cost: Callable[[Slot], float],
    missing: list[Slot],
) -> list[list[list[Slot]]]:
    """Assign items, each of which stays together; the last ranks miss one row each."""
    rows = sum(map(len, items))
    least = max(-(-rows // dp_size), max(map(len, items)))
    if shard_by == "strided":
        return [items[rank::dp_size] for rank in range(dp_size)]
    if shard_by == "contiguous":
        for capacity in range(least, rows + 1):
            if _num_filled(items, capacity) <= dp_size:
                return _in_order(items, dp_size, capacity)
        raise AssertionError("there is room for all rows")
    costs = [sum(map(cost, item)) for item in items]
    padding = [0.0] * (dp_size - len(missing)) + [cost(slot) for slot in missing]
    room = [least] * (dp_size - len(missing)) + [least - 1] * len(missing)
    if (ranks := _balance(items, costs, padding, room, False)) is not None:
        return ranks
    # The same search as everywhere: where it does not tell, other capacities may do, too.
    start, end = least, rows
    while start < end:
        middle = (start + end) // 2
        if _balance(items, costs, padding, [middle] * dp_size, True) is None:
            start = middle + 1
        else:
            end = middle
    ranks = _balance(items, costs, padding, [start] * dp_size, False)
    ranks = ranks or _balance(items, costs, padding, [start] * dp_size, True)
    assert ranks is not None
    return ranks


def _num_filled(items: list[list[Slot]], capacity: int) -> int:
    """Count the ranks of at most `capacity` rows that items need, in order."""
    ranks, rows = 0, capacity
    for item in items:
        if rows + len(item) > capacity:
            ranks, rows = ranks + 1, 0
        rows += len(item)
    return ranks


def _in_order(items: list[list[Slot]], dp_size: int, capacity: int) -> list[list[list[Slot]]]:
    """Assign to each rank about its part of the remaining rows, at most the capacity."""
    ranks: list[list[list[Slot]]] = []
    left = items
    for others in reversed(range(dp_size)):
        part = -(-sum(map(len, left)) // (others + 1))
        # Every other rank gets an item, if there are as many.
        most = max(len(left) - others, min(len(left), 1))
        ends = [
            end
            for end in range(min(len(left), 1), most + 1)
            if sum(map(len, left[:end])) <= capacity and _num_filled(left[end:], capacity) <= others
        ]
        end = min(ends, key=lambda end: (abs(sum(map(len, left[:end])) - part), -end))
        ranks.append(left[:end])
        left = left[end:]
    return ranks


def _balance(
    items: list[list[Slot]],
    costs: list[float],
    padding: list[float],
    room: list[int],
    large_first: bool,
) -> list[list[list[Slot]]] | None:
    """Assign each item, the largest first, to the rank of least cost that has room for it."""
    order = sorted(
        range(len(items)),
        key=lambda index: (-len(items[index]) if large_first else 0, -costs[index], index),
    )
    loads = padding.copy()
    rows = [max(room) - count for count in room]
    of_rank: list[list[int]] = [[] for _ in room]
    for index in order:
        free = [rank for rank, used in enumerate(rows) if used + len(items[index]) <= max(room)]
        if not free:
            return None
        best = min(free, key=lambda rank: (loads[rank], rows[rank]))
        loads[best] += costs[index]
        rows[best] += len(items[index])
        of_rank[best].append(index)
    return [[items[index] for index in sorted(indices)] for indices in of_rank]
