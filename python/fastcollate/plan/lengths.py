"""Numbers of tokens that a caller passes."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastcollate import _fastcollate
from fastcollate.arguments import id_list
from fastcollate.arrays import describe, to_numpy

Integers: TypeAlias = NDArray[np.int64]

MAX_TOKENS = 1 << 31
"""No row has so many: sums of all of them fit int64."""


def checked_lengths(name: str, values: Any, noun: str = "row") -> Integers:
    """Return numbers of tokens, from an array, a tensor or a sequence, as int64 (rows,).

    Raises
    ------
    TypeError
        They are no integers, or not one for each row.
    ValueError
        One of them is negative, or more than a row can have.
    """
    return _checked(name, values, f"the number of tokens of each {noun}", "lengths")


def checked_bin(name: str, values: Any) -> Integers:
    """Return the indices of the sequences in a bin as int64, as `checked_lengths`."""
    return _checked(name, values, "the index of each sequence in the bin", "indices")


def lengths_defect(name: str, values: Integers) -> str | None:
    """Say which of a plan's numbers of tokens is none."""
    if (row := _fastcollate.first_no_length(values, MAX_TOKENS)) is None:
        return None
    return f"{name}[{row}] is {values[row]}, but must be from 0 to {MAX_TOKENS}"


def _checked(name: str, values: Any, advice: str, noun: str) -> Integers:
    values = to_numpy(values)
    is_array = isinstance(values, np.ndarray)
    try:
        found = values if is_array else np.array(id_list(name, values))
    except ValueError:  # of rows of different lengths
        found = np.array(id_list(name, values), object)
    if found.size == 0 and not is_array:
        found = found.astype(np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        shown = describe(values) if is_array else describe(found)
        raise TypeError(f"{name} is {shown}; pass {advice}")
    numbers: Integers = found.astype(np.int64)
    if (row := _fastcollate.first_no_length(numbers, MAX_TOKENS)) is not None:
        limit = "0 or more" if found[row] < 0 else f"at most {MAX_TOKENS}"
        raise ValueError(f"{name}[{row}] is {found[row]}; pass {noun} of {limit}")
    return numbers
