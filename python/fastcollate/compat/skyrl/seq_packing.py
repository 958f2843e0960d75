"""Sequence packers in place of ``skyrl.train.dataset.bin_packing``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from fastcollate.common.arguments import suggests_names
from fastcollate.compat.bin_packers import BinPacker, find_packer


class SeqPacker(BinPacker):
    """Packs sequences into bins."""

    _algorithm: ClassVar[Literal["ffd", "balanced"]]

    def pack(self, sequence_lengths: Sequence[int]) -> list[list[int]]:
        """Pack sequences.

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
            A sequence exceeds the capacity (`FirstFitDecreasing` only) or has a negative
            length; more bins are required than there are sequences.
        """
        return self._bins(sequence_lengths, self._algorithm)


class FirstFitDecreasing(SeqPacker):
    """Put each sequence, the longest first, into the first bin with room: few bins."""

    _algorithm = "ffd"


class Balanced(SeqPacker):
    """Put each sequence, the longest first, into the emptiest bin: evenly filled bins.

    A sequence that exceeds the capacity gets a bin of its own.
    """

    _algorithm = "balanced"


_PACKERS: dict[str, type[SeqPacker]] = {
    "FIRST_FIT_DECREASING": FirstFitDecreasing,
    "BALANCED": Balanced,
}


@suggests_names
def make_seq_packer(
    algorithm: str | Any,
    bin_capacity: int,
    min_bin_count: int | None = None,
    bin_count_multiple: int | None = None,
) -> SeqPacker:
    """Return a packer of sequences, as SkyRL's function of this name does.

    Parameters
    ----------
    algorithm
        ``"first_fit_decreasing"`` or ``"balanced"``, in any case, or SkyRL's ``PackingStrategy``.
    bin_capacity
        Capacity of a bin in tokens.
    min_bin_count
        Least number of bins, such as the number of data-parallel ranks; None for any.
    bin_count_multiple
        The number of bins is a multiple of this, such as the number of ranks; None for any.

    Returns
    -------
    SeqPacker
        A packer whose ``pack(sequence_lengths)`` gives the same bins as SkyRL's, in less time. It
        is an instance of SkyRL's class of the same name, too, if that is loaded.

    Raises
    ------
    ValueError
        An unknown algorithm; `min_bin_count` is negative, or `bin_count_multiple` not positive.

    Notes
    -----
    Written against SkyRL 0.4.0: ``make_seq_packer`` of ``skyrl.train.dataset.bin_packing``.
    """
    packer = find_packer(algorithm, _PACKERS, "skyrl.train.dataset.bin_packing")
    return packer(bin_capacity, min_bin_count, bin_count_multiple)
