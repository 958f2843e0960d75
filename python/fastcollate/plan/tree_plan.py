"""The tree plan: the tokens that rows share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fastcollate._fastcollate import PrefixTree
from fastcollate.common.arguments import suggests_names, tally
from fastcollate.common.arrays import describe
from fastcollate.common.caching import cached_property
from fastcollate.plan.binned import BinnedLayout
from fastcollate.plan.tables import Table
from fastcollate.plan.tree_bins import TreeBins
from fastcollate.rows.lengths import Integers, check_indices, lengths_defect

if TYPE_CHECKING:
    from fastcollate.plan.layouts import Tree
    from fastcollate.plan.merging import MergePlan
    from fastcollate.plan.tree_report import TreeReport


@suggests_names
@dataclass(frozen=True, eq=False)
class TreePlan(Table):
    """The shared prefixes of rows: an order of the rows, and one number per row.

    Made by :func:`fastcollate.planning.prefix_tree`. It holds no tokens, and can be pickled. Two
    plans are equal if all their values are.

    Parameters
    ----------
    order
        The rows in the order of their tokens, int64 (rows,).
    shared
        Number of tokens that each row, in that order, shares with the one before it, int64 (rows,).
        Rows further apart share the minimum of the values after the first up to the second.
    prompt_lens, response_lens
        Tokens of each row, in the order of the input, int64 (rows,).
    merge
        The plan that merged turns into these rows, if any: :func:`fastcollate.plan_step` then
        takes uids per turn. Kept by pickle, but not by ``select``.

    Raises
    ------
    ValueError
        The tables are inconsistent: `order` is not a permutation of the rows, a row shares more
        tokens with the one before it than one of the two has, or `merge` has other rows.
    """

    _what: ClassVar[str] = "tree plan"

    order: Integers
    shared: Integers
    prompt_lens: Integers
    response_lens: Integers
    merge: MergePlan | None = field(default=None, compare=False)

    def _defect(self) -> str | None:
        for name in self._names():
            array = getattr(self, name)
            if array.ndim != 1 or len(array) != len(self.order):
                return (
                    f"{name} has shape {array.shape} and order {self.order.shape}, but both must "
                    "be of shape (rows,)"
                )
        for name in ("prompt_lens", "response_lens"):
            if (reason := lengths_defect(name, getattr(self, name))) is not None:
                return reason
        try:
            self._core  # noqa: B018
        except ValueError as error:
            return str(error)
        if self.merge is not None and not (
            np.array_equal(self.merge.prompt_lens, self.prompt_lens)
            and np.array_equal(self.merge.response_lens, self.response_lens)
        ):
            return "merge has other rows than the tree plan"
        return None

    def __reduce__(self) -> tuple[type[TreePlan], tuple[Any, ...]]:
        return type(self), (*self._values(), self.merge)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.order)

    @property
    def num_trees(self) -> int:
        """Number of trees. Rows of different trees share no token."""
        return int(np.count_nonzero(self.shared == 0))

    @property
    def lengths(self) -> Integers:
        """Tokens of each row, in the order of the input, int64 (rows,)."""
        return self.prompt_lens + self.response_lens

    @property
    def tokens_before(self) -> int:
        """Tokens of all rows."""
        return int(self.lengths.sum())

    @property
    def tokens_after(self) -> int:
        """Tokens of all rows, counting shared ones once."""
        return self.tokens_before - int(self.shared.sum())

    @property
    def token_ratio(self) -> float:
        """Tokens before over tokens after; 1.0 if there are no tokens."""
        return self.tokens_before / self.tokens_after if self.tokens_after > 0 else 1.0

    @cached_property
    def nodes(self) -> TreeNodes:
        """The nodes of the trees, with all rows in one bin."""
        names = ("starts", "lengths", "parents", "depths", "subtree_ends", "leaves")
        return TreeNodes._trusted(**dict(zip(names, self._core.nodes(), strict=True)))

    @property
    def depth(self) -> int:
        """Number of nodes on the longest path from a root to a leaf."""
        return int(self.nodes.levels.max(initial=-1)) + 1

    @property
    def forks(self) -> int:
        """Number of nodes with several children."""
        parents = self.nodes.parents
        return int(np.count_nonzero(np.bincount(parents[parents >= 0]) > 1))

    @property
    def report(self) -> TreeReport:
        """The tokens saved by sharing, and the rows that share them."""
        from fastcollate.plan.tree_report import TreeReport

        return TreeReport(self)

    def select(self, rows: Any) -> TreePlan:
        """Return the plan of a subset of rows, such as a mini-batch, without their tokens.

        Parameters
        ----------
        rows
            Distinct rows, integers (n,). Row i of the new plan is ``rows[i]``.

        Raises
        ------
        TypeError
            `rows` are not integers.
        ValueError
            A row does not exist, or is given twice.
        """
        rows = check_indices("rows", rows, "rows")
        if rows.max(initial=-1) >= self.num_rows:
            raise ValueError(
                f"rows has {rows.max()}, but the plan has {tally(self.num_rows, 'row')}; pass "
                f"rows from 0 to {self.num_rows - 1}"
            )
        if len(again := np.flatnonzero(np.bincount(rows) > 1)) > 0:
            raise ValueError(f"rows has {again[0]} more than once; pass each row once")
        order, shared = self._core.select(rows)
        prompt_lens, response_lens = self.prompt_lens[rows], self.response_lens[rows]
        return self._trusted(
            order=order, shared=shared, prompt_lens=prompt_lens, response_lens=response_lens
        )

    def pack(self, layout: Tree) -> TreeBins:
        """Pack rows into bins that hold shared tokens once, with the options of a layout.

        Rows of a tree lie in one bin, unless the tree exceeds it: the tree is then cut where that
        duplicates the fewest tokens. Trees and the parts of cut trees are packed as sequences are
        by :func:`fastcollate.planning.pack`.

        Parameters
        ----------
        layout
            The capacity, and the options of packing.

        Returns
        -------
        TreeBins
            Identical on every machine. No bin is empty.

        Raises
        ------
        ValueError
            A row exceeds a bin by itself, unless `oversize` is ``"own_bin"``; there are fewer rows
            than bins; or the layout has no capacity, or says itself what rows share.
        TypeError
            `layout` is not a :class:`fastcollate.Tree`.

        Examples
        --------
        >>> prompts, responses = [[1, 2, 3, 4]] * 3, [[5], [6], [7]]
        >>> fc.planning.prefix_tree(prompts, responses).pack(fc.Tree(6)).bins
        [[1, 2], [0]]
        """
        if not isinstance(layout, BinnedLayout) or layout.name != "tree":
            raise TypeError(f"layout is {describe(layout)}; pass fc.Tree(capacity=...)")
        for name, default in ("plan", None), ("share", "all"), ("same_inputs", None):
            if getattr(layout, name) != default:
                raise ValueError(
                    f"layout has {name}, but this plan has the shared tokens; leave {name} out"
                )
        if (packer := layout.packer) is None:
            raise ValueError("layout has no capacity, which bins need; pass fc.Tree(capacity=...)")
        offsets, rows, shared = self._within(layout)._core.pack(packer)
        return TreeBins._trusted(
            offsets=offsets,
            indices=rows,
            starts=shared,
            lengths=self.lengths[rows] - shared,
            num_sequences=self.num_rows,
            capacity=layout.capacity,
            multiple_of=layout.multiple_of,
            fork_early=layout.fork_early,
        )

    def _within(self, layout: Tree) -> TreePlan:
        """Return the plan with the tokens that the options of a layout let rows share."""
        if not layout.has_limits:
            return self
        shared = self._core.within(layout.spec)
        return self._trusted(**(self._named() | {"shared": shared, "merge": self.merge}))

    def __repr__(self) -> str:
        before, rows = tally(self.tokens_before, "token"), tally(self.num_rows, "row")
        after, ratio = f"{self.tokens_after:,}", f"{self.token_ratio:.1f}x fewer"
        return f"TreePlan: {before} of {rows} in {after}, {ratio}"

    def _repr_html_(self) -> str:
        from fastcollate.inspect.markup import text_page

        return text_page(f"{self!r}\n{self.report}")

    @cached_property
    def _core(self) -> PrefixTree:
        """The compiled form."""
        return PrefixTree(self.order, self.shared, self.lengths)


@dataclass(frozen=True, eq=False)
class TreeNodes(Table):
    """The nodes of trees: runs of tokens that belong to the same rows.

    Positions count in a bin in which each row, in the order of the plan, adds the tokens that
    it does not share with the row before it. Nodes are in the order of positions, so parents come
    before their children. Position q attends to k if and only if ``k <= q`` and q is below the end
    of the subtree of k's node.

    Parameters
    ----------
    starts, lengths
        The first position and the number of positions of each node, int64 (nodes,).
    parents
        The parent of each node, -1 for a root, int64 (nodes,).
    depths
        Number of tokens before each node in its rows, int64 (nodes,): the position id of its first
        token.
    subtree_ends
        One past the last position of each node's subtree, int64 (nodes,).
    leaves
        The last node of each row, in the order of the input, int64 (rows,); -1 if the row has no
        token.
    """

    _what: ClassVar[str] = "tree"

    starts: Integers
    lengths: Integers
    parents: Integers
    depths: Integers
    subtree_ends: Integers
    leaves: Integers

    def _defect(self) -> str | None:
        columns = (self.lengths, self.parents, self.depths, self.subtree_ends)
        if any(column.shape != self.starts.shape for column in columns) or self.starts.ndim != 1:
            return "its columns are not of one length"
        nodes, ends = np.arange(len(self)), self.starts + self.lengths
        if not (
            np.array_equal(self.starts, np.append(0, ends)[:-1])
            and (self.lengths > 0).all()
            and ((self.parents >= -1) & (self.parents < nodes)).all()
            and (self.depths >= 0).all()
            and np.isin(self.subtree_ends, ends).all()
            and (self.subtree_ends >= ends).all()
            and self.leaves.ndim == 1
            and ((self.leaves >= -1) & (self.leaves < len(self))).all()
        ):
            return "its nodes do not follow each other"
        return None

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def levels(self) -> Integers:
        """Number of ancestors of each node, int64 (nodes,)."""
        ends = np.searchsorted(self.starts, self.subtree_ends)
        opened = np.arange(1, len(self) + 1)
        closed = np.cumsum(np.bincount(ends, minlength=len(self))[: len(self)])
        levels: Integers = opened - closed - 1
        return levels

    @property
    def num_rows(self) -> Integers:
        """Number of rows of each node, int64 (nodes,)."""
        first, last = self.row_ranges
        return last - first

    @cached_property
    def rows(self) -> Integers:
        """The non-empty rows, int64, ordered so that each node's are consecutive."""
        rows: Integers = np.argsort(self.leaves, kind="stable")
        rows.setflags(write=False)
        return rows[np.count_nonzero(self.leaves < 0) :]

    @property
    def row_ranges(self) -> tuple[Integers, Integers]:
        """Start and end of each node's rows in `rows`, int64 (nodes,) each."""
        leaves = self.leaves[self.rows]
        ends = np.searchsorted(self.starts, self.subtree_ends)
        nodes = np.arange(len(self))
        return np.searchsorted(leaves, nodes), np.searchsorted(leaves, ends)

    def __repr__(self) -> str:
        return f"TreeNodes: {tally(len(self), 'node')} of {tally(len(self.leaves), 'row')}"
