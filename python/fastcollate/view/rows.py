"""Which positions of a batch are shown, as what, and with which values beneath."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from fastcollate.arguments import checked_index, counted
from fastcollate.arrays import flattened, offsets_of, taken
from fastcollate.ops.places import RowPlaces, on_host, trained_mask
from fastcollate.view.styles import Kind
from fastcollate.view.tokens import NO_BREAK, Decoder, readable, shortened

if TYPE_CHECKING:
    from fastcollate.batch import Batch
    from fastcollate.plan.lengths import Integers

SHOWN_ROWS = 4
"""How many rows are shown if none are named."""

SHOWN_RUNS = 4
"""How many runs of a kind are shown at either end of a row."""

_KINDS: tuple[Kind, ...] = ("prompt", "trained", "masked")

Span: TypeAlias = tuple[int, int, int, int]
"""A row, where a span begins in it, its tokens, and where it lies in the output."""

MOST_VALUE = 60
"""How many columns a value takes at most that a row has one of."""

PER_ROW = ("row", "object")
"""Alignments of outputs that have one value per row."""


@dataclass
class Piece:
    """Positions of one kind that follow each other.

    Attributes
    ----------
    kind : str or None
        What they hold; None if they are left out.
    count : int
        How many there are.
    texts : list of str
        What stands there: a text for each token where fields are shown beneath, else one.
    values : list of list of str
        Of each of these fields, the value of each token.
    """

    kind: Kind | None
    count: int
    texts: list[str]
    values: list[list[str]] = field(default_factory=list)

    @classmethod
    def left_out(cls, count: int, words: str = "") -> Piece:
        """Return so many tokens that are left out."""
        return cls(None, count, [f"…{words or f'{count:,}'}…"])

    @classmethod
    def padding(cls, count: int) -> Piece:
        """Return positions of padding."""
        return cls("padding", count, [f"{count:,} padding"])


class Part(NamedTuple):
    """A row, or what lies in its place in one output row."""

    title: str
    pieces: list[Piece]

    @property
    def has_values(self) -> bool:
        """Whether values of fields stand beneath its tokens."""
        return any(piece.values for piece in self.pieces)


class Section(NamedTuple):
    """What is shown of an output row: of a bin its sequences, else one row."""

    title: str
    parts: list[Part]


class Shown(NamedTuple):
    """What is shown of a batch."""

    sections: list[Section]
    fields: list[str]
    """The outputs whose values stand beneath tokens."""
    notes: list[str]
    """What is not shown, and what could not be."""
    is_text: bool
    """Whether there is a tokenizer."""


def shown(batch: Batch, rows: Any, tokenizer: Any, fields: Any, fold: int | None) -> Shown:
    """Find what is shown of a batch."""
    return _Rows(batch, Decoder(tokenizer), fields, fold).shown(rows)


class _Rows:
    """The rows of a batch, of which some are shown."""

    def __init__(self, batch: Batch, decoder: Decoder, fields: Any, fold: int | None) -> None:
        self.batch = batch
        self.decoder = decoder
        self.plan = batch.plan
        self.places = RowPlaces.of(self.plan)
        self.lens = self.places.prompt_lens + self.places.response_lens
        self.fold = fold
        self.per_token, self.per_row = _checked_fields(batch, fields)
        self.leading = {
            "sequence": len(self.plan.leading_shape(of_sequence=True)),
            "response": len(self.plan.leading_shape(of_sequence=False)),
            "stream": 1,
        }
        """How many dimensions of outputs are positions, by alignment."""
        self.found: list[tuple[Piece, dict[str, Integers]]] = []
        """Pieces whose tokens are not read yet, with the places of what belongs to them."""

    def shown(self, rows: Any) -> Shown:
        """Return what is shown, with all that it needs of the outputs."""
        chosen = self.chosen(rows)
        self.find_kinds(chosen)
        sections = list(self.sections(set(chosen)))
        self.read()
        hidden = self.plan.num_rows - len(chosen) if rows is None else 0
        notes = [f"and {counted(hidden, 'more row')}"] if hidden > 0 else []
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
            if self.plan.has_bins:  # in the order in which they lie
                first = np.array(list(dict.fromkeys(self.places.written.rows.tolist())), np.int64)
            return [int(row) for row in first[:SHOWN_ROWS]]
        if isinstance(rows, slice):
            return list(range(count)[rows])
        if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
            return [checked_index("rows", rows, count)]
        return [checked_index(f"rows[{i}]", row, count) for i, row in enumerate(rows)]

    def find_kinds(self, rows: list[int]) -> None:
        """Find where the values of rows' response tokens lie, and which of them train."""
        lens = self.places.response_lens[rows]
        offsets = offsets_of(lens)
        tokens = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lens)
        places = self.places.responses.places_of(np.repeat(np.array(rows, np.int64), lens), tokens)
        has_value = places >= 0
        trains = np.zeros(len(places), np.bool_)
        if has_value.any():
            mask = flattened(trained_mask(self.batch), self.leading["response"])
            trains[has_value] = on_host(taken(mask, places[has_value])) != 0
        bounds = list(zip(rows, pairwise(offsets.tolist()), strict=True))
        self.response_places = {row: places[slice(*ends)] for row, ends in bounds}
        self.trains = {row: trains[slice(*ends)] for row, ends in bounds}

    def sections(self, chosen: set[int]) -> Iterator[Section]:
        """Give the output rows that have a row to show, in their order."""
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
        """Say what is in a bin."""
        tokens, width = sum(span[2] for span in spans), self.places.width
        sequences = counted(len(spans), "sequence")
        return f"bin {output_row}: {sequences}, {tokens:,} of {width:,} positions"

    def parts(self, spans: list[Span], begin: int, end: int, chosen: set[int]) -> list[Part]:
        """Return what lies in an output row from one place to another, with the padding."""
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
                words = f"{counted(len(inside), 'sequence')}, {counted(tokens, 'token')}"
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
        """Say which row it is, how long it is, and what it has one value of."""
        batch, places = self.batch, self.places
        trained = int(np.count_nonzero(self.trains[row]))
        words = [f"row {row}"]
        if stop - start < self.lens[row]:
            words.append(f"tokens {start:,} to {stop - 1:,} of {self.lens[row]:,}")
        if batch.is_padding is not None and batch.is_padding[row]:
            words.append("a padding row")
        words.append(f"prompt {places.prompt_lens[row]:,}")
        words.append(f"response {places.response_lens[row]:,}")
        words.append(f"{trained:,} trained")
        for key in self.per_row:
            value = " ".join(readable(_written(batch[key][row])).split())
            words.append(f"{key} {shortened(value, MOST_VALUE)}")
        return ", ".join(word.replace(" ", NO_BREAK) for word in words)

    def pieces(self, row: int, start: int, length: int, place: int) -> Iterator[Piece]:
        """Give the tokens of a row from `start` on, in runs of one kind, long ones folded."""
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
        """Return tokens of a row, which are read later: all at once."""
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
            values = np.split(self.values(key, self.batch.spec.table[key].align), bounds)
            for (piece, _), of_piece in zip(self.found, values, strict=True):
                piece.values.append(list(map(_written, of_piece)))

    def values(self, key: str, align: str) -> np.ndarray:
        """Return the values of all pieces' tokens in an output, None where they have none."""
        places = np.concatenate([places[align] for _, places in self.found])
        has_value = places >= 0
        flat = flattened(self.batch[key], self.leading[align])
        if has_value.all():
            return on_host(taken(flat, places))
        values = np.full(len(places), None, object)
        found = on_host(taken(flat, places[has_value]))
        for index, value in zip(np.flatnonzero(has_value).tolist(), found, strict=True):
            values[index] = value
        return values


def _checked_fields(batch: Batch, fields: Any) -> tuple[list[str], list[str]]:
    """Return which outputs have values per token, and which one per row."""
    keys = [fields] if isinstance(fields, str) else list(fields)
    table = batch.spec.table
    known = [
        output.key
        for output in table
        if output.align in ("sequence", "response", "stream", *PER_ROW)
    ]
    for key in keys:
        if key not in known:
            raise ValueError(
                f"fields has {key!r}, which has no value per token or row; pass some of "
                f"{', '.join(map(repr, known))}"
            )
    per_row = [key for key in keys if table[key].align in PER_ROW]
    return [key for key in keys if key not in per_row], per_row


def _written(value: Any) -> str:
    """Write a value in few characters; nothing for None."""
    if value is None:
        return ""
    value = on_host(value) if hasattr(value, "dtype") else value
    if isinstance(value, np.ndarray) and value.ndim > 0:
        return ",".join(_written(one) for one in value)
    number = value.item() if hasattr(value, "item") else value
    if isinstance(number, float):
        return f"{number:.3g}"
    return str(int(number)) if isinstance(number, bool) else str(number)
