"""The bin plan: the sequences of each bin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from fastcollate._fastcollate import Bins, lists_of
from fastcollate.common.arguments import tally
from fastcollate.common.arrays import concatenate, is_array, offsets_of
from fastcollate.common.caching import cached_property
from fastcollate.common.text import table_of
from fastcollate.plan.tables import Table
from fastcollate.rows.lengths import Integers

NO_LIMIT = (1 << 63) - 1
"""The capacity of bins without a limit."""


@dataclass(frozen=True, eq=False)
class BinPlan(Table):
    """The sequences, or pieces of them, in each bin, in order.

    Made by :func:`fastcollate.planning.pack`. It holds no tokens, and can be pickled. A *piece* is
    a span of a sequence that lies in one bin: the whole sequence, unless it was split. Every token
    of every sequence lies in exactly one piece, and an empty sequence has a piece, too. Two plans
    are equal if all their values are.

    Parameters
    ----------
    offsets
        Offsets of bins in pieces, with the end of the last, int64 (bins + 1,).
    indices
        The sequence of each piece, int64 (pieces,).
    starts
        Start of each piece in its sequence, int64 (pieces,).
    lengths
        The tokens of each piece, int64 (pieces,).
    num_sequences
        Number of sequences.
    capacity
        Planned maximum tokens of a bin. Bins of larger sequences or groups exceed it.
    multiple_of
        The tokens of each piece, rounded up to a multiple of this, count against the capacity.

    Raises
    ------
    ValueError
        The tables are inconsistent: a token lies in no piece or in two, or offsets do not fit.
    """

    _what: ClassVar[str] = "bin plan"
    _shares: ClassVar[bool] = False
    _noun: ClassVar[str] = "sequence"
    _prefix: ClassVar[str] = "pack"

    offsets: Integers
    indices: Integers
    starts: Integers
    lengths: Integers
    num_sequences: int
    capacity: int
    multiple_of: int = 1

    def _defect(self) -> str | None:
        for name, least in (("num_sequences", 0), ("capacity", 1), ("multiple_of", 1)):
            if getattr(self, name) < least:
                return f"{name} is {getattr(self, name)}, but must be {least} or more"
        shapes = [array.shape for array in (self.indices, self.starts, self.lengths)]
        if self.indices.ndim != 1 or len(set(shapes)) > 1:
            return (
                "indices, starts and lengths must be of one shape (pieces,), but have "
                f"{shapes[0]}, {shapes[1]} and {shapes[2]}"
            )
        if self.offsets.ndim != 1:
            return f"offsets has shape {self.offsets.shape}, but must be of shape (bins + 1,)"
        try:
            self._core  # noqa: B018
        except ValueError as error:
            return str(error)
        return None

    @cached_property
    def _core(self) -> Bins:
        """The compiled form."""
        tables = (self.offsets, self.indices, self.starts, self.lengths)
        return Bins(*tables, self.num_sequences, self.multiple_of, self._shares)

    @property
    def num_bins(self) -> int:
        """Number of bins."""
        return len(self.offsets) - 1

    @property
    def bins(self) -> list[list[int]]:
        """The sequences of each bin, in order; a split sequence is in several."""
        return lists_of(self.offsets, self.indices)

    def take(self, rows: Sequence[Any]) -> list[Any]:
        """Join the rows of each bin, in order.

        Of a split sequence, each bin has its part; of a tree, shared tokens come once.

        Parameters
        ----------
        rows
            One per sequence, as long as it is: token ids or a field, all as lists, as arrays or as
            tensors.

        Returns
        -------
        list
            One list, array or tensor per bin. Lists hold the objects of `rows`: no number is made
            anew.

        Raises
        ------
        ValueError
            The number of rows differs from the number of sequences, or a row's length from its own.

        Examples
        --------
        >>> plan = fc.planning.pack([1, 3, 2], fc.Packed(4))
        >>> plan.take([[5], [6, 7, 8], [9, 10]])
        [[6, 7, 8, 5], [9, 10]]
        """
        lengths, expected = np.fromiter(map(len, rows), np.int64), self.sequence_lengths
        if len(lengths) != len(expected):
            raise ValueError(
                f"rows has {tally(len(lengths), 'row')}, but the plan has "
                f"{tally(len(expected), self._noun)}; pass one row for each"
            )
        if (differ := lengths != expected).any():
            row = int(differ.argmax())
            raise ValueError(
                f"rows[{row}] has {tally(lengths[row], 'item')}, but {self._noun} {row} of the "
                f"plan has {tally(expected[row], 'token')}; pass one item for each"
            )
        nothing = [rows[0][:0]] if len(rows) > 0 and is_array(rows[0]) else []
        join = concatenate if nothing else _joined
        if np.array_equal(self.lengths, expected[self.indices]):
            parts = [rows[row] for row in self.indices.tolist()]
        else:
            ends = (self.starts + self.lengths).tolist()
            spans = zip(self.indices.tolist(), self.starts.tolist(), ends, strict=True)
            parts = [rows[row][start:end] for row, start, end in spans]
        return [join(parts[start:end] or nothing) for start, end in pairwise(self.offsets.tolist())]

    @property
    def loads(self) -> Integers:
        """Tokens of each bin, rounded up per piece, int64 (bins,)."""
        multiple = self.multiple_of
        return self._per_bin(
            -(-self.lengths // multiple) * multiple if multiple > 1 else self.lengths
        )

    @property
    def sequence_lengths(self) -> Integers:
        """Tokens of each sequence, int64 (sequences,)."""
        ends = self.starts + self.lengths
        lengths = np.zeros(self.num_sequences, np.int64)
        if self.is_split:
            np.maximum.at(lengths, self.indices, ends)
        else:
            lengths[self.indices] = ends
        return lengths

    @property
    def efficiency(self) -> float:
        """Tokens over the capacity of all bins; 1.0 if there are no bins."""
        room = self.num_bins * self.capacity
        return int(self.lengths.sum()) / room if room > 0 else 1.0

    @property
    def is_split(self) -> bool:
        """True if a sequence is split into several pieces."""
        return len(self.indices) > self.num_sequences

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics to log: counts of bins, sequences and tokens, and loads of bins."""
        loads, counts = self.loads, np.diff(self.offsets)
        metrics = {
            "num_bins": self.num_bins,
            f"num_{self._noun}s": self.num_sequences,
            "num_tokens": self.lengths.sum(),
            "efficiency": self.efficiency,
            "max_load": loads.max(initial=0),
            "min_load": loads.min() if len(loads) else 0,
            f"max_{self._noun}s": counts.max(initial=0),
            "bins_over_capacity": np.count_nonzero(loads > self.capacity),
        }
        return {f"{self._prefix}/{name}": float(value) for name, value in metrics.items()}

    def describe(self) -> str:
        """Return a table of minimum, mean and maximum per bin."""
        rows = {
            "tokens": self._per_bin(self.lengths),
            "with padding": self.loads,
            f"{self._noun}s": np.diff(self.offsets),
        }
        if self.multiple_of == 1:
            del rows["with padding"]
        cells: list[tuple[str, ...]] = [("per bin", "least", "mean", "most")]
        for name, values in rows.items():
            if len(values) > 0:
                least, most = int(values.min()), int(values.max())
                cells.append((name, f"{least:,}", f"{values.mean():,.1f}", f"{most:,}"))
        return f"{self!r}\n{table_of(cells)}"

    def __repr__(self) -> str:
        items, bins = tally(self.num_sequences, self._noun), tally(self.num_bins, "bin")
        return (
            f"{type(self).__name__}: {items} in {bins} of {tally(self.capacity, 'token')}, "
            f"{self.efficiency:.1%} full"
        )

    def _repr_html_(self) -> str:
        from fastcollate.inspect.markup import text_page

        return text_page(self.describe())

    def _per_bin(self, values: Integers) -> Integers:
        """Sum values of pieces over each bin."""
        sums: Integers = np.diff(offsets_of(values)[self.offsets])
        return sums


def _joined(parts: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the items of several lists in one."""
    items: list[Any] = []
    for part in parts:
        items += part
    return items
