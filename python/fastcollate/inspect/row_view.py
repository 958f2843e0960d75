"""The positions of a batch that are shown, with their kinds and values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from fastcollate.common.arguments import check_index, tally
from fastcollate.common.arrays import describe, flatten, offsets_of, on_host, take
from fastcollate.common.text import printable
from fastcollate.common.text import show as text_of
from fastcollate.inspect.styles import Kind
from fastcollate.inspect.token_view import NO_BREAK, Decoder, readable, shorten
from fastcollate.ops.ragged_outputs import ragged_outputs, taken_values
from fastcollate.plan.plan_tables import PlanTables

if TYPE_CHECKING:
    from fastcollate.ops.batch_state import BatchState
    from fastcollate.rows.lengths import Integers

FOLD = 16
"""Number of tokens shown at either end of a long run."""

SHOWN_ROWS = 4
"""Number of rows shown by default."""

SHOWN_RUNS = 4
"""Number of runs of a kind shown at either end of a row."""

_KINDS: tuple[Kind, ...] = ("prompt", "trained", "masked")

Span: TypeAlias = tuple[int, int, int, int]
"""A row, a span's start in it, its number of tokens, and its position in the output."""

MOST_VALUE = 60
"""Largest width of a value per row."""

SHOWN_VALUES = 4
"""Number of values shown of a token that has any number of them."""

PER_ROW = ("row", "object")
"""Alignments of outputs with one value per row."""


@dataclass
class Piece:
    """Consecutive positions of one kind.

    Attributes
    ----------
    kind : str or None
        The kind of the positions; None if they are left out.
    count : int
        Number of positions.
    texts : list of str
        One text per token if fields are shown below, else a single text.
    values : list of list of str
        For each of these fields, the value of each token.
    """

    kind: Kind | None
    count: int
    texts: list[str]
    values: list[list[str]] = field(default_factory=list)

    @classmethod
    def left_out(cls, count: int, words: str = "") -> Piece:
        """Return a piece of `count` omitted tokens."""
        return cls(None, count, [f"…{words or f'{count:,}'}…"])

    @classmethod
    def padding(cls, count: int) -> Piece:
        """Return a piece of `count` padding positions."""
        return cls("padding", count, [f"{count:,} padding"])


class Part(NamedTuple):
    """A row, or other positions of an output row that are shown in its place."""

    title: str
    pieces: list[Piece]

    @property
    def has_values(self) -> bool:
        """True if values of fields are shown below its tokens."""
        return any(piece.values for piece in self.pieces)


class Section(NamedTuple):
    """The view of an output row: the sequences of a bin, or one row."""

    title: str
    parts: list[Part]


class Shown(NamedTuple):
    """The view of a batch."""

    sections: list[Section]
    fields: list[str]
    """The outputs whose values are shown below tokens."""
    notes: list[str]
    """Remarks on rows and values that are not shown."""
    is_text: bool
    """True if there is a tokenizer."""


Names: TypeAlias = "Mapping[int, str] | None"
"""The names of rows by index; None for their indices."""


def show(
    state: BatchState, rows: Any, tokenizer: Any, fields: Any, fold: int | None, names: Names
) -> Shown:
    """Return the view of a batch; rows may have other names than their indices."""
    return _ShownRows(state, Decoder(tokenizer), fields, fold, names).shown(rows)


