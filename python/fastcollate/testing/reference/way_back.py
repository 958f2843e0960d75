"""From outputs back to rows, and from rows to outputs: value by value."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from fastcollate.testing.reference.merging import MergedTurns
from fastcollate.testing.reference.reading import Array, readable

Place: TypeAlias = tuple[int, ...]


def gather_loops(
    batch: Mapping[str, Any],
    x: Any,
    *,
    of: str = "response",
    shift: str = "none",
    missing: float | None = None,
) -> tuple[Array, Array]:
    """Collect the value of every response token, row by row.

    Parameters
    ----------
    batch
        A batch of any layout, of which the masks or the offsets say where its tokens lie.
    x
        One value for every place of the batch's response-aligned outputs (`of` is "response") or of
        ``input_ids`` (`of` is "sequence"); may have trailing dimensions.
    shift
        "next_token" if the value at a token is about the next one, as log-probabilities taken from
        logits are.
    missing
        What the first token of a response gets if there is no prompt in front of it.

    Returns
    -------
    values, offsets
        The values of all response tokens, in `x`'s dtype, and int64 ``(B + 1,)``.

    Raises
    ------
    ValueError
        If a response has no token in front of it and `missing` is None.
    """
    rows = _response_values(batch, x, of, shift)
    return _joined(rows, readable(x), batch, missing)


def gather_merged_loops(
    batch: Mapping[str, Any],
    x: Any,
    merged: MergedTurns,
    *,
    per: str = "turn",
    of: str = "response",
    shift: str = "none",
    missing: float | None = None,
) -> tuple[Array, Array]:
    """Collect the value of every sampled token of a merged batch.

    Parameters
    ----------
    batch, x, of, shift
        As `gather_loops`.
    merged
        What the rows of the batch are made of.
    per
        "turn": one row for every turn there was, with all tokens of its response. "row": one row
        for every row of the batch, without its observations.
    missing
        What tokens get that are in no row, and the first of a response without a prompt.

    Returns
    -------
    values, offsets
        As `gather_loops`.

    Raises
    ------
    ValueError
        If a token has no value and `missing` is None.
    """
    values = _response_values(batch, x, of, shift)
    if per == "row":
        rows = [
            [value for value, origin in zip(of_row, row.origins, strict=True) if origin is not None]
            for of_row, row in zip(values, merged.rows, strict=True)
        ]
    else:
        rows = [[None] * count for count in merged.response_lens]
        for of_row, row in zip(values, merged.rows, strict=True):
            for value, origin in zip(of_row, row.origins, strict=True):
                if origin is not None:
                    turn, position = origin
                    rows[turn][position] = value
    return _joined(rows, readable(x), batch, missing)


def _response_values(
    batch: Mapping[str, Any], x: Any, of: str, shift: str
) -> list[list[Array | None]]:
    """Look up the value of each response token; None if it has no token in front of it."""
    x = readable(x)
    rows = []
    responses = _places(batch, "response")
    for row_places, response in zip(_places(batch, of), responses, strict=True):
        first = len(row_places) - len(response)
        sources = [p - (shift == "next_token") for p in range(first, len(row_places))]
        rows.append([x[row_places[source]] if source >= 0 else None for source in sources])
    return rows


def _joined(
    rows: list[list[Array | None]], x: Array, batch: Mapping[str, Any], missing: float | None
) -> tuple[Array, Array]:
    """Put the values of all rows one behind the other."""
    trailing = x.shape[1:] if "response_offsets" in batch else x.shape[2:]
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


def broadcast_loops(batch: Mapping[str, Any], per_row: Any) -> Array:
    """Put each row's number on all of its response tokens, and 0 on padding."""
    per_row = readable(per_row)
    shape = (
        (int(batch["response_offsets"][-1]),)
        if "response_offsets" in batch
        else tuple(batch["response_mask"].shape)
    )
    out: Array = np.zeros(shape, per_row.dtype)
    for row, places in enumerate(_places(batch, "response")):
        for place in places:
            out[place] = per_row[row]
    return out


def _places(batch: Mapping[str, Any], of: str) -> list[list[Place]]:
    """Find, for each row, the places of all its tokens or of its response's."""
    name = "offsets" if of == "sequence" else "response_offsets"
    if name in batch:
        offsets = readable(batch[name]).tolist()
        return [[(place,) for place in range(*bounds)] for bounds in pairwise(offsets)]
    mask = readable(batch["attention_mask" if of == "sequence" else "response_mask"])
    return [
        [(row, column) for column, real in enumerate(is_real) if real]
        for row, is_real in enumerate(mask)
    ]
