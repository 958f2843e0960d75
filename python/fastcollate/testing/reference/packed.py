"""The packed layout: several sequences to a row, token by token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from fastcollate.testing.reference.grids import Grid, Grids, Place, place
from fastcollate.testing.reference.packing import Piece
from fastcollate.testing.reference.reading import Array


class Segment(NamedTuple):
    """A span that attends only to itself."""

    length: int
    """Tokens."""
    place: int
    """Positions, with those of the padding after the tokens."""
    start: int = 0
    """Position of the first token."""


class PackedRows(NamedTuple):
    """The positions of sequences in packed rows."""

    grids: Grids
    segments: list[list[Segment]]
    """Of each row, after the convention for padding."""
    depths: list[list[int]]
    """The position of each token in its piece."""
    multiple: int


def parts_of(plan: Any) -> list[list[Piece]]:
    """Read the bins of a `fastcollate.planning.BinPlan`."""
    columns = (plan.indices.tolist(), plan.starts.tolist(), plan.lengths.tolist())
    pieces = list(zip(*columns, strict=True))
    return [pieces[begin:end] for begin, end in pairwise(plan.offsets.tolist())]


def packed_rows(
    prompt_lens: list[int],
    response_lens: list[int],
    bins: Sequence[Sequence[Piece]] | None = None,
    *,
    pad_to: int | None = None,
    multiple_of: int | None = 1,
    pad_to_multiple_of: int = 1,
    shift: str = "none",
    padding_as: str = "own_segment",
) -> PackedRows:
    """Find the places of all tokens, and of the values that belong to response tokens.

    With ``shift="next_token"`` these stand at the token in front, and have no place where that is
    in no piece with them.

    Parameters
    ----------
    prompt_lens, response_lens
        Of each sequence.
    bins
        The pieces of sequences in each row; None for all sequences in one row, in order.
    pad_to, multiple_of, pad_to_multiple_of, shift, padding_as
        As `fastcollate.build_batch`.
    """
    multiple = multiple_of or 1
    lens = [p + r for p, r in zip(prompt_lens, response_lens, strict=True)]
    if bins is None:
        bins = [[(sequence, 0, count) for sequence, count in enumerate(lens)]]
    tokens: list[list[Place | None]] = [[None] * count for count in lens]
    before: list[list[Place | None]] = [[None] * count for count in lens]
    depths = [[0] * count for count in lens]
    rows: list[list[Segment]] = []
    for row, pieces in enumerate(bins):
        column = 0
        rows.append([])
        for sequence, start, length in pieces:
            for offset in range(length):
                tokens[sequence][start + offset] = (row, column + offset)
                depths[sequence][start + offset] = offset
                if offset > 0:
                    before[sequence][start + offset] = (row, column + offset - 1)
            rows[-1].append(Segment(length, -(-length // multiple) * multiple))
            column += rows[-1][-1].place
    loads = [sum(segment.place for segment in segments) for segments in rows]
    width = max(loads) if pad_to is None else pad_to
    if pad_to is None and pad_to_multiple_of > 1:
        both = math.lcm(pad_to_multiple_of, multiple)
        width = -(-width // both) * both
    for segments, load in zip(rows, loads, strict=True):
        if load < width and padding_as in ("own_segment", "continued_segment"):
            is_continued = padding_as == "continued_segment" and segments
            start = segments[-1].place if is_continued else 0
            segments.append(Segment(width - load, width - load, start))
        elif load < width and padding_as == "last_segment" and segments:
            length, room, _ = segments.pop()
            # Without rounding, a segment's length equals its place.
            length += width - load if multiple == 1 else 0
            segments.append(Segment(length, room + width - load))
    sources = before if shift == "next_token" else tokens
    answers = [places[count:] for places, count in zip(sources, prompt_lens, strict=True)]
    shape = (len(bins), width)
    grids = Grids(
        Grid(lens, tokens, shape), Grid(response_lens, answers, shape), Grid(lens, before, shape)
    )
    return PackedRows(grids, rows, depths, multiple)


def packed_outputs(packed: PackedRows, position_ids: str | None) -> dict[str, Any]:
    """Build the outputs for the positions of sequences."""
    tokens, rows = packed.grids.tokens, packed.segments
    ids = [[sequence] * count for sequence, count in enumerate(tokens.lens)]
    if position_ids is None:
        counted = np.zeros(tokens.shape, np.int64)
        for line, segments in zip(counted, rows, strict=True):
            found = [
                segment.start + position
                for segment in segments
                for position in range(segment.place)
            ]
            line[: len(found)] = found
    else:
        counted = positions(tokens, packed.depths, position_ids)
    outputs = {
        "position_ids": counted,
        "sequence_ids": np.array(place(tokens, ids, -1), np.int64).reshape(tokens.shape),
        **_boundaries([[segment.length for segment in segments] for segments in rows], ""),
    }
    if packed.multiple > 1:
        places = [[segment.place for segment in segments] for segments in rows]
        outputs |= _boundaries(places, "_padded")
    return outputs


def _boundaries(rows: list[list[int]], suffix: str) -> dict[str, Any]:
    """Return the offsets of spans: over the flattened batch, and in each row."""
    lengths = [length for row in rows for length in row]
    return {
        f"cu_seqlens{suffix}": _running(lengths),
        f"max_seqlen{suffix}": max(lengths, default=0),
        f"row_cu_seqlens{suffix}": [_running(row) for row in rows],
    }


def _running(lengths: list[int]) -> Array:
    return np.array(list(accumulate(lengths, initial=0)), np.int32)


def positions(tokens: Grid, rows: Sequence[Sequence[int]], padding: str) -> Array:
    """Place the positions of tokens; padding holds 0, 1 or that of the last token before it."""
    placed = place(tokens, rows, None)
    for line in placed if len(tokens.shape) == 2 else []:
        last = 0
        for column, position in enumerate(line):
            if position is not None:
                last = position
            else:
                line[column] = {"zero": 0, "one": 1, "repeat_last": last}[padding]
    return np.array(placed, np.int64).reshape(tokens.shape)