class _ShownRows:
    """Selection and reading of the rows that are shown."""

    def __init__(
        self, state: BatchState, decoder: Decoder, fields: Any, fold: int | None, names: Names
    ) -> None:
        self.state, self.names = state, names
        self.decoder = decoder
        self.plan = state.plan
        self.places = PlanTables(self.plan)
        self.lens = self.places.prompt_lens + self.places.response_lens
        self.fold = fold
        self.ragged = {one.values: one for one in ragged_outputs(state.spec.table)}
        self.per_token, self.per_row = _check_fields(state, fields, self.ragged)
        self.leading = {
            "sequence": len(self.plan.leading_shape(of_sequence=True)),
            "response": len(self.plan.leading_shape(of_sequence=False)),
            "stream": 1,
        }
        """Number of leading dimensions of positions in outputs, by alignment."""
        self.found: list[tuple[Piece, dict[str, Integers]]] = []
        """Pieces whose tokens are not read yet, with the positions of their values."""

    def shown(self, rows: Any) -> Shown:
        """Return the view, with all values that it needs."""
        chosen = self.chosen(rows)
        self.find_kinds(chosen)
        sections = list(self.sections(set(chosen)))
        self.read()
        hidden = self.plan.num_rows - len(chosen) if rows is None else 0
        notes = [f"and {tally(hidden, 'more row')}"] if hidden > 0 else []
        if misfits := self.decoder.misfits:
            ids = ", ".join(map(str, dict.fromkeys(misfits[:3])))
            notes.append(
                f"⟨?id⟩ is an id that the tokenizer does not have, such as {ids}: pass the "
                "tokenizer of the model"
            )
        return Shown(sections, self.per_token, notes, self.decoder.is_text)

    def chosen(self, rows: Any) -> list[int]:
        """Return the rows to show."""
        count = self.plan.num_rows
        if rows is None:
            first = np.arange(count)
            if self.plan.has_bins:  # in the order of positions
                first = np.array(list(dict.fromkeys(self.places.written.rows.tolist())), np.int64)
            return [int(row) for row in first[:SHOWN_ROWS]]
        if isinstance(rows, slice):
            return list(range(count)[rows])
        if hasattr(rows, "decode"):
            raise TypeError(f"rows is {describe(rows)}; pass tokenizer=... by name, and rows first")
        if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
            return [check_index("rows", rows, count)]
        return [check_index(f"rows[{i}]", row, count) for i, row in enumerate(rows)]

    def find_kinds(self, rows: list[int]) -> None:
        """Find the positions of rows' response values, and the trained ones."""
        lens = self.places.response_lens[rows]
        offsets = offsets_of(lens)
        tokens = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lens)
        places = self.places.responses.places_of(np.repeat(np.array(rows, np.int64), lens), tokens)
        has_value = places >= 0
        trains = np.zeros(len(places), np.bool_)
        if has_value.any():
            mask = flatten(self.state.data["loss_mask"], self.leading["response"])
            trains[has_value] = on_host(take(mask, places[has_value])) != 0
        bounds = list(zip(rows, pairwise(offsets.tolist()), strict=True))
        self.response_places = {row: places[slice(*ends)] for row, ends in bounds}
        self.trains = {row: trains[slice(*ends)] for row, ends in bounds}

    def sections(self, chosen: set[int]) -> Iterator[Section]:
        """Yield the output rows that hold a row to show, in order."""
        spans, width = self.places.written, max(self.places.width, 1)
        table = zip(*(column.tolist() for column in spans), strict=True)
        is_jagged = self.plan.is_jagged
        by_output_row = itemgetter(0) if is_jagged else (lambda span: span[3] // width)
        for output_row, group in groupby(table, by_output_row):
            inside = list(group)
            if chosen.isdisjoint(span[0] for span in inside):
                continue
            begin, end = output_row * width, (output_row + 1) * width
            if is_jagged:
                begin, end = inside[0][3], inside[-1][3] + inside[-1][2]
            title = self.bin_title(output_row, inside) if self.plan.has_bins else ""
            yield Section(title, self.parts(inside, begin, end, chosen))

    def bin_title(self, output_row: int, spans: list[Span]) -> str:
        """Return a summary of a bin."""
        tokens, width = sum(span[2] for span in spans), self.places.width
        sequences = tally(len(spans), "sequence")
        return f"bin {output_row}: {sequences}, {tokens:,} of {width:,} positions"

    def parts(self, spans: list[Span], begin: int, end: int, chosen: set[int]) -> list[Part]:
        """Return the parts of an output row between two positions, with the padding."""
        parts: list[Part] = []
        at = begin

        def pad(pieces: list[Piece], place: int) -> None:
            if place > at:
                pieces.append(Piece.padding(place - at))

        before = -1
        for row, group in groupby(spans, lambda span: span[0] if span[0] in chosen else None):
            inside = list(group)
            _, start, _, place = inside[0]
            _, last, length, last_place = inside[-1]
            pieces: list[Piece] = []
            pad(parts[-1].pieces if parts else pieces, place)
            if row is None:
                tokens = sum(span[2] for span in inside)
                words = f"{tally(len(inside), 'sequence')}, {tally(tokens, 'token')}"
                pieces.append(Piece.left_out(tokens, words))
                parts.append(Part("", pieces))
            else:
                if self.plan.is_tree and start > 0:
                    ahead = max(start - int(self.places.prompt_lens[row]), 0)
                    trained = int(np.count_nonzero(self.trains[row][:ahead]))
                    words = f"{start:,} in common with row {before}"
                    words += f", {trained:,} trained" if trained > 0 else ""
                    pieces.append(Piece.left_out(start, words))
                    start = 0
                for _, first, count, of_span in inside:
                    pieces += self.pieces(row, first, count, of_span) if count > 0 else []
                parts.append(Part(self.row_title(row, start, last + length), pieces))
            at, before = last_place + length, inside[-1][0]
        if self.plan.has_bins and end > at:
            parts.append(Part("", []))
        pad(parts[-1].pieces, end)
        return parts

    def row_title(self, row: int, start: int, stop: int) -> str:
        """Return the title of a row: its index, lengths, and values per row."""
        state, places = self.state, self.places
        trained = int(np.count_nonzero(self.trains[row]))
        words = [f"row {row}" if self.names is None else printable(self.names[row])]
        if stop - start < self.lens[row]:
            words.append(f"tokens {start:,} to {stop - 1:,} of {self.lens[row]:,}")
        if state.is_padding is not None and state.is_padding[row]:
            words.append("a padding row")
        words.append(f"prompt {places.prompt_lens[row]:,}")
        words.append(f"response {places.response_lens[row]:,}")
        words.append(f"{trained:,} trained")
        for key in self.per_row:
            value = " ".join(readable(_write(state.data[key][row])).split())
            words.append(f"{key} {shorten(value, MOST_VALUE)}")
        return ", ".join(word.replace(" ", NO_BREAK) for word in words)

    def pieces(self, row: int, start: int, length: int, place: int) -> Iterator[Piece]:
        """Yield the tokens of a row from `start` on, in runs of one kind, long ones folded."""
        prompt_len = int(self.places.prompt_lens[row])
        kinds = np.concatenate([np.zeros(prompt_len, np.int8), np.where(self.trains[row], 1, 2)])
        kinds = kinds[start : start + length]
        bounds = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), length]
        runs = list(pairwise(bounds))
        left_out = 0
        if self.fold is not None and len(runs) > 2 * SHOWN_RUNS + 1:
            middle = runs[SHOWN_RUNS:-SHOWN_RUNS]
            left_out = middle[-1][1] - middle[0][0]
            runs = [*runs[:SHOWN_RUNS], *runs[-SHOWN_RUNS:]]
        for index, (first, last) in enumerate(runs):
            if left_out and index == SHOWN_RUNS:
                yield Piece.left_out(left_out)
            kind = _KINDS[kinds[first]]
            fold = last - first if self.fold is None else self.fold
            if last - first <= 2 * fold + 1:
                yield self.piece(kind, row, start + first, start + last, place + first)
                continue
            hidden = last - first - 2 * fold
            yield self.piece(kind, row, start + first, start + first + fold, place + first)
            yield Piece.left_out(hidden)
            yield self.piece(kind, row, start + last - fold, start + last, place + last - fold)

    def piece(self, kind: Kind, row: int, begin: int, end: int, place: int) -> Piece:
        """Return a piece of a row; its tokens are read later, all at once."""
        piece = Piece(kind, end - begin, [])
        prompt_len = int(self.places.prompt_lens[row])
        of_responses = np.full(end - begin, -1)
        first = max(begin, prompt_len)
        if first < end:
            of_row = self.response_places[row]
            of_responses[first - begin :] = of_row[first - prompt_len : end - prompt_len]
        stream = int(self.places.streams.places[row]) + begin
        places = {
            "sequence": np.arange(place, place + end - begin),
            "response": of_responses,
            "stream": np.arange(stream, stream + end - begin),
        }
        self.found.append((piece, places))
        return piece

    def read(self) -> None:
        """Read the tokens of all pieces, and their values."""
        if not self.found:
            return
        bounds = np.cumsum([piece.count for piece, _ in self.found])[:-1]
        ids = np.split(self.values("input_ids", "sequence"), bounds)
        decode = self.decoder.texts if self.per_token else self.decoder.lines
        for (piece, _), of_piece in zip(self.found, ids, strict=True):
            piece.texts = decode(of_piece.tolist())
        for key in self.per_token:
            ragged = self.ragged.get(key)
            align = self.state.spec.table[key].align if ragged is None else ragged.align
            values = np.split(self.values(key, align), bounds)
            for (piece, _), of_piece in zip(self.found, values, strict=True):
                piece.values.append(list(map(_write, of_piece)))

    def values(self, key: str, align: str) -> np.ndarray:
        """Return the values of all pieces' tokens in an output; None for missing ones."""
        places = np.concatenate([places[align] for _, places in self.found])
        has_value = places >= 0
        found: list[_Few] | np.ndarray
        if (ragged := self.ragged.get(key)) is not None:
            lists = taken_values(self.state, ragged, places[has_value])
            ends = on_host(lists[ragged.offsets]).tolist()
            of_tokens = on_host(lists[ragged.values])
            found = [_Few(of_tokens[first:end]) for first, end in pairwise(ends)]
        else:
            flat = flatten(self.state.data[key], self.leading[align])
            if has_value.all():
                return on_host(take(flat, places))
            found = on_host(take(flat, places[has_value]))
        values = np.full(len(places), None, object)
        for index, value in zip(np.flatnonzero(has_value).tolist(), found, strict=True):
            values[index] = value
        return values


