"""The tables of a batch's plan, read for operations and checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fastcollate.common.arrays import offsets_of, ranges_of
from fastcollate.common.caching import cached_property

if TYPE_CHECKING:
    from fastcollate._fastcollate import Plan
    from fastcollate.rows.lengths import Integers


class Spans(NamedTuple):
    """Spans of rows in an output.

    Attributes
    ----------
    rows : int64 (spans,)
        The row of each.
    starts : int64 (spans,)
        The start of each in the tokens of the row, or of its response.
    lengths : int64 (spans,)
        Number of tokens of each.
    places : int64 (spans,)
        The start of each in the output, as a flat position.
    """

    rows: Integers
    starts: Integers
    lengths: Integers
    places: Integers

    def located(self, places: Integers) -> tuple[Integers, Integers, Integers]:
        """Return the tokens at positions, in row order: row, index in the row, and position.

        For spans that do not overlap, in order. Positions outside the spans are left out.
        """
        if len(self.places) == 0:
            return places[:0], places[:0], places[:0]
        index = np.searchsorted(self.places, places, "right") - 1
        is_inside = (index >= 0) & (places < (self.places + self.lengths)[index])
        places, index = places[is_inside], index[is_inside]
        rows, tokens = self.rows[index], (self.starts - self.places)[index] + places
        steps = np.diff(rows)
        if ((steps > 0) | ((steps == 0) & (np.diff(tokens) > 0))).all():
            return rows, tokens, places
        order = np.lexsort((tokens, rows))  # parts of a row may be in any order
        return rows[order], tokens[order], places[order]

    def counts_in(self, places: Integers, num_rows: int) -> Integers:
        """Return the number of the given ascending positions in each row, int64 (rows,)."""
        ends = np.searchsorted(places, self.places + self.lengths)
        counts = ends - np.searchsorted(places, self.places)
        return np.bincount(self.rows, counts, num_rows).astype(np.int64)

    def lasts_in(self, places: Integers, num_rows: int) -> Integers:
        """Return the last token of each row among ascending positions: int64 (rows,); -1 if none.

        Tokens are indices in the row.
        """
        lasts = np.full(num_rows, -1, np.int64)
        index = np.searchsorted(places, self.places + self.lengths) - 1
        found = places[index] if len(places) > 0 else index
        is_inside = (index >= 0) & (found >= self.places)
        tokens = (self.starts + found - self.places)[is_inside]
        np.maximum.at(lasts, self.rows[is_inside], tokens)
        return lasts

    def places_of(self, rows: Integers, tokens: Integers) -> Integers:
        """Return the positions of tokens, given by row and index in the row; -1 for none."""
        if len(self.places) == 0:
            return np.full(len(rows), -1, np.int64)
        order = self._order
        most = int(max(tokens.max(initial=0), self.starts.max())) + 1
        keys = (self.rows * most + self.starts)[order]
        index = order[np.searchsorted(keys, rows * most + tokens, "right") - 1]
        ahead = tokens - self.starts[index]
        has_place = (self.rows[index] == rows) & (ahead >= 0) & (ahead < self.lengths[index])
        return np.where(has_place, self.places[index] + ahead, -1)

    def in_order(self) -> Spans:
        """Return the spans in the order of rows and their tokens."""
        order = self._order
        return Spans(*(column[order] for column in self))

    def places_in(self, rows: Integers) -> Integers:
        """Return the positions of all tokens of rows, row by row, for spans in this order."""
        starts = np.searchsorted(self.rows, rows)
        index = ranges_of(starts, np.searchsorted(self.rows, rows, "right") - starts)
        return ranges_of(self.places[index], self.lengths[index])

    @property
    def _order(self) -> Integers:
        """The spans in the order of rows."""
        order: Integers = np.lexsort((self.starts, self.rows))
        return order

    def nonempty(self) -> Spans:
        """Return the spans that have tokens."""
        return Spans(*(column[self.lengths > 0] for column in self))


class PlanTables:
    """The sources of a batch's rows, and their positions in its outputs.

    Attributes
    ----------
    source : int64 (rows,)
        The last turn of each row; -1 for a synthetic row.
    prompt_lens, response_lens : int64 (rows,)
        The lengths of the rows.
    is_padding : bool (rows,)
        True for padding rows.
    piece_counts : int64 (rows,)
        Number of pieces of each row.
    pieces : int64 (pieces, 5)
        The spans of turns' responses that a row consists of: turn, start in the turn's response,
        start in the row's response, number of tokens, and 1 if they train.
    turns : int64 (turns,), or None
        The turns that the rows of a shard consist of; None for all.
    turn_response_lens : int64 (turns,)
        Response tokens of each of these turns.
    written : Spans
        The rows' tokens in sequence-aligned outputs. In a tree, each position belongs only to the
        row that it is written for; rows without a position of their own have an empty span.
    responses : Spans
        The values of their response tokens in response-aligned outputs.
    width : int
        Width of sequence-aligned outputs; jagged ones count as one row.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        tables = plan.to_dict()
        self.source: Integers = tables["source"]
        self.prompt_lens: Integers = tables["prompt_lens"]
        self.response_lens: Integers = tables["response_lens"]
        self.is_padding = tables["is_padding"].astype(np.bool_)
        self.piece_counts: Integers = np.diff(tables["piece_offsets"])
        self.pieces: Integers = tables["pieces"]
        self.turns: Integers | None = tables.get("turns")
        self.turn_response_lens: Integers = tables["turn_response_lens"]
        self.width = plan.width
        self.written = _spans(tables["sequence_segments"], plan.width)
        self.responses = _spans(tables["response_segments"], plan.response_width).nonempty()

    @cached_property
    def tokens(self) -> Spans:
        """The rows' tokens in sequence-aligned outputs.

        In a tree they overlap, and a chain of forks has as many as the square of its rows.
        """
        return _spans(self._plan.read_segments(), self.width).nonempty()

    @cached_property
    def streams(self) -> Spans:
        """The values of the rows' tokens where each row has its own positions, as in trees."""
        lens = self.prompt_lens + self.response_lens
        rows = np.arange(len(lens))
        return Spans(rows, np.zeros_like(rows), lens, offsets_of(lens)[:-1])

    def last_sampled(self) -> Integers:
        """Return the index of each row's last sampled token in its response; 0 if none."""
        rows = np.repeat(np.arange(len(self.piece_counts)), self.piece_counts)
        _, _, start, length, _ = self.pieces.T
        places = np.zeros(len(self.piece_counts), np.int64)
        holds = length > 0
        places[rows[holds]] = (start + length - 1)[holds]  # a row's last assignment stays
        return places


def _spans(segments: Integers, width: int) -> Spans:
    """Read a table of segments: row, start, length, output row, column."""
    rows, starts, lengths, output_rows, columns = segments.T
    return Spans(rows, starts, lengths, output_rows * width + columns)
