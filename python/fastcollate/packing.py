"""Packing: which sequences share a bin."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from fastcollate import _fastcollate
from fastcollate.arguments import checked_int, counted
from fastcollate.bin_plan import BinPlan
from fastcollate.lengths import Integers, checked_lengths

NO_LIMIT = (1 << 63) - 1


def pack(
    lengths: Any,
    capacity: int,
    *,
    algorithm: Literal["ffd", "ff"] = "ffd",
    max_sequences: int | None = None,
    pad_to_multiple_of: int = 1,
    min_bins: int = 0,
    bins_multiple_of: int = 1,
    keep_together: Any | None = None,
    oversize: Literal["error", "own_bin", "split"] | None = None,
) -> BinPlan:
    """Pack sequences into bins of a capacity.

    Parameters
    ----------
    lengths
        The number of tokens of each sequence: integers (n,), as an array, a tensor or a sequence.
    capacity
        How many tokens a bin holds at most.
    algorithm
        ``"ffd"``: first fit decreasing; ``"ff"``: first fit in the order of the input.
    max_sequences
        How many sequences a bin holds at most; by default any number.
    pad_to_multiple_of
        Count each sequence's tokens rounded up to a multiple of that.
    min_bins, bins_multiple_of
        How many bins there are at least, and what their number is a multiple of.

    Returns
    -------
    BinPlan
        The same one on every machine.
    """
    lengths = checked_lengths("lengths", lengths, "sequence")
    capacity = _count("capacity", capacity, "a number of tokens")
    multiple = _count("pad_to_multiple_of", pad_to_multiple_of, "a number of tokens")
    min_bins = _count("min_bins", min_bins, "a number of bins", least=0)
    bins_multiple_of = _count("bins_multiple_of", bins_multiple_of, "a number of bins")
    most = NO_LIMIT
    if max_sequences is not None:
        most = _count("max_sequences", max_sequences, "a number of sequences")
    sizes = lengths if multiple == 1 else -(-lengths // multiple) * multiple
    over = np.flatnonzero(sizes > capacity)
    if len(over) > 0 and oversize != "own_bin":
        index = int(over[0])
        raise ValueError(
            f"lengths[{index}] is {lengths[index]}, which exceeds capacity={capacity}; "
            "pass oversize='own_bin' or 'split', or a larger capacity"
        )
    offsets, items = _fastcollate.pack_items(
        sizes, None, None, algorithm, (capacity, most, float("inf"))
    )
    offsets, items = _spread(offsets, items, min_bins, bins_multiple_of, "sequence")
    return BinPlan(
        offsets=offsets,
        indices=items,
        starts=np.zeros_like(items),
        lengths=lengths[items],
        num_sequences=len(lengths),
        capacity=capacity,
        pad_to_multiple_of=multiple,
    )


def _spread(
    offsets: Integers, items: Integers, min_bins: int, multiple_of: int, noun: str
) -> tuple[Integers, Integers]:
    """Add bins, if there are fewer than needed."""
    count = len(offsets) - 1
    needed = -(-max(count, min_bins) // multiple_of) * multiple_of
    if needed == count:
        return offsets, items
    if needed > len(items):
        raise ValueError(
            f"min_bins={min_bins} and bins_multiple_of={multiple_of} need "
            f"{counted(needed, 'bin')}, but there are only {counted(len(items), noun)}, and no bin may be empty"
        )
    return _fastcollate.spread_bins(offsets, items, needed)


def _count(name: str, value: Any, advice: str, *, least: int = 1) -> int:
    count = checked_int(name, value, advice)
    if count < least:
        raise ValueError(f"{name} is {count}; pass {advice} from {least} on")
    return count
