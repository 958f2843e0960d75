"""From outputs back to rows, and from rows to outputs: value by value."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from fastcollate.testing.reference.grids import Grid, Grids, Place, grids
from fastcollate.testing.reference.merging import MergedTurns
from fastcollate.testing.reference.reading import Array, readable


def gather_loops(
    batch: Mapping[str, Any] | Grids,
    x: Any,
    merged: MergedTurns | None = None,
    *,
    per: str = "turn",
    align: str = "response",
    shift: str = "none",
    missing: float | None = None,
) -> tuple[Array, Array]:
    """Collect the value of every response token, row by row; of merged rows, of sampled tokens.

    Parameters
    ----------
    batch
        A batch, whose masks or offsets give the positions of tokens. For the packed layout, the
        grids by which it was built.
    x
        One value per position of the batch's response-aligned outputs (`align` is "response") or of
        ``input_ids`` (`align` is "sequence"); may have trailing dimensions.
    merged
        The turns of the batch's rows.
    per
        For merged rows. "turn": one row for every turn there was, with all tokens of its response.
        "row": one row for every row of the batch, without its observations.
    shift
        "next_token" if the value at a token is about the next one, as log-probabilities taken from
        logits are.
    missing
        The value of tokens without one: the first of a response without a prompt, or of the part of
        a split sequence, and of tokens that are in no row.

    Returns
    -------
    values, offsets
        The values of all response tokens, in `x`'s dtype, and int64 ``(B + 1,)``.

    Raises
    ------
    ValueError
        If a token has no value and `missing` is None.
    """
    found, x = _grids(batch), readable(x)
    rows = _response_values(found, x, align, shift)
    if merged is not None:
        turns: list[list[Array | None]] = [[None] * count for count in merged.response_lens]
        kept: list[list[Array | None]] = [[] for _ in rows]
        for values, row, sampled in zip(rows, merged.rows, kept, strict=True):
            for value, origin in zip(values, row.origins, strict=True):
                if origin is not None:
                    sampled.append(value)
                    turns[origin[0]][origin[1]] = value
        rows = turns if per == "turn" else kept
    return _join(rows, x, found, missing)


def _response_values(found: Grids, x: Array, align: str, shift: str) -> list[list[Array | None]]:
    """Look up the value of each response token; None if it has none."""
    if align == "response":
        places = found.answers.places
    else:
        grid = found.before if shift == "next_token" else found.tokens
        places = [
            row[len(row) - count :]
            for row, count in zip(grid.places, found.answers.lens, strict=True)
        ]
    return [[None if place is None else x[place] for place in row] for row in places]


def _join(
    rows: list[list[Array | None]], x: Array, found: Grids, missing: float | None
) -> tuple[Array, Array]:
    """Put the values of all rows one after the other."""
    trailing = x.shape[len(found.tokens.shape) :]
    values, offsets = [], [0]
    for index, row in enumerate(rows):
        for position, value in enumerate(row):
            if value is None and missing is None:
                raise ValueError(
                    f"token {position} of row {index} has no value, and missing is None"
                )
            values.append(np.full(trailing, missing, x.dtype) if value is None else value)
        offsets.append(len(values))
    return np.array(values, x.dtype).reshape(len(values), *trailing), np.array(offsets, np.int64)


def broadcast_loops(batch: Mapping[str, Any] | Grids, per_row: Any, mask: Any = None) -> Array:
    """Put each row's number on its response tokens, and 0 on padding.

    With a mask, which has the shape of the result, only where it is not 0.
    """
    per_row = readable(per_row)
    answers = _grids(batch).answers
    out: Array = np.zeros(answers.shape, per_row.dtype)
    for row, places in enumerate(answers.places):
        for place in places:
            if place is not None and (mask is None or readable(mask)[place] != 0):
                out[place] = per_row[row]
    return out


def _grids(batch: Mapping[str, Any] | Grids) -> Grids:
    return batch if isinstance(batch, Grids) else grids(_grid(batch, "sequence"), _grid(batch))


def _grid(batch: Mapping[str, Any], align: str = "response") -> Grid:
    """Find, for each row, the places of all its tokens or of its response's."""
    name = "offsets" if align == "sequence" else "response_offsets"
    places: list[list[Place | None]]
    if name in batch:
        offsets = readable(batch[name]).tolist()
        places = [[(place,) for place in range(*bounds)] for bounds in pairwise(offsets)]
        return Grid(list(map(len, places)), places, (offsets[-1],))
    mask = readable(batch["attention_mask" if align == "sequence" else "response_mask"])
    places = [
        [(row, column) for column, real in enumerate(is_real) if real]
        for row, is_real in enumerate(mask)
    ]
    return Grid(list(map(len, places)), places, tuple(mask.shape))
