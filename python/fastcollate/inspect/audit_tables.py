"""Inputs of an audit: the sampled turns, and the tables of batch plans."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcollate.common.arguments import tally
from fastcollate.common.arrays import offsets_of, ranges_of, to_numpy
from fastcollate.plan.plan_tables import PlanTables, Spans
from fastcollate.rows.column_input import ragged
from fastcollate.rows.fields import Field
from fastcollate.rows.lengths import Integers
from fastcollate.rows.tokens import Whole, check_tokens

if TYPE_CHECKING:
    from fastcollate._fastcollate import Plan


class Turns(NamedTuple):
    """The turns as sampled."""

    prompts: TurnSpans
    responses: TurnSpans
    weights: NDArray[Any] | None


class TurnSpans(NamedTuple):
    """Spans of an array, one per turn."""

    values: NDArray[Any]
    starts: Integers
    lengths: Integers

    @classmethod
    def of(cls, rows: Any) -> TurnSpans:
        """Read rows of any kind."""
        column = ragged(rows)
        return cls(to_numpy(column.values), column.offsets[:-1], column.lengths)


def check_turns(
    prompts: Any, responses: Any, sequences: Any, prompt_lens: Any, loss_mask: Any
) -> Turns | None:
    """Read the turns, if given."""
    if prompts is responses is sequences is prompt_lens is None:
        if loss_mask is not None:
            raise TypeError(
                "loss_mask is given without turns; pass prompts and responses, or sequences with "
                "prompt_lens"
            )
        return None
    tokens = check_tokens(prompts, responses, sequences, prompt_lens)
    if isinstance(tokens, Whole):
        whole = TurnSpans.of(tokens.sequences)
        cut = 0 if tokens.prompt_lens is None else tokens.prompt_lens
        lens = np.broadcast_to(cut, whole.lengths.shape)
        first = TurnSpans(whole.values, whole.starts, np.asarray(lens, np.int64))
        second = TurnSpans(whole.values, whole.starts + lens, whole.lengths - lens)
    else:
        first, second = TurnSpans.of(tokens.prompts), TurnSpans.of(tokens.responses)
    if len(first.lengths) != len(second.lengths):
        raise ValueError(
            f"prompts has {tally(len(first.lengths), 'row')}, but responses has "
            f"{len(second.lengths)}; pass one of each for every turn"
        )
    weights = None
    if loss_mask is not None:
        field = loss_mask if isinstance(loss_mask, Field) else Field(loss_mask)
        is_whole = field.align == "sequence"
        expected = first.lengths + second.lengths if is_whole else second.lengths
        rows = field.rows
        if field.default is not None and isinstance(rows, (list, tuple)):
            pairs = zip(rows, expected.tolist(), strict=False)
            filled = [[field.default] * size if row is None else row for row, size in pairs]
            rows = ragged(filled, dtype="float64")
        given = TurnSpans.of(rows)
        if not np.array_equal(given.lengths, expected):
            raise ValueError(
                "loss_mask has rows of other lengths than responses; pass the loss_mask of these "
                "turns"
            )
        starts = given.starts + (first.lengths if is_whole else 0)
        weights = given.values[ranges_of(starts, second.lengths)]
    return Turns(first, second, weights)


class AuditRows(PlanTables):
    """The rows of a batch, with the tokens of their responses."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        size = math.prod(plan.leading_shape(of_sequence=False))
        self.response_grid = Grid(self.responses, size, plan.response_width, plan.is_packed)
        self.stream_grid = Grid(self.tokens, plan.num_positions, plan.width, plan.is_packed)

    @property
    def response_offsets(self) -> Integers:
        """Offsets of the rows' responses, concatenated."""
        return offsets_of(self.response_lens)

    @property
    def of_responses(self) -> Integers:
        """The row of each response token."""
        return np.repeat(np.arange(len(self.source)), self.response_lens)

    def sampled(self, turn_offsets: Integers) -> Integers:
        """Return the sampled token of each response token of the rows; -1 if none."""
        offsets = self.response_offsets
        turn, start, at, length, _ = self.pieces.T
        sampled = ranges_of(turn_offsets[turn] + start, length)
        if len(sampled) == offsets[-1]:
            return sampled
        tokens = np.full(offsets[-1], -1)
        row = np.repeat(np.arange(len(self.source)), self.piece_counts)
        tokens[ranges_of(offsets[row] + at, length)] = sampled
        return tokens

    def ids(self, turns: Turns, tokens: Integers, turn_offsets: Integers) -> NDArray[Any]:
        """Return the id of each response token, as sampled if it was.

        In synthetic rows, ids are 0.
        """
        offsets = self.response_offsets
        ids = np.zeros(offsets[-1], turns.responses.values.dtype)
        is_of_turn = self.source >= 0
        source, at = self.source[is_of_turn], offsets[:-1][is_of_turn]
        length, begin = self.response_lens[is_of_turn], self.prompt_lens[is_of_turn]
        in_prompt = np.clip(turns.prompts.lengths[source] - begin, 0, length)
        skipped = np.maximum(begin - turns.prompts.lengths[source], 0)
        for spans, place, start, count in (
            (turns.prompts, at, begin, in_prompt),
            (turns.responses, at + in_prompt, skipped, length - in_prompt),
        ):
            values = spans.values[ranges_of(spans.starts[source] + start, count)]
            ids[ranges_of(place, count)] = values
        sampled = np.flatnonzero(tokens >= 0)
        turn = np.searchsorted(turn_offsets, tokens[sampled], side="right") - 1
        within = tokens[sampled] - turn_offsets[turn]
        ids[sampled] = turns.responses.values[turns.responses.starts[turn] + within]
        return ids

    def places_of_responses(self, grid: Grid) -> Integers:
        """Return the position of each response token in a grid of token streams; -1 if none."""
        offsets = self.response_offsets
        skip = np.clip(self.prompt_lens[grid.row] - grid.start, 0, grid.length)
        begin = np.maximum(grid.start - self.prompt_lens[grid.row], 0)
        count = grid.length - skip
        at, found = span_of(offsets[grid.row] + begin, count), ranges_of(grid.dst + skip, count)
        if len(found) == offsets[-1] and isinstance(at, slice):
            return found
        places = np.full(offsets[-1], -1)
        places[at] = found
        return places


class Grid:
    """The positions of spans of rows in an output."""

    def __init__(self, spans: Spans, size: int, width: int, is_packed: bool) -> None:
        self.row, self.start, self.length, self.dst = spans
        self.size, self.width, self.is_packed = size, width, is_packed
        self.places = ranges_of(self.dst, self.length)


def span_of(starts: Integers, lengths: Integers) -> Any:
    """Return the positions of spans, as a slice if they are adjacent."""
    if len(starts) > 0 and np.array_equal(starts[1:], (starts + lengths)[:-1]):
        return slice(int(starts[0]), int(starts[-1] + lengths[-1]))
    return ranges_of(starts, lengths)


def find_unpredicted_tokens(rows: AuditRows, streams: Grid) -> Integers:
    """Return the response tokens that begin a sequence, or a part of a split one."""
    if not streams.is_packed:
        is_first = (rows.prompt_lens == 0) & (rows.response_lens > 0)
        firsts: Integers = rows.response_offsets[:-1][is_first]
        return firsts
    first = streams.start - rows.prompt_lens[streams.row]
    begins = (first >= 0) & (streams.length > 0)
    unpredicted: Integers = rows.response_offsets[streams.row[begins]] + first[begins]
    return unpredicted
