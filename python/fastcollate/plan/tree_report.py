"""The report on shared prefixes: tokens saved, and the rows that share them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fastcollate._fastcollate import PrefixTree
from fastcollate.common.arguments import tally

if TYPE_CHECKING:
    from fastcollate.plan.tree_plan import TreePlan
    from fastcollate.rows.lengths import Integers

SHOWN_NODES = 8
"""Number of shared runs of tokens in a printed report."""

SHOWN_ROWS = 12
"""Number of rows shown for each."""


class SharedTokens(NamedTuple):
    """A run of tokens shared by several rows.

    Attributes
    ----------
    rows : int64 (rows,)
        The rows, in the order of `TreeNodes.rows`, which this is a part of.
    start : int
        Position of the first token in these rows.
    length : int
        Number of tokens.
    """

    rows: Integers
    start: int
    length: int

    @property
    def saved(self) -> int:
        """Number of tokens saved by sharing."""
        return self.length * (len(self.rows) - 1)

    def __str__(self) -> str:
        shown = ", ".join(map(str, np.sort(self.rows)[:SHOWN_ROWS]))
        more = len(self.rows) - SHOWN_ROWS
        rows = f"{shown} and {more:,} more" if more > 0 else shown
        at = f" from {self.start:,} on" if self.start else ""
        return f"{tally(self.length, 'token')}{at} by {tally(len(self.rows), 'row')}: {rows}"


class TreeReport:
    """Sizes before and after sharing, and shared runs of tokens. ``str(report)`` is a table.

    Attributes
    ----------
    plan : TreePlan
        The rows, and the tokens that they share.
    """

    def __init__(self, plan: TreePlan) -> None:
        self.plan = plan

    @property
    def attention_pairs_before(self) -> int:
        """Number of pairs of tokens in attention, of all rows."""
        plan = self.plan
        return PrefixTree(plan.order, np.zeros_like(plan.shared), plan.lengths).attention_pairs

    @property
    def attention_pairs_after(self) -> int:
        """The same, counting pairs of shared tokens once."""
        return self.plan._core.attention_pairs

    @property
    def path_keys(self) -> int:
        """Number of keys that ``Batch.attention_paths`` gathers if all rows are in one bin."""
        nodes = self.plan.nodes
        children = np.bincount(nodes.parents[nodes.parents >= 0], minlength=len(nodes))
        # A node with one child is the beginning of the child's segment.
        return int((nodes.depths + nodes.lengths)[children != 1].sum())

    @property
    def metrics(self) -> dict[str, float]:
        """The sizes as a flat dict for logging.

        Returns
        -------
        dict
            ``tree/num_rows``, ``tree/num_trees``, ``tree/depth``, ``tree/forks``,
            ``tree/num_tokens_before`` and ``..._after``, ``tree/token_ratio`` (before over after),
            ``tree/num_attention_pairs_before`` and ``..._after``, ``tree/path_keys``.
        """
        plan = self.plan
        metrics = {
            "num_rows": plan.num_rows,
            "num_trees": plan.num_trees,
            "depth": plan.depth,
            "forks": plan.forks,
            "num_tokens_before": plan.tokens_before,
            "num_tokens_after": plan.tokens_after,
            "token_ratio": plan.token_ratio,
            "num_attention_pairs_before": self.attention_pairs_before,
            "num_attention_pairs_after": self.attention_pairs_after,
            "path_keys": self.path_keys,
        }
        return {f"tree/{name}": float(value) for name, value in metrics.items()}

    @property
    def shared(self) -> list[SharedTokens]:
        """All shared runs of tokens, largest saving first."""
        return self.largest(None)

    def largest(self, count: int | None) -> list[SharedTokens]:
        """Return the first `count` items of `shared`."""
        nodes = self.plan.nodes
        saved = nodes.lengths * (nodes.num_rows - 1)
        order = np.argsort(-saved, kind="stable")
        order = order[: np.count_nonzero(saved)][:count]
        begins, ends = nodes.row_ranges
        return [
            SharedTokens(
                nodes.rows[begins[node] : ends[node]],
                int(nodes.depths[node]),
                int(nodes.lengths[node]),
            )
            for node in order.tolist()
        ]

    def __repr__(self) -> str:
        return f"TreeReport: {self._head}"

    @property
    def _head(self) -> str:
        return f"{tally(self.plan.num_rows, 'row')} in {tally(self.plan.num_trees, 'tree')}"

    def __str__(self) -> str:
        plan = self.plan
        lines = [self._head, f"{'':<18}{'before':>18}{'after':>18}"]
        for name, before, after in (
            ("tokens", plan.tokens_before, plan.tokens_after),
            ("attention pairs", self.attention_pairs_before, self.attention_pairs_after),
        ):
            fewer = f"   {before / after:.1f}x fewer" if after else ""
            lines.append(f"  {name:<16}{before:>18,}{after:>18,}{fewer}")
        lines.append(f"  depth: {tally(plan.depth, 'node')}, {tally(plan.forks, 'fork')}")
        largest = self.largest(SHOWN_NODES)
        lines += [f"  {tokens}" for tokens in largest]
        num_shared = int(np.count_nonzero(plan.nodes.num_rows > 1))
        if (hidden := num_shared - len(largest)) > 0:
            lines.append(f"  and {hidden:,} more in report.shared")
        return "\n".join(lines)
