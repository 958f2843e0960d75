"""Bins of trees: the rows of each bin, and the tokens they share."""

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
    from fastcollate.plan.forecast import Forecast, Sync
    from fastcollate.plan.tree_plan import TreePlan


@dataclass(frozen=True, eq=False)
class TreeBins(Table):
    """The rows of each bin, and the number of tokens each shares with the one before it.

    Made by :meth:`fastcollate.planning.TreePlan.pack`. It holds no tokens, can be pickled, and is
    written as JSON by ``to_dict``. A row adds only the tokens that it does not share, so a bin
    holds shared tokens once. Two are equal if all their values are.

    Parameters
    ----------
    offsets
        Offsets of bins in `rows`, with the end of the last, int64 (bins + 1,).
    rows
        The rows of all bins, in token order within each bin, int64 (rows,).
    shared
        Number of tokens that each row shares with the one before it in its bin, int64 (rows,);
        0 for the first.
    lengths
        Tokens of each row, in the order of the input, int64 (rows,).
    capacity
        Planned maximum tokens of a bin. A bin of a single larger row exceeds it.
    multiple_of
        The width of each tree in a bin is rounded up to a multiple of this.

    Raises
    ------
    ValueError
        The tables are inconsistent: a row is not in exactly one bin, or shares too many tokens.
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
        """Return a description of the first inconsistency, or None."""
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
        """The rows of each bin, in token order."""
        rows = self.rows.tolist()
        return [rows[start:end] for start, end in pairwise(self.offsets.tolist())]

    @property
    def tokens(self) -> Integers:
        """Tokens of each bin, counting shared ones once, int64 (bins,)."""
        return self._sums(self._added, self.offsets)

    @property
    def loads(self) -> Integers:
        """Tokens of each bin, rounded up per tree, int64 (bins,)."""
        starts = np.flatnonzero(self.shared == 0)
        trees = self._sums(self._added, np.append(starts, len(self.rows)))
        places = -(-trees // self.multiple_of) * self.multiple_of
        return self._sums(places, np.searchsorted(starts, self.offsets))

    def costs(self, costs: Costs) -> NDArray[np.float64]:
        """Return the cost of each bin's new tokens, float64 (bins,), without ``per_bin``."""
        new = costs.of_added(self.lengths[self.rows], self.shared)
        sums: NDArray[np.float64] = np.add.reduceat(new, self.offsets[:-1])
        return sums

    def of_ranks(self, dp_size: int, *, shard_by: Costs) -> list[list[int]]:
        """Assign the same number of bins to each rank, of about the same cost.

        Uses largest differencing, or costliest first with exchanges, whichever has the faster
        slowest rank; the second if equal.

        Parameters
        ----------
        dp_size
            Number of ranks, a divisor of that of bins: pack with ``bins_multiple_of=dp_size``.
        shard_by
            The cost of bins.

        Returns
        -------
        list[list[int]]
            The bins of each rank, costliest first, equal ones in order.

        Raises
        ------
        ValueError
            `dp_size` does not divide the number of bins.
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
        """Predict the compute and idle time of ranks for these bins as one mini-batch.

        Parameters
        ----------
        costs, sync
            As in :meth:`StepPlan.forecast`.
        dp_size
            Number of ranks; :meth:`of_ranks` assigns bins to them.
        tree
            The tree that was packed. With it, duplicated tokens are counted, and the bound is that
            of the whole tree.

        Returns
        -------
        Forecast

        Raises
        ------
        TypeError, ValueError
            `costs` are not :class:`Costs`; `sync` is unknown; or `dp_size` does not divide the
            number of bins.
        """
        from fastcollate.plan.forecasting import forecast_tree

        return forecast_tree(self, costs, dp_size, sync, tree)

    @property
    def efficiency(self) -> float:
        """Tokens over the capacity of all bins; 1.0 if there are no bins."""
        room = self.num_bins * self.capacity
        return int(self._added.sum()) / room if room > 0 else 1.0

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics to log: counts of bins, rows and tokens, and loads of bins."""
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
        """Return the bins that ``to_dict`` wrote.

        Raises
        ------
        ValueError
            `tables` are no bins of trees.
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
