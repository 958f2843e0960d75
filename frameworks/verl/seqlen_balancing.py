"""Ports of verl's division of batches into micro-batches, row by row."""

from __future__ import annotations

from collections.abc import Sequence

from fastcollate.testing.reference.partitioning import (
    Part,
    karmarkar_karp_loops,
    ordered,
    parts_within,
)


def rearrange_loops(
    ranks: Sequence[Sequence[int]],
    limit: int,
    *,
    num_batches_divided_by: int = 1,
    min_num_micro_batch: int = 0,
    use_dynamic_bsz_balance: bool = True,
    force_group_size: int = 1,
) -> list[list[Part]] | None:
    """Split the rows of ranks as verl's ``rearrange_micro_batches`` does.

    Parameters
    ----------
    ranks
        Tokens of the rows of each rank. All ranks get the same number of micro-batches.
    limit
        Tokens of a micro-batch.
    num_batches_divided_by, min_num_micro_batch
        A divisor of the number of micro-batches, and the least number.
    use_dynamic_bsz_balance
        True if the micro-batches of least cost come at both ends.
    force_group_size
        Number of consecutive rows that stay together.

    Returns
    -------
    list[list[list[int]]] or None
        The rows of each micro-batch of each rank; None if there are too few.
    """
    groups = [
        [
            range(start, start + force_group_size)
            for start in range(0, len(lengths), force_group_size)
        ]
        for lengths in ranks
    ]
    tokens = [
        [sum(lengths[row] for row in group) for group in of_rank]
        for lengths, of_rank in zip(ranks, groups, strict=True)
    ]
    costs = [
        [sum(24_576 * lengths[row] + lengths[row] ** 2 for row in group) for group in of_rank]
        for lengths, of_rank in zip(ranks, groups, strict=True)
    ]
    least = max(1, min_num_micro_batch)
    count = max(least, *(min(len(each), -(-sum(each) // limit)) for each in tokens))
    while count % num_batches_divided_by:
        count += 1
    while count <= min(map(len, tokens)):
        found = [
            parts_within(cost, each, limit, count) for cost, each in zip(costs, tokens, strict=True)
        ]
        parts = [each for each in found if each is not None]
        if len(parts) == len(ranks):
            return [
                [
                    [row for group in part for row in of_rank[group]]
                    for part in _by_cost(of_parts, cost, use_dynamic_bsz_balance)
                ]
                for of_parts, of_rank, cost in zip(parts, groups, costs, strict=True)
            ]
        count += num_batches_divided_by
    return None


def _by_cost(parts: list[Part], costs: Sequence[int], by_cost: bool) -> list[Part]:
    if not by_cost:
        return parts

    def key(part: Part) -> tuple[int, int]:
        return sum(costs[item] for item in part), part[0]

    return ordered(sorted(parts, key=key, reverse=True), "small_ends")


def group_balanced_loops(
    lengths: Sequence[int], uids: Sequence[object], k: int
) -> list[list[int]] | None:
    """Partition groups of rows as verl's ``get_group_balanced_partitions`` does.

    Parameters
    ----------
    lengths, uids
        Tokens and id of each row; consecutive rows with equal ids are a group.
    k
        Number of parts.

    Returns
    -------
    list[list[int]] or None
        The rows of each part; None if `k` does not divide the number of groups, or exceeds it.
    """
    groups: list[list[int]] = []
    for row, uid in enumerate(uids):
        if row > 0 and uids[row - 1] == uid:
            groups[-1].append(row)
        else:
            groups.append([row])
    if len(groups) < k or len(groups) % k:
        return None
    costs = [sum(24_576 * lengths[row] + lengths[row] ** 2 for row in group) for group in groups]
    parts = karmarkar_karp_loops(costs, k, True)
    return [[row for group in sorted(part) for row in groups[group]] for part in parts]
