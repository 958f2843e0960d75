"""Where rows lie in an output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Grid(NamedTuple):
    """Places for rows of these lengths: from a column on, or one behind the other."""

    lens: list[int]
    starts: list[int]
    width: int | None
    """Columns of the output, or None if there is no padding and all rows are one."""


def grids_of(
    prompt_lens: list[int],
    response_lens: list[int],
    layout: str,
    *,
    pad_to: int | None = None,
    pad_to_multiple_of: int | None = 1,
    max_prompt_len: int | None = None,
    max_response_len: int | None = None,
) -> tuple[Grid, Grid]:
    """Find the places of all tokens, and of response tokens among themselves."""
    lens = [p + r for p, r in zip(prompt_lens, response_lens, strict=True)]
    if layout == "jagged":
        return Grid(lens, [], None), Grid(response_lens, [], None)

    def rounded(width: int) -> int:
        return -(-width // (pad_to_multiple_of or 1)) * (pad_to_multiple_of or 1)

    response_width = max(response_lens) if max_response_len is None else max_response_len
    response_starts = [0] * len(lens)
    if layout == "two_segment":
        prompt_width = rounded(max(prompt_lens) if max_prompt_len is None else max_prompt_len)
        response_width = rounded(response_width)
        width = prompt_width + response_width
        starts = [prompt_width - count for count in prompt_lens]
    elif layout == "right":
        width = rounded(max(lens) if pad_to is None else pad_to)
        starts = [0] * len(lens)
    else:
        width = rounded(max(lens) if pad_to is None else pad_to)
        starts = [width - count for count in lens]
        response_starts = [response_width - count for count in response_lens]
    return Grid(lens, starts, width), Grid(response_lens, response_starts, response_width)


def place(grid: Grid, rows: Sequence[Sequence[Any]], pad: Any) -> list[Any]:
    """Put the values of each row where they belong, one by one."""
    if grid.width is None:
        return [value for row in rows for value in row]
    padded_rows = []
    for start, row in zip(grid.starts, rows, strict=True):
        padded = [pad] * grid.width
        for position, value in enumerate(row):
            padded[start + position] = value
        padded_rows.append(padded)
    return padded_rows
