"""What packers of SkyRL and NeMo-RL have in common."""

from __future__ import annotations

from typing import Any

from fastcollate.plan.packing import Algorithm, pack


class BinPacker:
    """A packer into bins of a capacity, of which there may have to be a certain number.

    Parameters
    ----------
    bin_capacity
        How many tokens a bin holds.
    min_bin_count
        How many bins there are at least; None for any number.
    bin_count_multiple
        What the number of bins is a multiple of; None for any number.

    Raises
    ------
    ValueError
        `min_bin_count` is negative, or `bin_count_multiple` not positive.
    """

    def __init__(
        self,
        bin_capacity: int,
        min_bin_count: int | None = None,
        bin_count_multiple: int | None = None,
    ) -> None:
        if min_bin_count is not None and min_bin_count < 0:
            raise ValueError(f"min_bin_count is {min_bin_count}; pass a number from 0 on or None")
        if bin_count_multiple is not None and bin_count_multiple < 1:
            raise ValueError(
                f"bin_count_multiple is {bin_count_multiple}; pass a number from 1 on or None"
            )
        self.bin_capacity = bin_capacity
        self.min_bin_count = min_bin_count
        self.bin_count_multiple = bin_count_multiple

    def _bins(self, lengths: Any, algorithm: Algorithm, **options: Any) -> list[list[int]]:
        """Pack by an algorithm of :func:`fastcollate.pack`."""
        return pack(
            lengths,
            self.bin_capacity,
            algorithm=algorithm,
            min_bins=self.min_bin_count or 0,
            bins_multiple_of=self.bin_count_multiple or 1,
            **options,
        ).bins
