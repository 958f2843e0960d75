"""Bins of trees: the rows of each bin, and the tokens they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from fastcollate import _fastcollate
from fastcollate.common.arguments import check_count, tally
from fastcollate.common.arrays import offsets_of
from fastcollate.plan.bin_plan import BinPlan
from fastcollate.plan.costs import Costs
from fastcollate.plan.tables import offsets_defect
from fastcollate.rows.lengths import Integers

if TYPE_CHECKING:
    from fastcollate.plan.forecast import Forecast, Sync
    from fastcollate.plan.tree_plan import TreePlan


@dataclass(frozen=True, eq=False, repr=False)
class TreeBins(BinPlan):
    """A bin plan of rows that share tokens.

    Made by :meth:`fastcollate.planning.TreePlan.pack`. A row shares tokens with the one before it
    in its bin, and adds the others: they are its piece, so a bin holds shared tokens once.

    Parameters
    ----------
    offsets
        Offsets of bins in rows, with the end of the last, int64 (bins + 1,).
    indices
        The rows of all bins, in token order within each bin, int64 (rows,).
    starts
        Number of tokens that each row shares with the one before it in its bin, int64 (rows,);
        0 for the first.
    lengths
        The tokens that each row adds, int64 (rows,).
    num_sequences
        Number of rows.
    capacity
        Planned maximum tokens of a bin. A bin of a single larger row exceeds it.
    multiple_of
        The width of each tree in a bin is rounded up to a multiple of this.
    fork_early
        True if rows share a token only if they agree on the next one, too.

    Raises
    ------
    ValueError
        The tables are inconsistent: a row is not in exactly one bin, or shares too many tokens.
    """

    _what: ClassVar[str] = "plan of trees in bins"
    _shares: ClassVar[bool] = True
    _noun: ClassVar[str] = "row"
    _prefix: ClassVar[str] = "tree"

    fork_early: bool = False

    def _defect(self) -> str | None:
        return BinPlan._defect(self) or offsets_defect(
            "offsets", self.offsets, len(self.indices), "bins", "rows"
        )

    @property
    def tokens(self) -> Integers:
        """Tokens of each bin, counting shared ones once, int64 (bins,)."""
        return self._per_bin(self.lengths)

    @property
    def loads(self) -> Integers:
        """Tokens of each bin, rounded up per tree, int64 (bins,)."""
        starts = np.flatnonzero(self.starts == 0)
        trees = np.diff(offsets_of(self.lengths)[np.append(starts, len(self.indices))])
        rounded = -(-trees // self.multiple_of) * self.multiple_of
        loads: Integers = np.diff(offsets_of(rounded)[np.searchsorted(starts, self.offsets)])
        return loads

    def costs(self, costs: Costs) -> NDArray[np.float64]:
        """Return the cost of each bin's new tokens, float64 (bins,), without ``per_bin``."""
        new = costs.of_added(self.starts + self.lengths, self.starts)
        sums: NDArray[np.float64] = np.add.reduceat(new, self.offsets[:-1])
        return sums

    def of_ranks(self, dp_size: int, *, shard_by: Costs) -> list[list[int]]:
        """Assign the same number of bins to each rank, of about the same cost.

        Uses largest differencing, or costliest first with exchanges, whichever has the faster
        slowest rank; the second if equal.

        Parameters
        ----------
        dp_size
            Number of ranks, which must divide the bins: pack with ``bins_multiple_of=dp_size``.
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
        dp_size = check_count("dp_size", dp_size, "a number of ranks")
        if self.num_bins % dp_size != 0:
            raise ValueError(
                f"dp_size is {dp_size}, which does not divide {tally(self.num_bins, 'bin')}; "
                "pass bins_multiple_of=dp_size to the layout"
            )
        bins: list[int] = _fastcollate.deal_bins(self.costs(shard_by), dp_size).tolist()
        each = len(bins) // dp_size
        return [bins[rank * each : (rank + 1) * each] for rank in range(dp_size)]

    def forecast(
        self, costs: Costs, dp_size: int, sync: Sync = "step", *, tree: TreePlan | None = None
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
            ``costs`` are not :class:`Costs`; `sync` is unknown; or `dp_size` does not divide the
            number of bins.
        """
        from fastcollate.inspect.forecasting import forecast_tree

        return forecast_tree(self, costs, dp_size, sync, tree)
