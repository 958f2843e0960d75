"""Bins of trees: which rows share a bin, and which tokens there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastcollate import _fastcollate
from fastcollate.arguments import checked_count, checked_int, counted
from fastcollate.arrays import offsets_of
from fastcollate.plan.costs import Costs
from fastcollate.plan.forecast import Forecast, Sync, forecast_tree
from fastcollate.plan.lengths import Integers, lengths_defect
from fastcollate.plan.tables import (
    Table,
    check_names,
    contradiction,
    listed_integers,
    not_valid,
    offsets_defect,
)

if TYPE_CHECKING:
    from fastcollate.plan.tree_plan import TreePlan


@dataclass(frozen=True, eq=False)
class TreeBins(Table):
    """Which rows lie in which bin, and how many tokens each has in common with the one before it.

    :meth:`fastcollate.planning.TreePlan.pack` makes it. There is no token in it; it can be pickled,
    and written as JSON by ``to_dict``. A row writes those of its tokens that it does not share, so
    a bin holds each token once that its rows have in common. Two are equal if all their values are.

    Parameters
    ----------
    offsets
        Where bins begin among the rows, and where the last ends, int64 (bins + 1,).
    rows
        The rows of all bins, those of each in the order of their tokens, int64 (rows,).
    shared
        How many tokens each of them has in common with the one before it in its bin, int64 (rows,);
        0 for the first.
    lengths
        Tokens of each row, in the order of the input, int64 (rows,).
    capacity
        How many tokens a bin was to hold. One that was given something larger has more.
    multiple_of
        What the place of each tree in a bin is rounded up to.

    Raises
    ------
    ValueError
        If the tables are none: a row is not in exactly one bin, or shares more than it can.
    """

    offsets: Integers
    rows: Integers
    shared: Integers
    lengths: Integers
    capacity: int
    multiple_of: int = 1

    def __post_init__(self) -> None:
        try:
            for name in ("offsets", "rows", "shared", "lengths"):
                self._set_array(name, np.int64)
            for name, bits in (("capacity", 64), ("multiple_of", 32)):
                number = checked_int(name, getattr(self, name), "a number", bits=bits)
                object.__setattr__(self, name, number)
        except (TypeError, ValueError, OverflowError) as error:
            raise not_valid("plan of trees in bins", error) from error
        if (reason := self._defect()) is not None:
            raise contradiction("plan of trees in bins", reason)

    def _defect(self) -> str | None:
        """Say what is wrong with the tables."""
        for name in ("capacity", "multiple_of"):
            if getattr(self, name) < 1:
                return f"{name} is {getattr(self, name)}, but must be 1 or more"
        for name in ("offsets", "rows", "shared", "lengths"):
            if (array := getattr(self, name)).ndim != 1:
                return f"{name} has shape {array.shape}, but must have one dimension"
        if (reason := lengths_defect("lengths", self.lengths)) is not None:
            return reason
        offsets = self.offsets
        reason = offsets_defect("offsets", offsets, len(self.rows), "bins", "rows")
        if reason is not None:
            return reason
        defect: str | None = _fastcollate.tree_defect(self.rows, self.shared, self.lengths)
        firsts = self.shared[offsets[:-1]]
        if defect is None and firsts.any():
            bin_ = int(np.flatnonzero(firsts)[0])
            place = f"shared[{offsets[bin_]}]"
            return f"{place} is {firsts[bin_]}, but must be 0 for the first row of bin {bin_}"
        return defect

    @property
    def num_bins(self) -> int:
        """Number of bins."""
        return len(self.offsets) - 1

    @property
    def bins(self) -> list[list[int]]:
        """The rows of each bin, in the order of their tokens."""
        rows = self.rows.tolist()
        return [rows[start:end] for start, end in pairwise(self.offsets.tolist())]

    @property
    def tokens(self) -> Integers:
        """Tokens of each bin, those that its rows have in common counted once, int64 (bins,)."""
        return self._sums(self._added, self.offsets)

    @property
    def loads(self) -> Integers:
        """The same with each tree rounded up, int64 (bins,)."""
        starts = np.flatnonzero(self.shared == 0)
        trees = self._sums(self._added, np.append(starts, len(self.rows)))
        places = -(-trees // self.multiple_of) * self.multiple_of
        return self._sums(places, np.searchsorted(starts, self.offsets))

    def costs(self, costs: Costs) -> NDArray[np.float64]:
        """Return what each bin costs, float64 (bins,), without ``per_bin``: its new tokens."""
        new = costs.of(self.lengths[self.rows]) - costs.of(self.shared) + costs.per_sequence
        sums: NDArray[np.float64] = np.add.reduceat(new, self.offsets[:-1])
        return sums

    def of_ranks(self, dp_size: int, *, shard_by: Costs) -> list[list[int]]:
        """Give each rank the same number of bins, of about the same cost.

        By largest differencing, or the costliest first with exchanges then: the one whose slowest
        rank is faster, and the second where both are as slow.

        Parameters
        ----------
        dp_size
            Number of ranks, which divides that of bins: pack with ``bins_multiple_of=dp_size``.
        shard_by
            What bins cost.

        Returns
        -------
        list[list[int]]
            The bins of each rank, the costliest first, of equal ones the first.

        Raises
        ------
        ValueError
            A `dp_size` that does not divide the number of bins.
        """
        dp_size = checked_count("dp_size", dp_size, "a number of ranks")
        if self.num_bins % dp_size != 0:
            raise ValueError(
                f"dp_size is {dp_size}, which does not divide {counted(self.num_bins, 'bin')}; "
                "pass bins_multiple_of=dp_size to TreePlan.pack"
            )
        bins: list[int] = _fastcollate.deal_bins(self.costs(shard_by), dp_size).tolist()
        each = len(bins) // dp_size
        return [bins[rank * each : (rank + 1) * each] for rank in range(dp_size)]

    def forecast(
        self,
        costs: Costs,
        dp_size: int,
        sync: Sync = "step",
        *,
        tree: TreePlan | None = None,
    ) -> Forecast:
        """Predict how long ranks compute these bins as one mini-batch, and how long they wait.

        Parameters
        ----------
        costs, sync
            As :meth:`StepPlan.forecast`.
        dp_size
            Number of ranks, to which bins go by :meth:`of_ranks`.
        tree
            The tree that was packed. With it, tokens are counted that several bins hold, and the
            bound is that of the whole tree.

        Returns
        -------
        Forecast

        Raises
        ------
        TypeError, ValueError
            What are no costs; an unknown `sync`; a `dp_size` that does not divide the number of
            bins.
        """
        return forecast_tree(self, costs, dp_size, sync, tree)

    @property
    def efficiency(self) -> float:
        """Tokens over what all bins could hold; 1.0 if there are no bins."""
        room = self.num_bins * self.capacity
        return int(self._added.sum()) / room if room > 0 else 1.0

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers to log: of bins, rows and tokens, and how full the bins are."""
        loads, counts = self.loads, np.diff(self.offsets)
        return {
            "tree/num_bins": float(self.num_bins),
            "tree/num_rows": float(len(self.rows)),
            "tree/num_tokens": float(self._added.sum()),
            "tree/efficiency": self.efficiency,
            "tree/max_load": float(loads.max(initial=0)),
            "tree/min_load": float(loads.min()) if len(loads) else 0.0,
            "tree/max_rows": float(counts.max(initial=0)),
            "tree/bins_over_capacity": float(np.count_nonzero(loads > self.capacity)),
        }

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> TreeBins:
        """Return the bins of such lists and numbers.

        Raises
        ------
        ValueError
            If they are none.
        """
        what = "plan of trees in bins"
        check_names(cls, what, tables)
        return cls(**{name: listed_integers(what, name, value) for name, value in tables.items()})

    def __repr__(self) -> str:
        rows, bins = counted(len(self.rows), "row"), counted(self.num_bins, "bin")
        return (
            f"TreeBins: {rows} in {bins} of {counted(self.capacity, 'token')}, "
            f"{self.efficiency:.1%} full"
        )

    @property
    def _added(self) -> Integers:
        """The tokens that each row adds to its bin."""
        added: Integers = self.lengths[self.rows] - self.shared
        return added

    @staticmethod
    def _sums(values: Integers, offsets: Integers) -> Integers:
        """Sum values from each offset to the next."""
        sums: Integers = np.diff(offsets_of(values)[offsets])
        return sums
