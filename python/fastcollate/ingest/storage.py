"""Rows that are stored as they arrive, a few large arrays for many of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fastcollate._fastcollate import Stretches

FIRST_CHUNK, LARGEST_CHUNK = 1 << 12, 1 << 22
"""Tokens of the first chunk, and of the largest: each is twice as large as the one before."""


@dataclass
class _Chunk:
    values: np.ndarray
    starts: list[int] = field(default_factory=list)
    lens: list[int] = field(default_factory=list)
    end: int = 0


class RowStore:
    """Rows of numbers, in chunks that never move and are used again.

    A row lies in one chunk. Rows of another dtype or other trailing dimensions begin a new chunk.
    """

    # Arrays of their own for all rows of a batch take twice as long in the end: 10 ms instead of 5
    # for 7,500 rows, since they lie anywhere and are freed one by one.

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        self._used = 0
        self._rows = 0

    def append(self, row: np.ndarray) -> None:
        """Store a copy of a row, (tokens, *trailing)."""
        chunk = self._chunk_for(row)
        end = chunk.end + len(row)
        if len(row):  # else its dimensions may be others
            chunk.values[chunk.end : end] = row
        chunk.starts.append(chunk.end)
        chunk.lens.append(len(row))
        chunk.end = end
        self._rows += 1

    def rows(self) -> Stretches:
        """Return all rows, as the core reads them: views, until the store is cleared."""
        return Stretches(
            [
                (chunk.values, np.array(chunk.starts, np.int64), np.array(chunk.lens, np.int64))
                for chunk in self._chunks[: self._used]
            ]
        )

    def clear(self) -> None:
        """Forget all rows, but keep the memory for the next ones."""
        self._chunks = [_Chunk(chunk.values) for chunk in self._chunks]
        self._used = self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(chunk.end for chunk in self._chunks)

    def _chunk_for(self, row: np.ndarray) -> _Chunk:
        if self._used:
            chunk = self._chunks[self._used - 1]
            # A row without tokens goes anywhere.
            if len(row) == 0 or _fits(row, chunk):
                return chunk
        # What the last batch left may not fit the rows of this one.
        while self._used < len(self._chunks) and not _fits(row, self._chunks[self._used]):
            del self._chunks[self._used]
        if self._used == len(self._chunks):
            last = len(self._chunks[-1].values) if self._chunks else 0
            tokens = max(FIRST_CHUNK, min(2 * last, LARGEST_CHUNK), len(row))
            if len(row) == 0:
                tokens = 0  # it does not say what rows with tokens will be like
            self._chunks.append(_Chunk(np.empty((tokens, *row.shape[1:]), row.dtype)))
        self._used += 1
        return self._chunks[self._used - 1]


def _fits(row: np.ndarray, chunk: _Chunk) -> bool:
    return (
        chunk.end + len(row) <= len(chunk.values)
        and chunk.values.dtype == row.dtype
        and chunk.values.shape[1:] == row.shape[1:]
    )
