"""A shard: a rank's rows of a mini-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fastcollate._fastcollate import ShardSpec, shared_defect
from fastcollate.common.arguments import check_count, check_int, suggests_names, tally
from fastcollate.common.arrays import describe, even_sizes
from fastcollate.common.caching import cached_property
from fastcollate.plan.layout import Layout
from fastcollate.plan.layouts import Packed, Tree
from fastcollate.plan.tables import Table, offsets_defect
from fastcollate.rows.lengths import Integers

Widths = tuple[int, int, int]


@suggests_names
@dataclass(frozen=True, eq=False)
class Shard(Table):
    """The rows of one data-parallel rank in one mini-batch; small and picklable.

    Two shards are equal if all their values are.

    Parameters
    ----------
    rows
        Rows of the step in output order, int64 (n,); -1 for a synthetic row.
    is_padding
        True for padding rows, bool (n,).
    num_rows
        Number of rows of the whole step, to detect a different batch.
    widths
        Tokens of the longest prompt, response and row of the whole step, equal on all ranks. If
        only total row lengths were known, the first two are 0, or belong to synthetic rows.
    first_pad
        Index of the shard's first padding row among all padding rows of the mini-batch: its uid is
        ``f"pad{first_pad}"``, and the following rows count on.
    lengths
        Planned tokens of each row, int64 (n,), to detect different rows.
    bin_offsets
        Offsets of bins in the rows, int64 (bins + 1,), if rows are packed.
    bin_width
        Width of the step's widest bin in positions, if rows are packed.
    layout
        The layout that the step was planned with, if any; one with bins if rows are packed.
    shared
        If bins are trees, the number of tokens that each row shares with the one before it in its
        bin, int64 (n,).
    is_narrow
        True if batches of the shard are as wide as its own rows (see :meth:`narrow`).
    prompt_lengths
        Planned prompt tokens of each row, int64 (n,); None if only totals were known.

    Raises
    ------
    TypeError, ValueError
        Rows are not integers of -1 or more; a synthetic row is not padding; or the number of flags
        is not that of rows.
    """

    _what: ClassVar[str] = "shard"

    rows: Integers
    is_padding: NDArray[np.bool_]
    num_rows: int
    widths: Widths | None = None
    first_pad: int = 0
    lengths: Integers | None = None
    bin_offsets: Integers | None = None
    bin_width: int = 0
    layout: Layout | None = None
    shared: Integers | None = None
    is_narrow: bool = False
    prompt_lengths: Integers | None = None

    def _check(self) -> None:
        rows, is_padding = self.rows, self.is_padding
        if rows.ndim != 1 or rows.shape != is_padding.shape:
            raise ValueError(
                f"rows has shape {rows.shape} and is_padding {is_padding.shape}; "
                "pass one flag per row"
            )
        for name in ("lengths", "prompt_lengths"):
            lens = getattr(self, name)
            if lens is not None and lens.shape != rows.shape:
                raise ValueError(
                    f"{name} has shape {lens.shape} and rows {rows.shape}; pass one length per row"
                )
        wrong = rows < np.where(is_padding, -1, 0)
        if wrong.any():
            slot = int(np.argmax(wrong))
            raise ValueError(
                f"rows[{slot}] is {rows[slot]} and is_padding[{slot}] is {is_padding[slot]}; pass "
                "rows of 0 or more, or -1 for a padding row"
            )
        for name in ("num_rows", "first_pad", "bin_width"):
            check_count(name, getattr(self, name), "a number", least=0)
        if self.widths is not None:
            widths = tuple(check_int("widths", width, "three lengths") for width in self.widths)
            if len(widths) != 3 or min(widths) < 0:
                raise ValueError(f"widths is {self.widths}; pass three lengths of 0 or more")
            object.__setattr__(self, "widths", widths)
        Table._check(self)

    def _defect(self) -> str | None:
        bins, reason = self.bin_offsets, None
        if bins is not None:
            reason = offsets_defect("bin_offsets", bins, len(self), "bins", "rows")
        reason = reason or layout_defect(self.layout, bins, self.shared)
        if reason is None and self.shared is not None and bins is not None:
            lengths = np.zeros_like(self.rows) if self.lengths is None else self.lengths
            reason = shared_defect(self.shared, lengths, self.is_padding, bins)
        return reason

    @cached_property
    def spec(self) -> ShardSpec:
        """The compiled form."""
        return ShardSpec(
            self.rows,
            self.is_padding,
            self.num_rows,
            self.widths,
            self.lengths,
            self.prompt_lengths,
            self.bin_offsets,
            self.bin_width,
            self.shared,
            self.is_narrow,
        )

    def narrow(self) -> Shard:
        """Return the shard with batches as wide as its own rows, or bins.

        By default all shards of a step have the same widths. Where ranks need not agree (DDP and
        FSDP), a narrow shard has less padding, unless the layout fixes its widths.

        Returns
        -------
        Shard
            The same rows, for ``build_batch(shard=...)``; its micro-batches are narrow, too.
        """
        return Shard._trusted(**{**self._named(), "is_narrow": True})

    def __len__(self) -> int:
        return len(self.rows)

    def micro_batches(self, count: int | None = None) -> list[Shard]:
        """Divide the rows into micro-batches, each a shard.

        The rows of a micro-batch are consecutive. Loss normalizers still belong to the mini-batch
        (:meth:`Batch.loss_normalizers`), and so do the names of padding rows.

        Parameters
        ----------
        count
            Number of micro-batches of rows, or of bins if packed; their sizes differ by at most
            one. By default one for each bin.

        Returns
        -------
        list of Shard
            The same number on every rank of the mini-batch. By default each is as wide as the step,
            and as wide as its own rows if the shard is narrow (:meth:`narrow`).

        Raises
        ------
        ValueError
            `count` is missing for rows that are not packed, below 1, or above the number of rows or
            bins.
        TypeError
            `count` is not an integer.

        Examples
        --------
        >>> plan = fc.plan_step([5, 6, 7, 8, 9, 3], dp_size=2)
        >>> [micro_batch.rows.tolist() for micro_batch in plan.shard(0, 1).micro_batches(2)]
        [[3, 4], [5]]
        """
        bins = self.bin_offsets
        units = len(self) if bins is None else len(bins) - 1
        if count is None:
            if bins is None:
                raise ValueError(
                    "count is None, but the rows of the shard are not packed in bins; pass a "
                    "number of micro-batches"
                )
            count = units
        count = check_count("count", count, "a number of micro-batches")
        if count > units:
            noun = "row" if bins is None else "bin"
            raise ValueError(
                f"count is {count}, but the shard has {tally(units, noun)}; pass a number of "
                f"micro-batches from 1 to {units:,}"
            )
        sizes = even_sizes(units, count)
        return [
            self._part(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)
        ]

    def _part(self, first: int, end: int) -> Shard:
        """Return the shard of rows, or bins, from `first` up to `end`."""
        bins = self.bin_offsets
        if bins is not None:
            bins = bins[first : end + 1]
            first, end = bins[[0, -1]].tolist()
            bins = bins - first
        per_row = ("rows", "is_padding", "lengths", "prompt_lengths", "shared")
        columns = {name: getattr(self, name) for name in per_row}
        own = {
            **{name: None if of is None else of[first:end] for name, of in columns.items()},
            "first_pad": self.first_pad + int(np.count_nonzero(self.is_padding[:first])),
            "bin_offsets": bins,
        }
        return Shard._trusted(**{**self._named(), **own})

    def __repr__(self) -> str:
        padding = int(np.count_nonzero(self.is_padding))
        bins = self.bin_offsets
        where = "" if bins is None else f" in {tally(len(bins) - 1, 'bin')}"
        return f"Shard: {tally(len(self), 'row')}{where}, of which {padding:,} padding"


def shard_of_rows(rows: Integers, num_rows: int) -> Shard:
    """Return a shard of some rows, without padding."""
    return Shard(rows, np.zeros(len(rows), np.bool_), num_rows)


def join_shards(shards: Sequence[Shard]) -> Shard:
    """Return one shard of the rows of several, which are of one step and have no bins."""
    if len(shards) == 1:
        return shards[0]
    per_row = ("rows", "is_padding", "lengths", "prompt_lengths")
    columns = {name: [getattr(shard, name) for shard in shards] for name in per_row}
    joined = {name: None if of[0] is None else np.concatenate(of) for name, of in columns.items()}
    return Shard._trusted(**{**shards[0]._named(), **joined})


def layout_defect(layout: Any, bins: Integers | None, shared: Any | None) -> str | None:
    """Describe a conflict of a step's layout with its bins and shared tokens, or return None."""
    if layout is not None and not isinstance(layout, Layout):
        return f"layout is {describe(layout)}, but must be None or a layout such as fc.Left()"
    is_tree = isinstance(layout, Tree)
    has_bins = is_tree or (isinstance(layout, Packed) and layout.plan is None)
    for name, value, belongs, layouts in (
        ("bin_offsets", bins, has_bins, "fc.Packed(capacity=...) or fc.Tree(capacity=...)"),
        ("shared", shared, is_tree, "fc.Tree(capacity=...)"),
    ):
        if belongs != (value is not None):
            found = "None" if value is None else "given"
            return (
                f"layout is {layout!r} and {name} is {found}, but {name} belongs to "
                f"layout={layouts} and to no other"
            )
    return None


def check_shard(shard: Any) -> None:
    """Check the argument ``shard``."""
    if not isinstance(shard, Shard):
        raise TypeError(
            f"shard is {describe(shard)}; pass plan.shard(mini_batch, rank) of a plan of "
            "fastcollate.plan_step (shards of fastcollate.ray are for its collate)"
        )


def items_of(values: Sequence[Any], indices: Sequence[int]) -> list[Any]:
    """Return items by index; None for an index of -1."""
    return [None if index < 0 else values[index] for index in indices]


def pad_names(name: str, names: list[Any], shard: Shard | None) -> list[Any]:
    """Return the names of rows, separate ones for padding rows."""
    if shard is None or not shard.is_padding.any():
        return names
    padding = np.flatnonzero(shard.is_padding).tolist()
    for pad, row in enumerate(padding, start=shard.first_pad):
        names[row] = True if name == "is_last_step" else f"pad{pad}"
    return names
