"""Detection of rows of one length that look padded: all of a block counts as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from fastcollate._fastcollate import PADDED_RUN, have_padded_edges
from fastcollate.common.arguments import tally
from fastcollate.common.arrays import is_array, is_tensor, read_array, to_numpy
from fastcollate.rows.column_input import ragged

# Fewer tokens than PADDED_RUN may be genuine: if the padding token is also the first token of
# sequences, all rows have it; if it is the last one, rows that were cut off lack it.

SHARED_RUN = 4
"""PADDED_RUN if all rows have equally many: they may share a few first or last tokens."""

LONG_RUN = 8
"""The same if few rows look padded: some may end with fewer by chance."""

ROWS_PER_PADDED = 4
"""Padded rows are few if fewer than one row in this number."""

CHANCE = 1e-3
"""Largest probability of an edge by chance, if the padding token also occurs inside rows."""

SAMPLE = 1024
"""Rows of a block that are checked for an edge: if it is padded, most rows are."""


def padding_message(
    name: str, rows: Any, pad_token_id: int, own: Sequence[int] | None = None
) -> str | None:
    """Return a warning if a block of rows looks padded, as `find_padding`."""
    if (found := find_padding(name, rows, pad_token_id, own)) is None:
        return None
    what, side = found
    return (
        f"{what} pad_token_id={pad_token_id}: these count as real tokens; if they are padding, "
        f"remove it with fc.unpad({name}, lengths=..., side={side!r}), or by mask=attention_mask"
    )


def find_padding(
    name: str, rows: Any, pad_token_id: int, own: Sequence[int] | None = None
) -> tuple[str, str] | None:
    """Describe the padding of a block of rows that looks padded, and return its side, too.

    Of a list, only `own` rows may be read.

    A block is an array of two dimensions, or rows of one length in any container. It looks padded
    if one row in four begins or ends with two padding tokens or more, or one row with eight; in an
    array, also if one row in four begins with one such token, and another row does not. Rows of
    padding tokens only do not count, nor do up to three tokens that all rows share. If the padding
    token also occurs inside rows, the edge has to be too long for chance.

    The whole block is read only if a few items of each row suggest such an edge.
    """
    is_block = is_array(rows)
    try:
        if own is not None and isinstance(rows, (list, tuple)):
            own_rows = [rows[row] for row in own if row >= 0]
            ends = [rows[0], *own_rows[:1], rows[-1]]
            if len({len(row) if hasattr(row, "__len__") else -1 for row in ends}) > 1:
                return None
            rows = own_rows
        elif not (isinstance(rows, (list, tuple)) or is_block):
            chunks = getattr(rows, "chunks", None)
            some = _block_of((chunks[0] if chunks else rows)[:SAMPLE])
            if not _has_edge(some, pad_token_id, is_block):
                return None  # without a copy of all rows
            rows = _block_of(rows)
        if not _has_edge(rows, pad_token_id, is_block):
            return None
        block = (
            to_numpy(rows)
            if is_array(rows)
            else np.stack([read_array(to_numpy(row)) for row in list(rows)])
        )
    except Exception:
        return None  # another thread is changing rows, a dtype that NumPy lacks, or their own code
    is_pad = block == pad_token_id
    is_pad = is_pad[~is_pad.all(1)]
    for side, flags in (("right", is_pad[:, ::-1]), ("left", is_pad)):
        runs = flags.argmin(1)
        inside = flags.sum() - runs.sum()
        share = inside / max(flags.size - runs.sum(), 1)
        run = 1 if side == "left" and is_block else PADDED_RUN
        padded, longest = int((runs >= run).sum()), int(runs.max(initial=0))
        is_few = padded * ROWS_PER_PADDED < len(flags)
        is_shared = len(np.unique(runs)) < 2
        least = LONG_RUN if is_few else SHARED_RUN if is_shared else run
        if longest >= least and len(flags) * share**longest < CHANCE:
            edge = "end" if side == "right" else "begin"
            tokens = "a token that is" if longest == 1 else f"up to {longest} tokens that are"
            what = (
                f"{name} has {tally(len(block), 'row')} of {block.shape[1]} tokens, of which "
                f"{padded:,} {edge} with {tokens}"
            )
            return what, side
    return None


def _block_of(column: Any) -> Any:
    """Return a column as an array of two dimensions; None unless its rows have one length."""
    if len(set(map(len, islice(column, 3)))) != 1:
        return None
    rows = ragged(column)
    is_block = len(set(rows.lengths.tolist())) == 1
    return to_numpy(rows.values).reshape(len(rows), -1) if is_block else None


def _has_edge(rows: Any, pad: int, is_block: bool) -> bool:
    """Return True if rows are of one length, and one of them begins or ends with padding.

    In a block of the caller's, a quarter of rows that begin with one padding token are enough.
    """
    if isinstance(rows, (list, tuple)):
        if not have_padded_edges(rows, pad):
            return False
        return len({(type(row), getattr(row, "shape", None)) for row in rows}) == 1
    if not is_array(rows) or (is_tensor(rows) and rows.is_nested):
        return False
    if rows.ndim != 2 or len(rows) == 0 or rows.shape[1] <= PADDED_RUN:
        return False
    some = rows[:: -(-len(rows) // SAMPLE)]
    edges = [to_numpy(edge) for edge in (some[:, :PADDED_RUN], some[:, -PADDED_RUN:])]
    if not all(edge.dtype.kind in "iu" for edge in edges):
        return False
    begin, end = (edge == pad for edge in edges)
    count = np.count_nonzero(begin[:, 0])
    is_part = is_block and count < len(begin) <= ROWS_PER_PADDED * count
    return bool(is_part or (count > 0 and begin.all(1).any()) or end.all(1).any())
