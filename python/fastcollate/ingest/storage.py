"""Rows that are stored as they arrive, in a few large pieces of memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from struct import pack
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcollate._fastcollate import Stretches

FIRST_CHUNK, LARGEST_CHUNK = 1 << 16, 1 << 24
"""Bytes of the first chunk, and of the largest: each is twice as large as the one before."""

_Form = tuple[np.dtype[Any], tuple[int, ...]]
"""The dtype of an array, and the shape of a token's values."""


class _Area(NamedTuple):
    """Memory in which rows have arrays of the same forms."""

    memory: memoryview
    forms: list[_Form]
    kind: Any


class StoredRow(NamedTuple):
    """The arrays of one row."""

    area: _Area
    """One object for rows that follow each other, as a rule."""
    places: bytes
    """Where each array starts in the memory, counted in its tokens, and how many it has: int64
    (arrays, 2)."""


@dataclass(eq=False)
class _Chunk:
    area: _Area
    end: int = 0


class RowStore:
    """Memory for the arrays of rows, in chunks that never move.

    Threads, signal handlers and finalizers may put rows at the same time, and none waits: who puts
    one takes a chunk out of the list of open ones. Who is interrupted leaves nothing behind but,
    until the memory is freed, a chunk that is used no more.
    """

    # Arrays of their own for all rows of a batch take twice as long in the end: 10 ms instead of 5
    # for 7,500 rows, since they lie anywhere and are freed one by one.

    def __init__(self) -> None:
        self._open: list[_Chunk] = []
        self._full: list[_Chunk] = []
        self._largest = FIRST_CHUNK // 2

    def put(self, arrays: Sequence[NDArray[Any]], kind: object) -> StoredRow:
        """Store copies of a row's arrays, each C-contiguous, (tokens, *trailing).

        Rows of the same `kind`, one object, have the same arrays.
        """
        chunk, parts, places = self._chunk_for(arrays)
        joined = b"".join(parts)  # copied at once: array by array takes three times as long
        end = chunk.end + len(joined)
        area = chunk.area
        area.memory[chunk.end : end] = joined
        forms = _forms_of(arrays, area.forms if area.kind is kind else [])
        if forms != area.forms:
            area = _Area(area.memory, forms, kind)
        chunk.area, chunk.end = area, end
        self._open.append(chunk)
        return StoredRow(area, pack(f"{len(places)}q", *places))

    def take_over(self, other: RowStore) -> None:
        """Write over the rows of another store, but not where somebody is putting one now."""
        for chunks in (other._full, other._open):
            while (chunk := _popped(chunks)) is not None:
                chunk.end = 0
                self._open.append(chunk)
                self._largest = max(self._largest, len(chunk.area.memory))

    def _chunk_for(self, arrays: Sequence[NDArray[Any]]) -> tuple[_Chunk, list[Any], list[int]]:
        """Take a chunk, and say what to write to its end and where in it the arrays are then."""
        while (chunk := _popped(self._open)) is not None:
            parts, places, end = _laid_out(arrays, chunk.end)
            if end <= len(chunk.area.memory):
                return chunk, parts, places
            self._full.append(chunk)
        parts, places, end = _laid_out(arrays, 0)
        size = max(min(2 * self._largest, LARGEST_CHUNK), end)
        chunk = _Chunk(_Area(np.empty(size, np.uint8).data, [], None))
        self._largest = max(self._largest, min(size, LARGEST_CHUNK))
        return chunk, parts, places


def _forms_of(arrays: Sequence[NDArray[Any]], last: list[_Form]) -> list[_Form]:
    """Return the forms of arrays. One without tokens has the last form: its own says nothing."""
    forms = [(array.dtype, array.shape[1:]) for array in arrays]
    if last:
        for index, array in enumerate(arrays):
            if array.shape == (0,):
                forms[index] = last[index]
    return forms


def columns_of(rows: Sequence[StoredRow]) -> list[Stretches]:
    """Return the arrays of one row or more as the core reads them: views of the chunks."""
    areas = np.fromiter((id(row.area) for row in rows), np.int64, len(rows))
    ends = [*(np.flatnonzero(areas[1:] != areas[:-1]) + 1).tolist(), len(rows)]
    places = np.frombuffer(b"".join([row.places for row in rows]), np.int64)
    places = places.reshape(len(rows), -1, 2)
    columns: list[list[Any]] = [[] for _ in rows[0].area.forms]
    for begin, end in zip([0, *ends], ends, strict=False):
        memory, forms, _ = rows[begin].area
        for column, parts in enumerate(columns):
            starts, lens = places[begin:end, column].T
            parts.append((_values(memory, forms[column], int(lens.max())), starts, lens))
    return list(map(Stretches, columns))


def _values(memory: memoryview, form: _Form, longest: int) -> NDArray[Any]:
    """View a chunk as tokens of one form."""
    dtype, trailing = form
    size = dtype.itemsize * math.prod(trailing)
    # Rows without tokens say nothing of their values, nor may an array of them.
    tokens = longest if size == 0 or longest == 0 else len(memory) // size
    return np.ndarray((tokens, *trailing), dtype, memory)


def _laid_out(arrays: Sequence[NDArray[Any]], end: int) -> tuple[list[Any], list[int], int]:
    """Return what to write from `end` on, where arrays lie then and how long they are, and the end.

    An array begins at a multiple of its tokens' size.
    """
    parts: list[Any] = []
    places: list[int] = []
    for array in arrays:
        tokens, start = len(array), 0
        if array.nbytes > 0:
            size = array.nbytes // tokens
            start = -(-end // size)
            if (gap := start * size - end) > 0:
                parts.append(bytes(gap))
            parts.append(array)
            end = start * size + array.nbytes
        places += (start, tokens)
    return parts, places, end


def _popped(chunks: list[_Chunk]) -> _Chunk | None:
    """Take the last one, if there is one: another thread may be faster."""
    try:
        return chunks.pop()
    except IndexError:
        return None
