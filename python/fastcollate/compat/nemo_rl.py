"""Sequence packers in place of ``nemo_rl.data.packing``."""

from __future__ import annotations

import enum
import math
import random
import statistics
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

from fastcollate.common.arguments import suggests_names
from fastcollate.common.names import list_names_of
from fastcollate.compat.bin_packers import BinPacker, check_capacity, find_packer
from fastcollate.rows.lengths import check_lengths

__all__ = ["PackingAlgorithm", "PackingMetrics", "get_packer"]

Bins: TypeAlias = list[list[int]]


class PackingAlgorithm(enum.Enum):
    """Packing algorithms."""

    CONCATENATIVE = "concatenative"
    FIRST_FIT_DECREASING = "first_fit_decreasing"
    FIRST_FIT_SHUFFLE = "first_fit_shuffle"
    MODIFIED_FIRST_FIT_DECREASING = "modified_first_fit_decreasing"


class PackingMetrics:
    """Bin utilization of one packing and aggregated over all.

    Notes
    -----
    Written against NeMo-RL: ``nemo_rl.data.packing.metrics``, with the same attributes and keys.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset all metrics."""
        self._packings: list[dict[str, float]] = []
        self._times: list[float] = []

    def update(
        self,
        sequence_lengths: Sequence[int],
        bins: Bins,
        bin_capacity: int,
        packing_time: float | None = None,
    ) -> dict[str, float]:
        """Add a packing, and return the result of :meth:`calculate_stats_only`.

        Parameters
        ----------
        sequence_lengths, bins, bin_capacity
            As in :meth:`calculate_stats_only`.
        packing_time
            Duration of the packing.
        """
        stats = self.calculate_stats_only(sequence_lengths, bins, bin_capacity)
        of_all = {
            "num_sequences": len(sequence_lengths),
            "total_sequence_length": sum(sequence_lengths),
        }
        self._packings.append(stats | of_all)
        if packing_time is not None:
            self._times.append(packing_time)
        return stats

    def calculate_stats_only(
        self, sequence_lengths: Sequence[int], bins: Bins, bin_capacity: int
    ) -> dict[str, float]:
        """Return the statistics of a packing, without adding it.

        Parameters
        ----------
        sequence_lengths
            Tokens of each sequence.
        bins
            The sequences of each bin.
        bin_capacity
            Capacity of a bin in tokens.

        Returns
        -------
        dict
            ``num_sequences``, ``num_bins``, ``total_sequence_length`` and ``total_bin_capacity``;
            ``total_waste``, the difference of these two; ``average_utilization`` and
            ``waste_ratio``, both over the capacity; ``bin_balance``, 1 minus the standard deviation
            of bin utilization over its average; ``theoretical_min_bins``, enough for all tokens if
            sequences could be split, and ``bin_efficiency``, that over the number of bins. All are
            0 without bins.

        Raises
        ------
        ZeroDivisionError
            There are several bins and no tokens.
        """
        tokens, count = (sum(sequence_lengths), len(bins)) if bins else (0, 0)
        total = count * bin_capacity
        least = math.ceil(tokens / bin_capacity) if bins else 0
        utilization = tokens / total if bins else 0.0
        balance = 1.0 if bins else 0.0
        if count > 1:
            loads = [sum(sequence_lengths[index] for index in members) for members in bins]
            deviation = statistics.stdev(load / bin_capacity for load in loads)
            balance = 1.0 - deviation / utilization
        return {
            "num_sequences": len(sequence_lengths) if bins else 0,
            "num_bins": count,
            "total_sequence_length": tokens,
            "total_bin_capacity": total,
            "total_waste": total - tokens,
            "average_utilization": utilization,
            "waste_ratio": (total - tokens) / total if bins else 0.0,
            "bin_balance": balance,
            "theoretical_min_bins": least,
            "bin_efficiency": least / count if bins else 0.0,
        }

    def get_aggregated_stats(self) -> dict[str, float]:
        """Return the statistics of all packings together; none if there were none.

        Returns
        -------
        dict
            ``total_sequences`` and ``total_bins``; ``average_``, ``min_`` and ``max_utilization``;
            ``average_``, ``min_`` and ``max_waste_ratio``; ``average_bin_count``;
            ``bin_efficiency``; ``average_packing_time`` if any were given.
        """
        if not self._packings:
            return {}
        columns = {name: [one[name] for one in self._packings] for name in self._packings[0]}
        bins, capacity = sum(columns["num_bins"]), sum(columns["total_bin_capacity"])
        tokens = sum(columns["total_sequence_length"])
        least = math.ceil(tokens / (capacity / bins)) if bins else 0
        stats = {
            "total_sequences": sum(columns["num_sequences"]),
            "total_bins": bins,
            "average_utilization": tokens / capacity if capacity > 0 else 0.0,
            "min_utilization": min(1.0, *columns["average_utilization"]),
            "max_utilization": max(0.0, *columns["average_utilization"]),
            "average_waste_ratio": sum(columns["total_waste"]) / capacity if capacity > 0 else 0.0,
            "min_waste_ratio": min(1.0, *columns["waste_ratio"]),
            "max_waste_ratio": max(0.0, *columns["waste_ratio"]),
            "average_bin_count": bins / len(self._packings),
            "bin_efficiency": least / bins if bins else 0.0,
        }
        if self._times:
            stats["average_packing_time"] = sum(self._times) / len(self._times)
        return stats

    def print_aggregated_stats(self) -> None:
        """Print the result of :meth:`get_aggregated_stats`."""
        stats = self.get_aggregated_stats()
        if not stats:
            print("No packing was measured yet.")
        for name, value in stats.items():
            print(f"{name:<22}{value:>14,.4f}" if value % 1 else f"{name:<22}{value:>14,.0f}")


