"""The packed layout: several sequences to a row, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fastcollate.testing.reference.grids import Grid, Grids, Place, place
from fastcollate.testing.reference.reading import Array


class Part(NamedTuple):
    """A span of a sequence: all of it, unless it was split."""

    sequence: int
    start: int
    length: int


Bins: TypeAlias = Sequence[Sequence[Part]]
"""The parts of each row of the output, in order."""


class Segment(NamedTuple):
    """A span that attends only to itself."""

    length: int
    """Tokens."""
    place: int
    """Positions, with those of the padding after the tokens."""


class Packing(NamedTuple):
    """The positions of sequences in packed rows."""

    prompt_lens: list[int]
    response_lens: list[int]
    bins: Bins
    width: int
    multiple: int
    """The place of each part is a multiple of this."""
    shift: str
    padding_as: str


def parts_of(plan: Any) -> list[list[Part]]:
    """Read the bins of a `fastcollate.planning.BinPlan`."""
    columns = (plan.indices.tolist(), plan.starts.tolist(), plan.lengths.tolist())
    parts = [Part(*values) for values in zip(*columns, strict=True)]
    return [parts[begin:end] for begin, end in pairwise(plan.offsets.tolist())]


def packing_of(
    prompt_lens: list[int],
    response_lens: list[int],
    bins: Bins | None = None,
    *,
    pad_to: int | None = None,
    multiple_of: int | None = 1,
    shift: str = "none",
    padding_as: str = "own_segment",
) -> Packing:
    """Find the width of packed rows.

    Parameters
    ----------
    prompt_lens, response_lens
        Of each sequence.
    bins
        The parts of sequences in each row; None for all of them in one row, in order.
    pad_to, multiple_of, shift, padding_as
        As `fastcollate.build_batch`.
    """
    lens = [p + r for p, r in zip(prompt_lens, response_lens, strict=True)]
    if bins is None:
        bins = [[Part(sequence, 0, count) for sequence, count in enumerate(lens)]]
    bins = [[Part(*part) for part in parts] for parts in bins]
    multiple = multiple_of or 1
    widest = max(sum(_round_up(part.length, multiple) for part in parts) for parts in bins)
    width = widest if pad_to is None else pad_to
    return Packing(prompt_lens, response_lens, bins, width, multiple, shift, padding_as)


def _round_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def make_packed_grids(packing: Packing) -> Grids:
    """Find the places of all tokens, and of the values that belong to response tokens.

    With ``shift="next_token"`` these stand at the token in front, and have no place where that is
    in no part with them.
    """
    lens = [p + r for p, r in zip(packing.prompt_lens, packing.response_lens, strict=True)]
    shape = (len(packing.bins), packing.width)
    tokens: list[list[Place | None]] = [[None] * count for count in lens]
    before: list[list[Place | None]] = [[None] * count for count in lens]
    for row, parts in enumerate(packing.bins):
        column = 0
        for part in parts:
            for offset in range(part.length):
                tokens[part.sequence][part.start + offset] = (row, column + offset)
                if offset > 0:
                    before[part.sequence][part.start + offset] = (row, column + offset - 1)
            column += _round_up(part.length, packing.multiple)
    sources = before if packing.shift == "next_token" else tokens
    answers = [places[count:] for places, count in zip(sources, packing.prompt_lens, strict=True)]
    return Grids(
        Grid(lens, tokens, shape),
        Grid(packing.response_lens, answers, shape),
        Grid(lens, before, shape),
    )


def segments_of(packing: Packing) -> list[list[Segment]]:
    """List the segments of every row, after the convention for padding."""
    rows = []
    for parts in packing.bins:
        segments = [
            Segment(part.length, _round_up(part.length, packing.multiple)) for part in parts
        ]
        rest = packing.width - sum(segment.place for segment in segments)
        if rest > 0 and packing.padding_as == "own_segment":
            segments.append(Segment(rest, rest))
        elif rest > 0 and packing.padding_as == "last_segment" and segments:
            length, place = segments.pop()
            # Without rounding, a segment's length equals its place.
            length += rest if packing.multiple == 1 else 0
            segments.append(Segment(length, place + rest))
        rows.append(segments)
    return rows


def make_packed_outputs(packing: Packing, tokens: Grid, position_ids: str | None) -> dict[str, Any]:
    """Build the outputs for the positions of sequences."""
    rows = segments_of(packing)
    ids = [[sequence] * count for sequence, count in enumerate(tokens.lens)]
    outputs = {
        "position_ids": _positions(packing, rows, tokens, position_ids),
        "sequence_ids": np.array(place(tokens, ids, -1), np.int64).reshape(tokens.shape),
        **_boundaries([[segment.length for segment in segments] for segments in rows], ""),
    }
    if packing.multiple > 1:
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


def _positions(
    packing: Packing, rows: list[list[Segment]], tokens: Grid, padding: str | None
) -> Array:
    if padding is None:
        counted = []
        for segments in rows:
            row = [position for segment in segments for position in range(segment.place)]
            counted.append(row + [0] * (packing.width - len(row)))
        return np.array(counted, np.int64).reshape(tokens.shape)
    of_parts = [[0] * count for count in tokens.lens]
    for parts in packing.bins:
        for part in parts:
            of_parts[part.sequence][part.start : part.start + part.length] = range(part.length)
    return positions(tokens, of_parts, padding)


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
