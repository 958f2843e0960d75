"""The base of the SkyRL and NeMo-RL packers."""

from __future__ import annotations

import sys
from abc import ABCMeta
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fastcollate.plan.binned import Algorithm
from fastcollate.plan.layouts import Packed
from fastcollate.plan.packing import grow, pack
from fastcollate.rows.lengths import Integers, check_lengths

P = TypeVar("P")


@dataclass(eq=False)
class BinPacker:
    """A packer into bins of a capacity, with optional constraints on their number.

    Parameters
    ----------
    bin_capacity
        Capacity of a bin in tokens.
    min_bin_count
        Least number of bins; None for any.
    bin_count_multiple
        The number of bins is a multiple of this; None for any.

    Raises
    ------
    ValueError
        `min_bin_count` is negative, or `bin_count_multiple` not positive.

    Notes
    -----
    Messages contain the words that the frameworks' own tests match.
    """

    bin_capacity: int
    min_bin_count: int | None = None
    bin_count_multiple: int | None = None

    def __post_init__(self) -> None:
        min_bin_count, bin_count_multiple = self.min_bin_count, self.bin_count_multiple
        if min_bin_count is not None and min_bin_count < 0:
            raise ValueError(
                f"min_bin_count must be nonnegative, but is {min_bin_count}; "
                "pass 0 or more, or None"
            )
        if bin_count_multiple is not None and bin_count_multiple < 1:
            raise ValueError(
                f"bin_count_multiple must be positive, but is {bin_count_multiple}; "
                "pass 1 or more, or None"
            )

    def _bins(
        self, lengths: Any, algorithm: Algorithm, *, max_sequences: int | None = None
    ) -> list[list[int]]:
        """Pack by an algorithm of :func:`fastcollate.planning.pack`."""
        lengths = check_lengths("sequence_lengths", lengths, "sequence")
        if algorithm != "balanced":
            check_capacity(lengths, self.bin_capacity)
        # With a capacity below 1, a sequence exceeds it anyway.
        layout = Packed(max(self.bin_capacity, 1), algorithm=algorithm, max_sequences=max_sequences)
        plan = pack(lengths, layout)
        multiple = self.bin_count_multiple or 1
        count = -(-max(plan.num_bins, self.min_bin_count or 0) // multiple) * multiple
        if count == plan.num_bins:
            return plan.bins
        if count > len(lengths):
            raise ValueError(
                f"Cannot create {count} bins with only {len(lengths)} sequences: min_bin_count is "
                f"{self.min_bin_count}, bin_count_multiple is {self.bin_count_multiple}, and no "
                "bin may be empty; pass smaller numbers, or more sequences"
            )
        return grow(plan, min_bins=count).bins


def check_capacity(lengths: Integers, capacity: int) -> None:
    """Check that every sequence fits into a bin."""
    if (exceeds := lengths > capacity).any():
        index = int(exceeds.argmax())
        raise ValueError(
            f"sequence_lengths[{index}] is {lengths[index]}, which exceeds bin capacity "
            f"{capacity}; pass a larger bin_capacity"
        )


def find_packer(algorithm: Any, packers: Mapping[str, type[P]], module: str) -> type[P]:
    """Return the packer of a name in any case, or of a framework's own enumeration.

    It is a virtual subclass of the class of its name in the framework's `module`, if loaded.
    """
    name = algorithm.upper() if isinstance(algorithm, str) else getattr(algorithm, "name", None)
    if (packer := packers.get(str(name))) is None:
        raise ValueError(
            f"Unknown packing algorithm: algorithm is {algorithm!r}; pass one of "
            f"{', '.join(packers)}"
        )
    theirs = getattr(sys.modules.get(module), packer.__name__, None)
    if isinstance(theirs, ABCMeta):
        theirs.register(packer)
    return packer