class SequencePacker(BinPacker):
    """Packs sequences into bins: the base class of the four packers.

    Parameters
    ----------
    bin_capacity
        Capacity of a bin in tokens.
    collect_metrics
        If True, collect `metrics` of all packings.
    min_bin_count
        Least number of bins; None for any.
    bin_count_multiple
        The number of bins is a multiple of this; None for any.

    Attributes
    ----------
    metrics : PackingMetrics or None
        Metrics of all packings, if collected.

    Raises
    ------
    ValueError
        `min_bin_count` is negative, or `bin_count_multiple` not positive.
    """

    def __init__(
        self,
        bin_capacity: int,
        collect_metrics: bool = False,
        min_bin_count: int | None = None,
        bin_count_multiple: int | None = None,
    ) -> None:
        super().__init__(bin_capacity, min_bin_count, bin_count_multiple)
        self.collect_metrics = collect_metrics
        self.metrics = PackingMetrics() if collect_metrics else None

    def pack(self, sequence_lengths: Sequence[int]) -> Bins:
        """Pack sequences, and add to the metrics if they are collected.

        Parameters
        ----------
        sequence_lengths
            Tokens of each sequence.

        Returns
        -------
        list[list[int]]
            The sequences of each bin. Bins beyond those that sequences need come last, each with
            the last sequence of one of the largest bins.

        Raises
        ------
        ValueError
            A sequence exceeds the capacity or has a negative length; more bins are required than
            there are sequences.
        """
        bins = self._packed(sequence_lengths)
        if self.collect_metrics and self.metrics is not None:
            self.metrics.update(sequence_lengths, bins, self.bin_capacity)
        return bins

    def _packed(self, lengths: Sequence[int]) -> Bins:
        raise NotImplementedError(f"{type(self).__name__} cannot pack; call get_packer")

    def reset_metrics(self) -> None:
        """Reset the metrics."""
        if self.metrics is not None:
            self.metrics.reset()

    def compute_metrics(self, sequence_lengths: Sequence[int], bins: Bins) -> dict[str, float]:
        """Return the statistics of a packing: :meth:`PackingMetrics.calculate_stats_only`."""
        metrics = self.metrics or PackingMetrics()
        return metrics.calculate_stats_only(sequence_lengths, bins, self.bin_capacity)

    def get_aggregated_metrics(self) -> dict[str, float]:
        """Return the statistics of all packings: :meth:`PackingMetrics.get_aggregated_stats`."""
        return {} if self.metrics is None else self.metrics.get_aggregated_stats()

    def print_metrics(self) -> None:
        """Print the statistics of all packings."""
        if self.metrics is None:
            print("Metrics are not collected; pass collect_metrics=True to the packer.")
        else:
            self.metrics.print_aggregated_stats()


