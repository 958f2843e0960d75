"""Positions of rows' tokens and response values in a batch's outputs, and the trained ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fastcollate.arrays import (
    dtype_name,
    is_only_torch,
    is_tensor,
    offsets_of,
    to_numpy,
)

if TYPE_CHECKING:
    from fastcollate._fastcollate import Plan
    from fastcollate.batch import Batch
    from fastcollate.plan.lengths import Integers


class Spans(NamedTuple):
    """Spans of rows in an output.

    Attributes
    ----------
    rows : int64 (spans,)
        The row of each.
    starts : int64 (spans,)
        The start of each in the row's tokens, or in those of its response.
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
        rows, tokens = self.rows[index], self.starts[index] + places - self.places[index]
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

    def of_rows(self, rows: Integers) -> list[tuple[int, int, int]]:
        """Return the spans of rows, in the order of their tokens: row, position and length."""
        order = self._order
        order = order[np.isin(self.rows[order], rows)]
        columns = (self.rows, self.places, self.lengths)
        return list(zip(*(column[order].tolist() for column in columns), strict=True))

    @property
    def _order(self) -> Integers:
        """The spans in the order of rows."""
        order: Integers = np.lexsort((self.starts, self.rows))
        return order


class RowPlaces(NamedTuple):
    """Positions of a batch's rows in its outputs.

    Attributes
    ----------
    tokens : Spans
        Their tokens, in sequence-aligned outputs. In a tree they overlap.
    written : Spans
        The same, but each position belongs only to the row that it is written for. Rows without a
        position of their own have an empty span.
    responses : Spans
        The values of their response tokens, in response-aligned outputs.
    streams : Spans
        The values of their tokens, in outputs where each row has its own positions, as in trees.
    prompt_lens, response_lens : int64 (rows,)
        The lengths of the rows.
    width : int
        Width of sequence-aligned outputs; jagged ones count as one row.
    """

    tokens: Spans
    written: Spans
    responses: Spans
    streams: Spans
    prompt_lens: Integers
    response_lens: Integers
    width: int

    @classmethod
    def of(cls, plan: Plan) -> RowPlaces:
        """Return the positions of a plan's rows."""
        tables = plan.to_dict()
        prompt_lens, response_lens = tables["prompt_lens"], tables["response_lens"]
        width, lens = int(tables["sequence_shape"][1]), prompt_lens + response_lens
        rows = np.arange(len(lens))
        return cls(
            _nonempty(_spans(plan.read_segments(), width)),
            _spans(tables["sequence_segments"], width),
            _nonempty(_spans(tables["response_segments"], int(tables["response_shape"][1]))),
            Spans(rows, np.zeros_like(rows), lens, offsets_of(lens)[:-1]),
            prompt_lens,
            response_lens,
            width,
        )


def _spans(segments: Integers, width: int) -> Spans:
    """Read a table of segments: row, start, length, output row, column."""
    rows, starts, lengths, output_rows, columns = segments.T
    return Spans(rows, starts, lengths, output_rows * width + columns)


def _nonempty(spans: Spans) -> Spans:
    return Spans(*(column[spans.lengths > 0] for column in spans))


def trained_places(batch: Batch) -> Integers:
    """Return the ascending positions of response-aligned outputs whose tokens train."""
    return np.flatnonzero(on_host(batch._data["loss_mask"] != 0))


def on_host(value: Any) -> np.ndarray:
    """Return an output as an array on the host; floats that NumPy lacks as float32."""
    if is_tensor(value) and is_only_torch(value.dtype):
        value = value.float()
    array: np.ndarray = to_numpy(value)
    return array


def is_float(value: Any) -> bool:
    """Return True for an output of floats."""
    return "float" in dtype_name(value.dtype)
