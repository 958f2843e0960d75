"""The report on shared prefixes: tokens saved, and the rows that share them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fastcollate.common.arguments import tally

if TYPE_CHECKING:
    from fastcollate.plan.tree_plan import TreeNodes
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


@dataclass(frozen=True, eq=False, repr=False)
class TreeReport:
    """Sizes before and after sharing, and shared runs of tokens. ``str(report)`` is a table.

    Attributes
    ----------
    num_rows, num_trees : int
        Number of rows and of trees; rows of different trees share nothing.
    depth, forks : int
        Nodes on the longest path through a tree, and nodes with several children.
    tokens_before, tokens_after : int
        Tokens of all rows, and the number counting shared tokens once.
    attention_pairs_before, attention_pairs_after : int
        The same for pairs of tokens in attention.
    nodes : TreeNodes
        The nodes of the trees.
    """

    num_rows: int
    num_trees: int
    depth: int
    forks: int
    tokens_before: int
    tokens_after: int
    attention_pairs_before: int
    attention_pairs_after: int
    nodes: TreeNodes

    @property
    def path_keys(self) -> int:
        """Number of keys that ``Batch.attention_paths`` gathers if all rows are in one bin."""
        nodes = self.nodes
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
        after = self.tokens_after
        metrics = {
            "num_rows": self.num_rows,
            "num_trees": self.num_trees,
            "depth": self.depth,
            "forks": self.forks,
            "num_tokens_before": self.tokens_before,
            "num_tokens_after": after,
            "token_ratio": self.tokens_before / after if after > 0 else 1.0,
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
        nodes = self.nodes
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
        rows, trees = tally(self.num_rows, "row"), tally(self.num_trees, "tree")
        return f"TreeReport: {rows} in {trees}"

    def __str__(self) -> str:
        rows, trees = tally(self.num_rows, "row"), tally(self.num_trees, "tree")
        lines = [f"{rows} in {trees}", f"{'':<18}{'before':>18}{'after':>18}"]
        for name, before, after in (
            ("tokens", self.tokens_before, self.tokens_after),
            ("attention pairs", self.attention_pairs_before, self.attention_pairs_after),
        ):
            fewer = f"   {before / after:.1f}x fewer" if after else ""
            lines.append(f"  {name:<16}{before:>18,}{after:>18,}{fewer}")
        lines.append(f"  depth: {tally(self.depth, 'node')}, {tally(self.forks, 'fork')}")
        largest = self.largest(SHOWN_NODES)
        lines += [f"  {tokens}" for tokens in largest]
        num_shared = int(np.count_nonzero(self.nodes.num_rows > 1))
        if (hidden := num_shared - len(largest)) > 0:
            lines.append(f"  and {hidden:,} more in report.shared")
        return "\n".join(lines)
