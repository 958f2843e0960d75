"""How SkyRL packs sequences into bins, one sequence after the other."""

from __future__ import annotations

from collections.abc import Sequence

Bins = list[list[int]]


def pack_sequences(
    lengths: Sequence[int],
    algorithm: str,
    capacity: int,
    min_bin_count: int | None = None,
    bin_count_multiple: int | None = None,
) -> Bins:
    """Do what the packers of SkyRL's ``make_seq_packer`` do.

    Parameters
    ----------
    lengths
        Tokens of each sequence.
    algorithm
        ``"first_fit_decreasing"`` or ``"balanced"``.
    capacity
        How many tokens go into a bin.
    min_bin_count, bin_count_multiple
        How many bins there are at least, and what their number is a multiple of.

    Returns
    -------
    list[list[int]]
        The sequences of each bin.

    Raises
    ------
    ValueError
        If a sequence exceeds the capacity (of first_fit_decreasing only), or there are more bins
        than sequences.

    Notes
    -----
    SkyRL 0.3.0, ``skyrl/train/dataset/bin_packing.py``.
    """
    if algorithm == "first_fit_decreasing":
        bins = first_fit_decreasing(lengths, capacity)
    else:
        bins = balanced(lengths, capacity)
    return with_more_bins(bins, min_bin_count, bin_count_multiple)


def first_fit_decreasing(lengths: Sequence[int], capacity: int) -> Bins:
    """Put each sequence, the longest first, into the first bin that has room for it.

    Of sequences of one length, the last comes first.

    Raises
    ------
    ValueError
        If a sequence exceeds the capacity.
    """
    if any(length > capacity for length in lengths):
        raise ValueError("a sequence exceeds the capacity")
    bins: Bins = []
    room: list[int] = []
    for length, item in sorted(((length, item) for item, length in enumerate(lengths)))[::-1]:
        fitting = [index for index in range(len(bins)) if room[index] >= length]
        if not fitting:
            fitting = [len(bins)]
            bins.append([])
            room.append(capacity)
        bins[fitting[0]].append(item)
        room[fitting[0]] -= length
    return bins


def balanced(lengths: Sequence[int], capacity: int) -> Bins:
    """Put each sequence, the longest first, into the emptiest bin, if it has room.

    Of sequences of one length, the first comes first, and so of bins. A sequence that exceeds the
    capacity has a bin of its own.
    """
    bins: Bins = []
    loads: list[int] = []
    for item in sorted(range(len(lengths)), key=lambda item: -lengths[item]):
        emptiest = loads.index(min(loads)) if loads else 0
        if not loads or loads[emptiest] + lengths[item] > capacity:
            emptiest = len(bins)
            bins.append([])
            loads.append(0)
        bins[emptiest].append(item)
        loads[emptiest] += lengths[item]
    return bins


def with_more_bins(
    bins: Bins, min_bin_count: int | None = None, bin_count_multiple: int | None = None
) -> Bins:
    """Add bins of one sequence each, which bins of several give away.

    Parameters
    ----------
    bins
        The sequences of each bin.
    min_bin_count, bin_count_multiple
        How many bins there are at least, and what their number is a multiple of.

    Returns
    -------
    list[list[int]]
        The bins, of which the largest have given their last sequences, and behind them the new
        ones. Which bin is larger is asked once, at the beginning; of equally large ones the last
        gives first, until it has one sequence left.

    Raises
    ------
    ValueError
        If there are more bins than sequences.
    """
    count = max(len(bins), min_bin_count or 0)
    while count % (bin_count_multiple or 1):
        count += 1
    if count > len(bins) and count > sum(map(len, bins)):
        raise ValueError("there are fewer sequences than bins")
    bins = [list(members) for members in bins]
    order = sorted(range(len(bins)), key=lambda index: (len(bins[index]), index), reverse=True)
    while len(bins) < count:
        largest = next((index for index in order if len(bins[index]) > 1), None)
        if largest is None:
            raise ValueError("no bin has two sequences")
        bins.append([bins[largest].pop()])
    return bins
