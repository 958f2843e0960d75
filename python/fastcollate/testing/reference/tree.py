"""The tree layout, by a trie of the rows, token by token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fastcollate.testing.reference.grids import Grid, Grids, Place, end_to_end, grids
from fastcollate.testing.reference.packed import positions
from fastcollate.testing.reference.sharing import PrefixTrie


class TreeBatch(NamedTuple):
    """The positions of a trie's rows in bins."""

    bins: list[list[int]]
    """The rows of each."""
    paths: list[list[Place]]
    """The place of each token of each row, in the order of the input."""
    tokens: Grid
    """The same, with shared tokens only in the first of their rows."""
    answers: Grid
    streams: Grid
    """Of tokens, if each row were by itself."""
    order: Sequence[int]
    """All rows, sorted by their tokens."""

    def held(self, is_missing: list[list[bool]]) -> Grid:
        """Return the places of tokens, each in the first of its rows that does not miss it.

        The last token of a row is that of another row, if this one continues.
        """
        places: list[list[Place | None]] = [[None] * count for count in self.tokens.lens]
        seen = set()
        for is_last in (False, True):
            for row in self.order:
                for token, to in enumerate(self.paths[row]):
                    if (token + 1 == self.tokens.lens[row]) is not is_last:
                        continue
                    if not is_missing[row][token] and to not in seen:
                        places[row][token] = to
                        seen.add(to)
        return Grid(self.tokens.lens, places, self.tokens.shape)


def tree_batch_of(
    trie: PrefixTrie,
    response_lens: list[int],
    bins: Sequence[Sequence[int]] | None = None,
    *,
    multiple_of: int = 1,
    pad_to_multiple_of: int = 1,
    pad_to: int | None = None,
) -> TreeBatch:
    """Lay the rows of a trie out.

    Parameters
    ----------
    trie
        The rows.
    response_lens
        Response tokens of each row.
    bins
        The rows of each bin, in any order; None for one bin of all.
    multiple_of, pad_to_multiple_of, pad_to
        As `fastcollate.Tree`.
    """
    rows_of_bins = [list(trie.order)] if bins is None else [list(rows) for rows in bins]
    lens = list(map(len, trie.paths))
    paths: list[list[Place]] = [[] for _ in lens]
    written: list[list[Place | None]] = [[None] * count for count in lens]
    width = 0
    for bin_, rows in enumerate(rows_of_bins):
        columns: dict[int, int] = {}
        end = 0
        for position in sorted({position for row in rows for position in trie.paths[row]}):
            if trie.parents[position] < 0:  # the first token of a tree
                end = -(-end // multiple_of) * multiple_of
            columns[position] = end
            end += 1
        width = max(width, -(-end // multiple_of) * multiple_of)
        seen = set()
        for row in sorted(rows, key=trie.order.index):
            paths[row] = [(bin_, columns[position]) for position in trie.paths[row]]
            for token, to in enumerate(paths[row]):
                if to not in seen:
                    written[row][token] = to
                    seen.add(to)
    both = math.lcm(pad_to_multiple_of, multiple_of or 1) if pad_to_multiple_of > 1 else 1
    rounded = -(-width // both) * both
    shape = (len(rows_of_bins), rounded if pad_to is None else pad_to)
    tokens = Grid(lens, written, shape)
    answers, streams = end_to_end(response_lens), end_to_end(lens)
    return TreeBatch(rows_of_bins, paths, tokens, answers, streams, trie.order)


def tree_grids(batch: TreeBatch) -> Grids:
    """Find the places of all tokens, of response tokens, and whether a token is before each."""
    return Grids(batch.tokens, batch.answers, grids(batch.streams, batch.streams).before)


def tree_outputs(
    batch: TreeBatch, rows: Sequence[Sequence[Any]], position_ids: str | None
) -> dict[str, Any]:
    """Build the outputs for positions of rows and for predictors of their response tokens."""
    bins, width = batch.tokens.shape
    ends = np.tile(np.arange(1, width + 1, dtype=np.int32), (bins, 1))
    for path in batch.paths:
        for to in path:
            ends[to] = max(ends[to], path[-1][1] + 1)
    targets, predictors, offsets, row_bins = [], [], [0], [0] * len(rows)
    for bin_, of_bin in enumerate(batch.bins):
        for row in of_bin:
            row_bins[row] = bin_
    for tokens, path, count in zip(rows, batch.paths, batch.answers.lens, strict=True):
        for token in range(len(tokens) - count, len(tokens)):
            targets.append(tokens[token])
            before = path[token - 1] if token > 0 else (0, 0)
            predictors.append(before[0] * width + before[1])
        offsets.append(len(targets))
    depths = [list(range(count)) for count in batch.tokens.lens]
    return {
        "position_ids": positions(batch.tokens, depths, position_ids or "zero"),
        "subtree_end": ends,
        "targets": np.array(targets, np.int64),
        "predictors": np.array(predictors, np.int64),
        "response_offsets": np.array(offsets, np.int64),
        "row_bins": np.array(row_bins, np.int64),
    }


def stream_offsets(batch: TreeBatch) -> dict[str, Any]:
    """Return the row offsets of fields of whole sequences."""
    return {"sequence_offsets": np.cumsum([0, *batch.streams.lens], dtype=np.int64)}
