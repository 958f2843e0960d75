"""From outputs back to rows, and from rows to outputs: value by value."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

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
    x = readable(x)
    trailing = x.shape[1:] if "response_offsets" in batch else x.shape[2:]
    values, offsets = [], [0]
    responses = _places(batch, "response")
    for row, (row_places, response) in enumerate(zip(_places(batch, of), responses, strict=True)):
        first = len(row_places) - len(response)
        for position in range(first, len(row_places)):
            source = position - (shift == "next_token")
            if source >= 0:
                values.append(x[row_places[source]])
            elif missing is not None:
                values.append(np.full(trailing, missing, x.dtype))
            else:
                raise ValueError(f"row {row} has no token in front of its response")
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
