"""What rows cost: the numbers by which they are balanced and capped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastcollate.arrays import describe, to_numpy
from fastcollate.lengths import Integers

Costs: TypeAlias = Callable[[Integers], ArrayLike]
"""What rows of so many tokens, int64 (rows,), cost: numbers of the same shape."""

FLOPS_PER_TOKEN = 24_576
"""What a token costs beside attention, in the unit of a pair of tokens in attention."""


def token_costs(lengths: Integers) -> NDArray[np.float64]:
    """Return rows' numbers of tokens: ``"tokens"``."""
    return lengths.astype(np.float64)


def flops_costs(lengths: Integers) -> NDArray[np.float64]:
    """Return ``24576 * L + L * L`` for rows of L tokens, the workload of verl: ``"flops"``."""
    wide = token_costs(lengths)
    return FLOPS_PER_TOKEN * wide + wide * wide


NAMED_COSTS: dict[str, Costs] = {"tokens": token_costs, "flops": flops_costs}
"""What costs can be called by their name."""


def costs_of(name: str, cost: Any, lengths: Integers, noun: str = "row") -> NDArray[np.float64]:
    """Return what rows of these lengths cost, float64 (rows,).

    Parameters
    ----------
    name
        The argument, for errors.
    cost
        A name of :data:`NAMED_COSTS`, a function of lengths, or the costs themselves.
    lengths
        Tokens of rows.
    noun
        What a row is called in errors.

    Raises
    ------
    ValueError
        An unknown name; other than one number per row, passed or returned; costs that are negative
        or not finite.
    TypeError
        Something else.
    """
    names = ", ".join(map(repr, NAMED_COSTS))
    advice = f"pass {names}, a function of lengths or one number per {noun}"
    if isinstance(cost, str):
        if cost not in NAMED_COSTS:
            raise ValueError(f"{name} is {cost!r}; {advice}")
        cost = NAMED_COSTS[cost]
    if callable(cost):
        returned = f"the function {name} returned"
        return _checked_costs(returned, cost(lengths), len(lengths), noun, "return")
    values = to_numpy(cost)
    is_sequence = isinstance(values, (np.ndarray, list, tuple)) or hasattr(values, "__array__")
    if not is_sequence:
        raise TypeError(f"{name} is {describe(cost)}; {advice}")
    return _checked_costs(f"{name} is", values, len(lengths), noun, "pass")


def _checked_costs(
    found_by: str, values: Any, count: int, noun: str, verb: str
) -> NDArray[np.float64]:
    """Return so many costs, none of which is negative or not finite."""
    found = np.asarray(to_numpy(values))
    if found.shape == (0,):
        found = found.astype(np.float64)
    if found.dtype.kind not in "biuf" or found.shape != (count,):
        raise ValueError(
            f"{found_by} {describe(found)} for {count} lengths; {verb} one number for each"
        )
    costs = found.astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(costs) & (costs >= 0)))
    if len(wrong) > 0:
        row = int(wrong[0])
        raise ValueError(
            f"{found_by} {found[row]} for {noun} {row}; a cost is finite and not negative"
        )
    return np.ascontiguousarray(costs)
