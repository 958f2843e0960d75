"""Whether rows of one length look padded: all of a block counts as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastcollate.arguments import counted
from fastcollate.arrays import is_array, is_tensor, to_numpy

RUN = 2
"""Padding at an edge, from which on a row looks padded.

Genuine rows may begin or end with one token that is the padding token, too: where that is also the
end or the beginning of a sequence, all of them do.
"""

CHANCE = 1e-3
"""How probable edges may be by chance, where the padding token stands amid rows as well."""


SAMPLE = 1024
"""Rows of an array whose edges are looked at: where it is padded, most rows are."""


def padding_message(name: str, rows: Any, pad_token_id: int) -> str | None:
    """Say that a block of rows looks padded, if it does.

    A block is an array of two dimensions, or a sequence of rows of one length. It looks padded if a
    row begins or ends with two padding tokens or more and holds others, too. Where the padding
    token also stands further inside, as others do, such an edge has to be too long for chance.

    A few items of each row show whether there may be such an edge. The whole block is read only if
    there may.
    """
    if not _has_edge(rows, pad_token_id):
        return None
    block = to_numpy(rows) if is_array(rows) else np.stack([np.asarray(to_numpy(r)) for r in rows])
    is_pad = block == pad_token_id
    is_pad = is_pad[~is_pad.all(1)]
    for side, flags in (("right", is_pad[:, ::-1]), ("left", is_pad)):
        runs = flags.argmin(1)
        inside = flags.sum() - runs.sum()
        share = inside / max(flags.size - runs.sum(), 1)
        if runs.max(initial=0) >= RUN and len(flags) * share ** runs.max() < CHANCE:
            edge = "end" if side == "right" else "begin"
            lengths = "lengths=..." if side == "right" else "lengths=..., padding_side='left'"
            padded = int((runs >= RUN).sum())
            return (
                f"{name} has {counted(len(block), 'row')} of {block.shape[1]} tokens, of which "
                f"{padded:,} {edge} with up to {runs.max()} tokens that are pad_token_id="
                f"{pad_token_id}: if that is padding, it counts as tokens; take it out by "
                f"fc.ragged({name}, {lengths})"
            )
    return None


def _has_edge(rows: Any, pad: int) -> bool:
    """Say whether rows are of one length, and one of them begins or ends with padding."""
    if is_array(rows):
        is_nested = is_tensor(rows) and rows.is_nested
        if is_nested or rows.ndim != 2 or len(rows) == 0 or rows.shape[1] <= RUN:
            return False
        some = rows[:: -(-len(rows) // SAMPLE)]
        edges = (to_numpy(some[:, :RUN]), to_numpy(some[:, -RUN:]))
        return any(edge.dtype.kind in "iu" and (edge == pad).all(1).any() for edge in edges)
    if not isinstance(rows, (list, tuple)) or len(rows) == 0:
        return False
    kind, width = type(rows[0]), len(rows[0])
    if width <= RUN or any(type(row) is not kind or len(row) != width for row in rows):
        return False
    if kind not in (list, tuple) and not (is_array(rows[0]) and all(row.ndim == 1 for row in rows)):
        return False
    return any(_any_padded(rows, pad, edge) for edge in (range(RUN), range(-RUN, 0)))


def _any_padded(rows: Sequence[Any], pad: int, places: range) -> bool:
    """Say whether a row of numbers has padding at all of these places."""
    for place in places:
        if isinstance(rows[0], (list, tuple)):
            items = [row[place] for row in rows]
        elif is_tensor(rows[0]):
            items = [row[place].item() for row in rows]
        else:
            items = [row.item(place) for row in rows]
        # Comparing others would run code of theirs.
        if set(map(type, items)) != {int} or pad not in items:
            return False
        rows = [row for row, item in zip(rows, items, strict=True) if item == pad]
    return True
