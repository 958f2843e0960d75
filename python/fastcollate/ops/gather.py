"""From a model's per-token outputs to the values of rows or turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate.arguments import check_bool
from fastcollate.arrays import (
    checked_array,
    describe,
    dtype_name,
    fits,
    flattened,
    like_of,
    of_bits,
    offsets_of,
    signed_like,
    taken,
)
from fastcollate.ingest.columns import Ragged

if TYPE_CHECKING:
    from fastcollate._fastcollate import Plan


def gathered(
    plan: Plan, x: Any, of: str, shift: str | None, missing: float | None, per: str, gaps: bool
) -> Ragged:
    """See :meth:`fastcollate.Batch.gather`."""
    check_bool("gaps", gaps)
    if not isinstance(per, str) or per not in ("row", "turn"):
        raise ValueError(f"per is {per!r}; pass 'row' or 'turn'")
    if not isinstance(of, str) or of not in ("response", "sequence"):
        raise ValueError(f"of is {of!r}; pass 'response' or 'sequence'")
    if shift is None:
        if of == "sequence":
            raise TypeError(
                "of is 'sequence', but shift is None; pass shift='next_token' if position p of x "
                "holds the value of token p + 1, as log-probabilities of a model do, or "
                "shift='none' if it holds that of token p"
            )
        shift = "none"
    if shift not in ("none", "next_token"):
        raise ValueError(f"shift is {shift!r}; pass 'none' or 'next_token'")
    x = checked_array("x", x)
    missing = _checked_missing(missing, x)
    is_shifted = shift == "next_token"
    if is_shifted and of == "response":
        raise ValueError(
            "shift is 'next_token', but of is 'response'; pass of='sequence', or leave shift out"
        )
    leading = plan.leading_shape(of_sequence=of == "sequence")
    width = leading[-1]
    found = tuple(x.shape)[: len(leading)]
    expected = [leading]
    if is_shifted:
        expected.append((*leading[:-1], max(width - 1, 0)))
    if found not in expected:
        shapes = " or ".join(str(shape) for shape in expected)
        raise ValueError(
            f"x has shape {tuple(x.shape)}, but of is {of!r} and shift {shift!r}; pass x of shape "
            f"{shapes}, with or without trailing dimensions"
        )
    places, lens = plan.gather_places(
        of_sequence=of == "sequence",
        next_token=is_shifted,
        width=found[-1],
        per_turn=per == "turn",
        gaps=gaps,
        # Padding rows have no positions in bins, and so no values.
        padding=not plan.has_bins,
        may_miss=missing is not None,
    )
    values = _at(flattened(x, len(leading)), places, missing)
    return Ragged(values, offsets_of(lens))


def _checked_missing(missing: Any, x: Any) -> float | None:
    """Return the number for missing values, in the dtype of `x`."""
    if missing is None:
        return None
    if not isinstance(missing, (int, float, np.number, np.bool_)):
        raise TypeError(f"missing is {describe(missing)}; pass a number or None")
    number: float = missing.item() if isinstance(missing, np.generic) else missing
    if not fits(number, x):
        raise ValueError(
            f"missing is {missing}, but x is of {dtype_name(x.dtype)}, which cannot hold it; "
            "pass another number, or x as floats"
        )
    return number if "float" in dtype_name(x.dtype) else int(number)


def _at(flat: Any, places: np.ndarray, missing: float | None) -> Any:
    """Take items by index; where the index is -1, return the number."""
    if len(flat) == 0:  # all are missing, and there is no item to take in their place
        shape = (len(places), *flat.shape[1:])
        fill = 0 if missing is None else missing
        if isinstance(flat, np.ndarray):
            return np.full(shape, fill, flat.dtype)
        return flat.new_full(shape, fill)
    if missing is None:
        return taken(flat, places)
    found = taken(flat, np.maximum(places, 0))
    is_missing = like_of(places < 0, found)
    if isinstance(found, np.ndarray):
        found[is_missing] = missing
        return found
    import torch

    bits = signed_like(found)
    if bits.dtype != found.dtype:
        missing = signed_like(torch.tensor(missing, dtype=found.dtype)).item()
    is_missing = is_missing.reshape(-1, *[1] * (found.dim() - 1))
    return of_bits(bits.masked_fill(is_missing, missing), found.dtype)