class ConcatenativePacker(SequencePacker):
    """Put sequences into a bin in order, until the next one does not fit."""

    max_sequences_per_bin: ClassVar[int] = -1
    """Most sequences of a bin; -1 for any number."""

    def _packed(self, lengths: Sequence[int]) -> Bins:
        most = self.max_sequences_per_bin
        return self._bins(lengths, "next_fit", max_sequences=None if most == -1 else max(most, 1))


class FirstFitDecreasingPacker(SequencePacker):
    """Put each sequence, the longest first, into the first bin with room."""

    def _packed(self, lengths: Sequence[int]) -> Bins:
        return self._bins(lengths, "ffd")


class FirstFitShufflePacker(SequencePacker):
    """Put each sequence, shuffled by Python's global generator, into the first bin with room."""

    def _packed(self, lengths: Sequence[int]) -> Bins:
        sizes = check_lengths("sequence_lengths", lengths, "sequence")
        check_capacity(sizes, self.bin_capacity)
        order = list(range(len(lengths)))
        random.shuffle(order)
        bins = self._bins([lengths[index] for index in order], "ff")
        return [[order[place] for place in members] for members in bins]


class ModifiedFirstFitDecreasingPacker(SequencePacker):
    """Pack by size classes: the modified first fit decreasing of Johnson and Garey.

    As in NeMo-RL, sequences must have tokens. No bin is empty: older versions of NeMo-RL kept an
    empty one if the bins of sequences longer than half the capacity hold all others too.
    """

    def _packed(self, lengths: Sequence[int]) -> Bins:
        if len(lengths) > 0 and min(lengths) == 0:
            index = list(lengths).index(0)
            raise ValueError(
                f"sequence lengths must be positive, but sequence_lengths[{index}] is 0; pass only "
                "sequences that have tokens"
            )
        return self._bins(lengths, "mffd")


_PACKERS: dict[str, type[SequencePacker]] = {
    "CONCATENATIVE": ConcatenativePacker,
    "FIRST_FIT_DECREASING": FirstFitDecreasingPacker,
    "FIRST_FIT_SHUFFLE": FirstFitShufflePacker,
    "MODIFIED_FIRST_FIT_DECREASING": ModifiedFirstFitDecreasingPacker,
}


@suggests_names
def get_packer(
    algorithm: PackingAlgorithm | str | Any,
    bin_capacity: int,
    collect_metrics: bool = False,
    min_bin_count: int | None = None,
    bin_count_multiple: int | None = None,
) -> SequencePacker:
    """Return a packer of sequences, as NeMo-RL's function of this name does.

    Parameters
    ----------
    algorithm
        A :class:`PackingAlgorithm`, NeMo-RL's or the one here, or its name in any case.
    bin_capacity
        Capacity of a bin in tokens.
    collect_metrics
        If True, the packer collects ``metrics``, :class:`PackingMetrics` of all packings.
    min_bin_count
        Least number of bins; None for any.
    bin_count_multiple
        The number of bins is a multiple of this; None for any.

    Returns
    -------
    SequencePacker
        A packer whose ``pack(sequence_lengths)`` gives the same bins as NeMo-RL's, in less time. It
        is an instance of NeMo-RL's class of the same name, too, if that is loaded.

    Raises
    ------
    ValueError
        An unknown algorithm, or an invalid number of bins.

    Notes
    -----
    Written against NeMo-RL at commit f4b1bdc, and its main branch where that leaves empty bins out:
    ``get_packer`` of ``nemo_rl.data.packing``.
    """
    packer = find_packer(algorithm, _PACKERS, "nemo_rl.data.packing.algorithms")
    return packer(bin_capacity, collect_metrics, min_bin_count, bin_count_multiple)


list_names_of(__name__)
