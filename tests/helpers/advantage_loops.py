"""Advantages of a step, token by token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fastcollate.testing.reference.reading import Array, readable

_Place = tuple[int, ...]


def normalize_loops(
    batch: Mapping[str, Any], advantages: Any, plan: Any, per: str, in_slots: bool
) -> Array:
    """Subtract the mean of each boundary and divide by the deviation; 0 on untrained tokens.

    Parameters
    ----------
    batch
        A batch of any layout: all rows of the step, or, `in_slots`, one row per slot of the plan.
    advantages
        One number per response position.
    plan
        An object with the attributes of a step plan.
    per
        ``"mini_batch"``, ``"batch"`` or ``"prompt"``.
    """
    x = readable(advantages)
    out: Array = np.zeros(x.shape, x.dtype)
    rows = _places(batch)
    for boundary in _boundaries(plan, per, in_slots):
        weights = _weights(batch)
        places = [place for row in boundary for place in rows[row] if weights[place] != 0]
        numbers = [float(x[place]) for place in places]
        if numbers:
            mean = math.fsum(numbers) / len(numbers)
            variance = math.fsum((number - mean) ** 2 for number in numbers) / len(numbers)
            for place, number in zip(places, numbers, strict=True):
                out[place] = (number - mean) / math.sqrt(max(variance, 1e-8))
    return out


def loss_normalizers_loops(
    batch: Mapping[str, Any], plan: Any, in_slots: bool
) -> tuple[list[float], list[int]]:
    """Sum the loss mask of the real rows of each mini-batch, and count them; 1 instead of 0."""
    tokens, counts = [], []
    rows, weights = _places(batch), _weights(batch)
    for boundary in _boundaries(plan, "mini_batch", in_slots):
        total = math.fsum(float(weights[place]) for row in boundary for place in rows[row])
        tokens.append(total or 1.0)
        counts.append(len(boundary) or 1)
    return tokens, counts


def drop_padding_loops(values: Sequence[Any], plan: Any) -> list[Any]:
    """Order the items of real slots by the rows that are in them."""
    real = [slot for slot in range(len(plan.rows)) if not plan.is_padding[slot]]
    return [values[slot] for slot in sorted(real, key=lambda slot: int(plan.rows[slot]))]


def _boundaries(plan: Any, per: str, in_slots: bool) -> list[list[int]]:
    """List the real rows of each boundary, by their number in the batch."""
    slots = [slot for slot in range(len(plan.rows)) if not plan.is_padding[slot]]
    if per == "batch":
        boundaries = [slots]
    elif per == "mini_batch":
        bounds = pairwise(plan.mini_batch_offsets.tolist())
        boundaries = [[slot for slot in slots if a <= slot < b] for a, b in bounds]
    else:
        bounds = pairwise(plan.prompt_offsets.tolist())
        boundaries = [[slot for slot in slots if a <= plan.rows[slot] < b] for a, b in bounds]
    if in_slots:
        return boundaries
    return [[int(plan.rows[slot]) for slot in boundary] for boundary in boundaries]


def _places(batch: Mapping[str, Any]) -> list[list[_Place]]:
    """List the response positions of each row, padding included."""
    if "response_offsets" in batch:
        offsets = readable(batch["response_offsets"]).tolist()
        return [[(place,) for place in range(a, b)] for a, b in pairwise(offsets)]
    rows, width = batch["response_mask"].shape
    return [[(row, column) for column in range(width)] for row in range(rows)]


def _weights(batch: Mapping[str, Any]) -> Array:
    """Return the mask of trained tokens."""
    for key in ("loss_mask", "response_mask"):
        if key in batch:
            weights: Array = readable(batch[key])
            return weights
    return np.ones(int(batch["response_offsets"][-1]))