class _Few(NamedTuple):
    """The values of a token, of which many are cut."""

    values: np.ndarray

    def __str__(self) -> str:
        first = _write(self.values[:SHOWN_VALUES])
        cut = len(self.values) - SHOWN_VALUES
        return f"{first},…{cut:,}…" if cut > 0 else first


def _check_fields(
    state: BatchState, fields: Any, ragged: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Return the requested outputs with values per token, and those with one per row."""
    keys = [fields] if isinstance(fields, str) else list(fields)
    table = state.spec.table
    known = [
        output.key
        for output in table
        if output.align in ("sequence", "response", "stream", *PER_ROW) or output.key in ragged
    ]
    for key in keys:
        if key not in known:
            raise ValueError(
                f"fields has {text_of(key)}, which has no value per token or row; pass some of "
                f"{', '.join(map(repr, known))}"
            )
    per_row = [key for key in keys if table[key].align in PER_ROW]
    return [key for key in keys if key not in per_row], per_row


def _write(value: Any) -> str:
    """Format a value in few characters; None as an empty string."""
    if value is None:
        return ""
    value = on_host(value) if hasattr(value, "dtype") else value
    if isinstance(value, np.ndarray) and value.ndim > 0:
        return ",".join(_write(one) for one in value)
    number = value.item() if hasattr(value, "item") else value
    if isinstance(number, float):  # placeholders such as -9999 whole
        return f"{number:.5g}" if number.is_integer() else f"{number:.3g}"
    return str(int(number)) if isinstance(number, bool) else str(number)
