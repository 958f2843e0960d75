"""The tree plan: which tokens rows have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fastcollate import _fastcollate
from fastcollate._fastcollate import PrefixTree
from fastcollate.arguments import counted, suggests_names
from fastcollate.plan.costs import CostArgument, Costs
from fastcollate.plan.lengths import Integers, checked_lengths, lengths_defect
from fastcollate.plan.packing import Algorithm, Oversize, Packer
from fastcollate.plan.tables import Table, check_names, contradiction, listed_integers, not_valid
from fastcollate.plan.tree_bins import TreeBins
from fastcollate.plan.tree_report import TreeReport
from fastcollate.view.plan_pages import tree_page


def checked_tree_packer(capacity: Any, *, cost: Any, **options: Any) -> Packer:
    """Return what packs trees, of the options of :meth:`TreePlan.pack`."""
    packer = Packer.of(capacity, cost=cost, **options)
    if packer.oversize == "split":
        option = "algorithm='concat'" if packer.algorithm == "concat" else "oversize='split'"
        raise ValueError(
            f"{option} splits rows, but bins of trees hold whole rows; pass another algorithm, "
            "and oversize='error' or 'own_bin'"
        )
    if not isinstance(cost, (str, Costs)) and not callable(cost):
        raise ValueError(
            "cost has one number per row, but a tree needs the cost of tokens that rows have "
            "in common; pass cost as a name or a function"
        )
    return packer


@suggests_names
@dataclass(frozen=True, eq=False)
class TreePlan(Table):
    """Which tokens rows begin with in common: their order, and one number a row.

    :func:`fastcollate.planning.prefix_tree` makes it. There is no token in it; it can be pickled,
    and written as JSON by ``to_dict``. Two plans are equal if all their values are.

    Parameters
    ----------
    order
        The rows in the order of their tokens, int64 (rows,).
    shared
        How many tokens each of them, in that order, has in common with the one before it, int64
        (rows,). Two rows further apart have in common what the least of those up to the later one
        says.
    prompt_lens, response_lens
        Tokens of each row, in the order of the input, int64 (rows,).

    Raises
    ------
    ValueError
        If the tables are no plan: a row is not there once, or has more tokens in common with the
        one before it than one of the two has.
    """

    order: Integers
    shared: Integers
    prompt_lens: Integers
    response_lens: Integers

    def __post_init__(self) -> None:
        names = ("order", "shared", "prompt_lens", "response_lens")
        try:
            for name in names:
                self._set_array(name, np.int64)
        except (TypeError, ValueError, OverflowError) as error:
            raise not_valid("tree plan", error) from error
        for name in names:
            array = getattr(self, name)
            if array.ndim != 1 or len(array) != len(self.order):
                raise contradiction(
                    "tree plan",
                    f"{name} has shape {array.shape} and order {self.order.shape}, but both must "
                    "be of shape (rows,)",
                )
        for name in names[2:]:
            if (reason := lengths_defect(name, getattr(self, name))) is not None:
                raise contradiction("tree plan", reason)
        if (reason := _fastcollate.tree_defect(self.order, self.shared, self.lengths)) is not None:
            raise contradiction("tree plan", reason)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.order)

    @property
    def num_trees(self) -> int:
        """Number of trees: rows of different ones have no token in common."""
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
        """The same, with those counted once that rows have in common."""
        return self.tokens_before - int(self.shared.sum())

    @property
    def token_ratio(self) -> float:
        """How many times fewer tokens there are after than before; 1.0 if there are none."""
        return self.tokens_before / self.tokens_after if self.tokens_after > 0 else 1.0

    @cached_property
    def nodes(self) -> TreeNodes:
        """Runs of tokens that belong to the same rows, as if all rows lay in one bin."""
        names = ("starts", "lengths", "parents", "depths", "subtree_ends", "leaves")
        return TreeNodes._trusted(**dict(zip(names, self._core.nodes(), strict=True)))

    @property
    def depth(self) -> int:
        """How many nodes the longest way from a tree's first token to its last has."""
        return int(self.nodes.levels.max(initial=-1)) + 1

    @property
    def forks(self) -> int:
        """After how many nodes rows go on differently."""
        parents = self.nodes.parents
        return int(np.count_nonzero(np.bincount(parents[parents >= 0]) > 1))

    @cached_property
    def report(self) -> TreeReport:
        """What sharing saves, and who shares how much with whom."""
        unshared = PrefixTree(self.order, np.zeros_like(self.shared), self.lengths)
        return TreeReport(
            num_rows=self.num_rows,
            num_trees=self.num_trees,
            depth=self.depth,
            forks=self.forks,
            tokens_before=self.tokens_before,
            tokens_after=self.tokens_after,
            attention_pairs_before=unshared.attention_pairs,
            attention_pairs_after=self._core.attention_pairs,
            nodes=self.nodes,
        )

    def select(self, rows: Any) -> TreePlan:
        """Return the plan of some rows alone, such as those of a mini-batch; no token is needed.

        Parameters
        ----------
        rows
            Which ones, each once: integers (n,). The row of the new plan is the place in it.

        Raises
        ------
        TypeError
            They are no integers.
        ValueError
            A row that is not there, or is given twice.
        """
        rows = checked_lengths("rows", rows, "row to select")
        if rows.max(initial=-1) >= self.num_rows:
            raise ValueError(
                f"rows has {rows.max()}, but the plan has {counted(self.num_rows, 'row')}; pass "
                f"rows from 0 to {self.num_rows - 1}"
            )
        if len(again := np.flatnonzero(np.bincount(rows) > 1)) > 0:
            raise ValueError(f"rows has {again[0]} more than once; pass each row once")
        order, shared = self._core.select(rows)
        prompt_lens, response_lens = self.prompt_lens[rows], self.response_lens[rows]
        return self._trusted(
            order=order, shared=shared, prompt_lens=prompt_lens, response_lens=response_lens
        )

    def pack(
        self,
        capacity: int,
        *,
        algorithm: Algorithm = "ffd",
        max_sequences: int | None = None,
        multiple_of: int = 1,
        min_bins: int = 0,
        bins_multiple_of: int = 1,
        oversize: Oversize | None = None,
        max_cost: float | None = None,
        cost: Literal["flops", "tokens"] | CostArgument = "flops",
    ) -> TreeBins:
        """Pack rows into bins that hold tokens they have in common once.

        Rows of a tree lie in one bin, unless the tree exceeds it: then it is cut where that
        duplicates the fewest tokens. The trees, and what became of those that were cut, are packed
        as :func:`fastcollate.planning.pack` packs sequences.

        Parameters
        ----------
        capacity
            How many tokens a bin holds at most, those that its rows have in common counted once.
        algorithm
            As ``pack``, but for ``"concat"``, which splits rows.
        max_sequences
            How many rows a bin holds at most.
        multiple_of
            What the place of each tree in a bin is rounded up to: padding follows whole trees.
        min_bins, bins_multiple_of
            How many bins there are at least, and what their number has to be a multiple of, such as
            the number of ranks. If there are too few, trees are parted, and then cut where that
            duplicates the fewest tokens; of equally good places, those are taken that halve what is
            largest then. There is an error only if there are fewer rows than bins.
        oversize
            What happens to a row that exceeds the capacity, or `max_cost`, by itself: ``"error"``
            or ``"own_bin"``, as ``pack``.
        max_cost, cost
            How much a bin may cost at most, beside the capacity: what its rows cost, less what the
            tokens cost that each has in common with the one before it. ``cost`` is a name,
            :class:`Costs` or a function of lengths, as ``pack``; a longer row must not cost
            less.

        Returns
        -------
        TreeBins
            The same one on every machine. No bin is empty.

        Raises
        ------
        ValueError
            A row that exceeds a bin by itself, unless `oversize` is ``"own_bin"``; fewer rows than
            bins; options that split rows, or that ``pack`` refuses.
        TypeError
            What is no number or option.

        Examples
        --------
        >>> prompts, responses = [[1, 2, 3, 4]] * 3, [[5], [6], [7]]
        >>> fc.planning.prefix_tree(prompts, responses).pack(6).bins
        [[1, 2], [0]]
        """
        packer = checked_tree_packer(
            capacity,
            algorithm=algorithm,
            max_sequences=max_sequences,
            multiple_of=multiple_of,
            min_bins=min_bins,
            bins_multiple_of=bins_multiple_of,
            oversize=oversize,
            max_cost=max_cost,
            cost=cost,
        )
        offsets, rows, shared = self._core.pack(packer.spec)
        return TreeBins._trusted(
            offsets=offsets,
            rows=rows,
            shared=shared,
            lengths=self.lengths,
            capacity=packer.capacity,
            multiple_of=packer.multiple_of,
        )

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> TreePlan:
        """Return the plan of such lists.

        Raises
        ------
        ValueError
            If they are none.
        """
        check_names(cls, "tree plan", tables)
        arrays = {name: listed_integers("tree plan", name, value) for name, value in tables.items()}
        return cls(**arrays)

    def __repr__(self) -> str:
        before, rows = counted(self.tokens_before, "token"), counted(self.num_rows, "row")
        after, ratio = f"{self.tokens_after:,}", f"{self.token_ratio:.1f}x fewer"
        return f"TreePlan: {before} of {rows} in {after}, {ratio}"

    def _repr_html_(self) -> str:
        return tree_page(repr(self), self.report)

    @cached_property
    def _core(self) -> PrefixTree:
        """The compiled form."""
        return PrefixTree(self.order, self.shared, self.lengths)


