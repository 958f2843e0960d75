"""Checks of lengths passed by callers."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastcollate._fastcollate import counts_in, first_no_length
from fastcollate.common.arguments import as_list, check_int, is_sequence
from fastcollate.common.arrays import (
    check_array,
    check_unmasked,
    copied,
    describe,
    is_tensor,
    to_numpy,
)
from fastcollate.common.text import show

Integers: TypeAlias = NDArray[np.int64]

MAX_TOKENS = 1 << 31
"""Limit of tokens per row, so that sums over rows fit int64."""

PERCENTILES = (50, 90, 99)
"""Percentiles of lengths in metrics."""


def check_lengths(name: str, values: Any, noun: str = "row") -> Integers:
    """Return token counts, from an array, a tensor or a sequence, as int64 (rows,).

    Raises
    ------
    TypeError
        `values` are not integers, or not one for each row.
    ValueError
        A count is negative or exceeds `MAX_TOKENS`.
    """
    if (counts := counts_in(values, MAX_TOKENS)) is not None:
        return counts
    return _check_integers(name, values, f"the number of tokens of each {noun}", "lengths")


def check_indices(name: str, values: Any, nouns: str) -> Integers:
    """Return indices of rows, sequences or bins as int64, as `checked_lengths`."""
    if (counts := counts_in(values, MAX_TOKENS)) is not None:
        return counts
    return _check_integers(name, values, f"indices of {nouns}", "indices")


def lengths_defect(name: str, values: Integers) -> str | None:
    """Describe the first invalid token count of a plan; None if all are valid."""
    if (row := first_no_length(values, MAX_TOKENS)) is None:
        return None
    return f"{name}[{row}] is {values[row]}, but must be from 0 to {MAX_TOKENS}"


def _check_integers(name: str, values: Any, advice: str, noun: str) -> Integers:
    check_unmasked(name, values)
    if is_tensor(values):
        values = check_array(name, values)
        if values.dtype.is_floating_point:  # NumPy does not have all of them
            raise TypeError(f"{name} is {describe(values)}; pass {advice}")
        values = to_numpy(values, name)
    if isinstance(values, np.ndarray) and values.dtype != object:
        found = values
    else:
        if not is_sequence(values):
            raise TypeError(f"{name} is {show(values)}; pass {advice}")
        items = as_list(values)
        if type(values) is not list and (counts := counts_in(items, MAX_TOKENS)) is not None:
            return counts
        if noun == "lengths" and items and is_sequence(items[0]):
            raise TypeError(
                f"{name}[0] is {show(items[0])}; pass {advice}, such as [len(ids) for ids in rows]"
            )
        numbers = (check_int(f"{name}[{at}]", one, "an integer") for at, one in enumerate(items))
        found = np.fromiter(numbers, np.int64, len(items))
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise TypeError(f"{name} is {describe(found)}; pass {advice}")
    checked: Integers = copied(found, np.int64)
    if (row := first_no_length(checked, MAX_TOKENS)) is not None:
        limit = "0 or more" if found[row] < 0 else f"at most {MAX_TOKENS}"
        raise ValueError(f"{name}[{row}] is {found[row]}; pass {noun} of {limit}")
    return checked


def percentiles(name: str, lengths: Integers) -> dict[str, float]:
    """Return the 50th, 90th and 99th percentile of some lengths as metrics; 0 if empty."""
    if len(lengths) == 0:
        return {f"{name}_p{p}": 0.0 for p in PERCENTILES}
    # Same as np.percentile, in a tenth of its time for few lengths.
    places = [(len(lengths) - 1) * p / 100 for p in PERCENTILES]
    found = np.interp(places, np.arange(len(lengths)), np.sort(lengths)).tolist()
    return {f"{name}_p{p}": value for p, value in zip(PERCENTILES, found, strict=True)}
