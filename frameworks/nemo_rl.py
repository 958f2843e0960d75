"""How NeMo-RL packs sequences into bins, one sequence after the other."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

from frameworks.skyrl.seq_packing import first_fit_decreasing, with_more_bins

Bins = list[list[int]]


def pack_sequences(
    lengths: Sequence[int],
    algorithm: str,
    capacity: int,
    min_bin_count: int | None = None,
    bin_count_multiple: int | None = None,
    max_sequences_per_bin: int = -1,
) -> Bins:
    """Do what the packers of NeMo-RL's ``get_packer`` do.

    Parameters
    ----------
    lengths
        Tokens of each sequence.
    algorithm
        ``"concatenative"``, ``"first_fit_decreasing"``, ``"first_fit_shuffle"`` (whose order comes
        from Python's global generator) or ``"modified_first_fit_decreasing"``.
    capacity
        How many tokens go into a bin.
    min_bin_count, bin_count_multiple
        How many bins there are at least, and what their number is a multiple of.
    max_sequences_per_bin
        The same attribute of the concatenative packer; -1 for no limit.

    Returns
    -------
    list[list[int]]
        The sequences of each bin.

    Raises
    ------
    ValueError
        If a sequence exceeds the capacity, there are more bins than sequences, or, of
        modified_first_fit_decreasing, a length is not positive.

    Notes
    -----
    NeMo-RL at commit f4b1bdc, ``nemo_rl/data/packing/algorithms.py``. SkyRL's first-fit decreasing
    and its way to more bins come from there.
    """
    if any(length > capacity for length in lengths):
        raise ValueError("a sequence exceeds the capacity")
    if algorithm == "concatenative":
        bins = concatenative(lengths, capacity, max_sequences_per_bin)
    elif algorithm == "first_fit_decreasing":
        bins = first_fit_decreasing(lengths, capacity)
    elif algorithm == "first_fit_shuffle":
        order = list(range(len(lengths)))
        random.shuffle(order)
        bins = first_fit(lengths, order, capacity)
    else:
        bins = modified_first_fit_decreasing(lengths, capacity)
    return with_more_bins(bins, min_bin_count, bin_count_multiple)


def concatenative(lengths: Sequence[int], capacity: int, most: int) -> Bins:
    """Begin a new bin where the next sequence has no room."""
    bins: Bins = []
    for item, length in enumerate(lengths):
        load = sum(lengths[other] for other in bins[-1]) if bins else 0
        full = bool(bins) and most != -1 and len(bins[-1]) >= most
        if not bins or full or load + length > capacity:
            bins.append([])
        bins[-1].append(item)
    return bins


def first_fit(lengths: Sequence[int], order: Sequence[int], capacity: int) -> Bins:
    """Put each sequence, in some order, into the first bin that has room for it."""
    bins: Bins = []
    for item in order:
        for members in bins:
            if sum(lengths[other] for other in members) + lengths[item] <= capacity:
                members.append(item)
                break
        else:
            bins.append([item])
    return bins


def modified_first_fit_decreasing(lengths: Sequence[int], capacity: int) -> Bins:
    """Pack by classes of sizes, in five steps.

    Returns
    -------
    list[list[int]]
        One bin for each sequence of more than half the capacity, then those of what is left.

    Raises
    ------
    ValueError
        If a length or the capacity is not positive.
    """
    if capacity <= 0 or any(length <= 0 for length in lengths):
        raise ValueError("a length is not positive")
    large: list[int] = []
    medium: list[int] = []
    small: list[int] = []
    tiny: list[int] = []
    for item, length in enumerate(lengths):
        if 2 * length > capacity:
            large.append(item)
        elif 3 * length > capacity:
            medium.append(item)
        elif 6 * length > capacity:
            small.append(item)
        else:
            tiny.append(item)
    large.sort(key=lambda item: -lengths[item])
    medium.sort(key=lambda item: -lengths[item])
    small.sort(key=lambda item: lengths[item])
    tiny.sort(key=lambda item: lengths[item])

    bins = [[item] for item in large]

    def room(members: list[int]) -> int:
        return capacity - sum(lengths[item] for item in members)

    # The largest medium one that fits.
    for members in bins:
        for item in medium:
            if lengths[item] <= room(members):
                members.append(item)
                medium.remove(item)
                break
    # From the back, into bins without a medium one: the smallest small one with the largest other
    # that fits, if two fit at all.
    for members in reversed(bins):
        if len(members) > 1 or len(small) < 2:
            continue
        if lengths[small[0]] + lengths[small[1]] > room(members):
            continue
        first = small.pop(0)
        fitting = [item for item in small if lengths[item] <= room(members) - lengths[first]]
        members += [first, fitting[-1]]
        small.remove(fitting[-1])
    # Whatever fits, the largest first.
    rest = sorted(medium + small + tiny, key=lambda item: -lengths[item])
    for members in bins:
        for item in list(rest):
            if lengths[item] <= room(members):
                members.append(item)
                rest.remove(item)
    # What is left goes to the emptiest of new bins; of equally empty ones, to the oldest so.
    new: Bins = [[]]
    for item in rest:
        members = new.pop(0) if lengths[item] <= room(new[0]) else []
        members.append(item)
        place = 0
        while place < len(new) and room(new[place]) >= room(members):
            place += 1
        new.insert(place, members)
    return bins + [members for members in new if members]


def packing_stats(lengths: Sequence[int], bins: Bins, capacity: int) -> dict[str, float]:
    """Do what ``compute_metrics`` of NeMo-RL's packers does.

    Returns
    -------
    dict
        Ten numbers about how full and how equal the bins are; all 0 where there are none.

    Raises
    ------
    ZeroDivisionError
        If there are several bins and no tokens.

    Notes
    -----
    NeMo-RL, ``nemo_rl/data/packing/metrics.py``.
    """
    tokens = sum(lengths) if bins else 0
    total = len(bins) * capacity
    stats: dict[str, float] = {
        "num_sequences": len(lengths) if bins else 0,
        "num_bins": len(bins),
        "total_sequence_length": tokens,
        "total_bin_capacity": total,
        "total_waste": total - tokens,
        "average_utilization": tokens / total if bins else 0.0,
        "waste_ratio": (total - tokens) / total if bins else 0.0,
        "bin_balance": 1.0 if bins else 0.0,
        "theoretical_min_bins": math.ceil(tokens / capacity) if bins else 0,
        "bin_efficiency": math.ceil(tokens / capacity) / len(bins) if bins else 0.0,
    }
    if len(bins) > 1:
        loads = [sum(lengths[item] for item in members) / capacity for members in bins]
        stats["bin_balance"] = 1.0 - statistics.stdev(loads) / stats["average_utilization"]
    return stats
