"""Ports of NeMo-RL's packers of sequences into bins, on the reference algorithms."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

from fastcollate.testing.reference import pack_loops

Bins = list[list[int]]

ALGORITHMS = {
    "concatenative": "next_fit",
    "first_fit_decreasing": "ffd",
    "first_fit_shuffle": "ff",
    "modified_first_fit_decreasing": "mffd",
}
"""Ours with the same bins."""


def pack_sequences(
    lengths: Sequence[int],
    algorithm: str,
    capacity: int,
    min_bin_count: int | None = None,
    bin_count_multiple: int | None = None,
    max_sequences_per_bin: int = -1,
) -> Bins:
    """Pack sequences as the packers of NeMo-RL's ``get_packer``.

    Parameters
    ----------
    lengths
        Tokens of each sequence.
    algorithm
        ``"concatenative"``, ``"first_fit_decreasing"``, ``"first_fit_shuffle"`` (whose order comes
        from Python's global generator) or ``"modified_first_fit_decreasing"``.
    capacity
        Most tokens of a bin.
    min_bin_count, bin_count_multiple
        Least number of bins, and a divisor of their number.
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
    NeMo-RL at commit f4b1bdc, ``nemo_rl/data/packing/algorithms.py``.
    """
    order = list(range(len(lengths)))
    if algorithm == "first_fit_shuffle":
        random.shuffle(order)
    elif algorithm == "modified_first_fit_decreasing" and any(length <= 0 for length in lengths):
        raise ValueError("a length is not positive")
    is_limited = algorithm == "concatenative" and max_sequences_per_bin != -1
    bins = pack_loops(
        [lengths[item] for item in order],
        capacity,
        algorithm=ALGORITHMS[algorithm],
        max_sequences=max(max_sequences_per_bin, 1) if is_limited else None,
        min_bins=min_bin_count or 0,
        bins_multiple_of=bin_count_multiple or 1,
        oversize="error",
    )
    return [[order[item] for item, *_ in contents] for contents in bins]


def packing_stats(lengths: Sequence[int], bins: Bins, capacity: int) -> dict[str, float]:
    """Return the metrics of ``compute_metrics`` of NeMo-RL's packers.

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
