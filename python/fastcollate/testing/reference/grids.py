"""The positions of rows in an output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

Place: TypeAlias = tuple[int, ...]
"""Row and column of an output, or its position if there is no padding and all rows are one."""


class Grid(NamedTuple):
    """Places for rows of these lengths."""

    lens: list[int]
    places: list[list[Place | None]]
    """Of each value of each row, None where there is none for it."""
    shape: Place
    """Of the output."""


class Grids(NamedTuple):
    """The positions of a batch's values."""

    tokens: Grid
    answers: Grid
    """Of response tokens, in outputs that are aligned with responses."""
    before: Grid
    """For each token, the place of the preceding one in its sequence, if any."""


_OPTIONS = (
    *("pad_to", "pad_prompt_to", "pad_response_to", "multiple_of", "shift", "padding_as"),
    *("pad_to_multiple_of", "share", "same_inputs"),
)


def layout_options(layout: Any) -> tuple[str, dict[str, Any]]:
    """Return the name of a layout, which may be a `fastcollate.Left` or so, and its options."""
    if isinstance(layout, str):
        return layout, {}
    return layout.name, {name: getattr(layout, name) for name in _OPTIONS if hasattr(layout, name)}


def grids_of(
    prompt_lens: list[int],
    response_lens: list[int],
    layout: str,
    *,
    pad_to: int | None = None,
    multiple_of: int | None = 1,
    pad_prompt_to: int | None = None,
    pad_response_to: int | None = None,
) -> Grids:
    """Find the places of all tokens, and of response tokens among themselves."""
    lens = [p + r for p, r in zip(prompt_lens, response_lens, strict=True)]
    if layout == "jagged":
        return grids(end_to_end(lens), end_to_end(response_lens))

    def round_up(width: int) -> int:
        return -(-width // (multiple_of or 1)) * (multiple_of or 1)

    response_width = max(response_lens) if pad_response_to is None else pad_response_to
    response_starts = [0] * len(lens)
    if layout == "two_segment":
        prompt_width = round_up(max(prompt_lens) if pad_prompt_to is None else pad_prompt_to)
        response_width = round_up(response_width)
        width = prompt_width + response_width
        starts = [prompt_width - count for count in prompt_lens]
    elif layout == "right":
        width = round_up(max(lens) if pad_to is None else pad_to)
        starts = [0] * len(lens)
    else:
        width = round_up(max(lens) if pad_to is None else pad_to)
        starts = [width - count for count in lens]
        response_starts = [response_width - count for count in response_lens]
    tokens = _one_row_each(lens, starts, width)
    return grids(tokens, _one_row_each(response_lens, response_starts, response_width))


def grids(tokens: Grid, answers: Grid) -> Grids:
    """Add the places of preceding tokens."""
    before: list[list[Place | None]] = [[None, *row][: len(row)] for row in tokens.places]
    return Grids(tokens, answers, tokens._replace(places=before))


def _one_row_each(lens: list[int], starts: list[int], width: int) -> Grid:
    places: list[list[Place | None]] = [
        [(row, column) for column in range(start, start + count)]
        for row, (start, count) in enumerate(zip(starts, lens, strict=True))
    ]
    return Grid(lens, places, (len(lens), width))


def end_to_end(lens: list[int]) -> Grid:
    """Put one row after the other, without a dimension of rows."""
    places: list[list[Place | None]] = []
    end = 0
    for count in lens:
        places.append([(position,) for position in range(end, end + count)])
        end += count
    return Grid(lens, places, (end,))


def place(grid: Grid, rows: Sequence[Sequence[Any]], pad: Any) -> list[Any]:
    """Put the values of each row where they belong, one by one."""
    if len(grid.shape) == 1:
        out = [pad] * grid.shape[0]
    else:
        out = [[pad] * grid.shape[1] for _ in range(grid.shape[0])]
    for places, row in zip(grid.places, rows, strict=True):
        for to, value in zip(places, row, strict=True):
            if to is not None:
                line = out if len(to) == 1 else out[to[0]]
                line[to[-1]] = value
    return out