@dataclass(frozen=True, eq=False)
class TreeNodes(Table):
    """The nodes of trees: runs of tokens that belong to the same rows.

    Positions are those of a bin in which each row, in the order of the plan, adds the tokens that
    it does not share with the row before it. Nodes are in the order of positions, so parents come
    before their children. The position q may look at k if and only if ``k <= q`` and q is below the
    end of the subtree that k's node has.

    Parameters
    ----------
    starts, lengths
        The first position and the number of positions of each node, int64 (nodes,).
    parents
        The node that each follows on, -1 if none, int64 (nodes,).
    depths
        How many tokens stand before each in its rows, int64 (nodes,): the position id of its first
        token.
    subtree_ends
        One past the last position that follows on each in a row, int64 (nodes,).
    leaves
        The node that each row ends with, in the order of the input, int64 (rows,); -1 if the row
        has no token.
    """

    starts: Integers
    lengths: Integers
    parents: Integers
    depths: Integers
    subtree_ends: Integers
    leaves: Integers

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def levels(self) -> Integers:
        """How many nodes each follows on, int64 (nodes,)."""
        ends = np.searchsorted(self.starts, self.subtree_ends)
        opened = np.arange(1, len(self) + 1)
        closed = np.cumsum(np.bincount(ends, minlength=len(self))[: len(self)])
        levels: Integers = opened - closed - 1
        return levels

    @property
    def num_rows(self) -> Integers:
        """How many rows each belongs to, int64 (nodes,)."""
        first, last = self.row_ranges
        return last - first

    @cached_property
    def rows(self) -> Integers:
        """The rows that have tokens, so that those of a node follow each other: int64."""
        rows: Integers = np.argsort(self.leaves, kind="stable")
        return rows[np.count_nonzero(self.leaves < 0) :]

    @property
    def row_ranges(self) -> tuple[Integers, Integers]:
        """Where the rows of each node begin and end among `rows`, int64 (nodes,)."""
        leaves = self.leaves[self.rows]
        ends = np.searchsorted(self.starts, self.subtree_ends)
        nodes = np.arange(len(self))
        return np.searchsorted(leaves, nodes), np.searchsorted(leaves, ends)

    def __repr__(self) -> str:
        return f"TreeNodes: {counted(len(self), 'node')} of {counted(len(self.leaves), 'row')}"
