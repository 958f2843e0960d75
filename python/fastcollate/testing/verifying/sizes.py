"""Numbers of a drawn case: few ones that shrink, or many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fastcollate.testing.verifying.subjects import Draw


def draw_numbers(
    draw: Draw, scale: int, least: int, most: int, count: int, *, min_size: int = 1
) -> list[int]:
    """Draw up to `count` numbers, or `scale` times as many."""
    if scale == 1:
        found: list[int] = draw(
            st.lists(st.integers(least, most), min_size=min_size, max_size=count)
        )
        return found
    numbers: list[int] = _rng(draw).integers(least, most + 1, count * scale).tolist()
    return numbers


def draw_rows(draw: Draw, lengths: Sequence[int], least: int, most: int) -> list[list[int]]:
    """Draw a row of numbers for each length."""
    rng = _rng(draw)
    return [rng.integers(least, most, length, endpoint=True).tolist() for length in lengths]


def draw_values(draw: Draw, lengths: Sequence[int], values: Sequence[Any]) -> list[list[Any]]:
    """Draw a row of some of these values for each length; at times of the first two alone."""
    most = draw(st.sampled_from([1, 1, 1, len(values) - 1]))
    return [[values[index] for index in row] for row in draw_rows(draw, lengths, 0, most)]


def _rng(draw: Draw) -> np.random.Generator:
    return np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
