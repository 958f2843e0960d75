"""What rows cost: the numbers by which they are balanced and capped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastcollate.arrays import NUMBERS, describe, is_only_torch, is_tensor, to_numpy
from fastcollate.plan.lengths import Integers

Costs: TypeAlias = Callable[[Integers], ArrayLike]
"""What rows of so many tokens, int64 (rows,), cost: numbers of the same shape."""

Weights: TypeAlias = NDArray[np.int64] | NDArray[np.float32] | NDArray[np.float64]
"""Numbers that are neither negative nor infinite, which add up as their dtype does."""

FLOPS_PER_TOKEN = 24_576
"""What a token costs beside attention, in the unit of a pair of tokens in attention."""


def token_costs(lengths: Integers) -> Integers:
    """Return rows' numbers of tokens: ``"tokens"``."""
    return lengths


def flops_costs(lengths: Integers) -> Integers:
    """Return ``24576 * L + L * L`` for rows of L tokens, the workload of verl: ``"flops"``."""
    return FLOPS_PER_TOKEN * lengths + lengths * lengths


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
    return weights_of(name, cost, lengths, noun).astype(np.float64)


def weights_of(name: str, cost: Any, lengths: Integers, noun: str = "row") -> Weights:
    """Return what rows of these lengths cost, as :func:`costs_of`, but in the costs' own dtype.

    Integers are int64, float16 and bfloat16 float32.
    """
    names = ", ".join(map(repr, NAMED_COSTS))
    advice = f"pass {names}, a function of lengths or one number per {noun}"
    if isinstance(cost, str):
        if cost not in NAMED_COSTS:
            raise ValueError(f"{name} is {cost!r}; {advice}")
        cost = NAMED_COSTS[cost]
    if callable(cost):
        found, found_by, verb = cost(lengths.copy()), f"the function {name} returned", "return"
    elif hasattr(cost, "__array__") or isinstance(cost, (list, tuple)):
        found, found_by, verb = cost, f"{name} is", "pass"
    else:
        raise TypeError(f"{name} is {describe(cost)}; {advice}")
    weights = checked_weights(found_by, found, noun)
    if len(weights) != len(lengths):
        raise ValueError(
            f"{found_by} {describe(weights)} for {len(lengths)} lengths; {verb} one number for each"
        )
    return weights


def checked_weights(found_by: str, values: Any, noun: str) -> Weights:
    """Return numbers of which none is negative or infinite, in their own dtype.

    Parameters
    ----------
    found_by
        How errors begin: what was passed, and a verb.
    values
        An array, a tensor or a sequence (n,).
    noun
        What has one of the numbers.

    Raises
    ------
    TypeError
        They are no numbers.
    ValueError
        One of them is negative, NaN or infinite, or more than the dtype can add up.
    """
    found = _as_array(values)
    if found.ndim != 1 or found.dtype.kind not in NUMBERS:
        shown = describe(found if found.ndim > 0 else values)
        raise TypeError(f"{found_by} {shown}; pass one number per {noun}")
    weights: Weights  # aligned, too, which numbers in the midst of a file's bytes need not be
    if found.dtype.kind != "f":
        wrong = (found < 0) | (found > np.iinfo(np.int64).max)
        weights = np.require(found, np.int64, ["C", "A"])
    elif found.itemsize > 4:
        weights = np.require(found, np.float64, ["C", "A"])
        wrong = ~(np.isfinite(weights) & (weights >= 0))
    else:
        weights = np.require(found, np.float32, ["C", "A"])
        wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"{found_by} {found[row]} for {noun} {row}; pass numbers that are finite, not negative "
            f"and fit {weights.dtype}"
        )
    with np.errstate(over="ignore"):
        if found.dtype.kind == "f" and np.isinf(weights.sum()):
            raise ValueError(
                f"{found_by} numbers whose sum does not fit {weights.dtype}; pass smaller ones"
            )
    return weights


def _as_array(values: Any) -> np.ndarray:
    """Return numbers as an array, also those of dtypes that NumPy has not."""
    if is_tensor(values) and is_only_torch(values.dtype):
        values = values.float()
    try:
        found = np.asarray(to_numpy(values))
    except ValueError:  # rows of different lengths
        return np.array(None)
    return found.astype(np.int64) if found.shape == (0,) and found.dtype.kind == "f" else found
