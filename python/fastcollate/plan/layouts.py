"""The layouts whose output rows are bins of rows, and layouts by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from fastcollate._fastcollate import Bins, LayoutSpec, PackSpec
from fastcollate.common.arguments import suggests_names
from fastcollate.common.arrays import describe
from fastcollate.common.text import show
from fastcollate.plan.bin_plan import BinPlan
from fastcollate.plan.binned import BinnedLayout, Growth
from fastcollate.plan.costs import Costs
from fastcollate.plan.grouping import group_numbers
from fastcollate.plan.layout import Jagged, Layout, Left, Right, TwoSegment, call_text
from fastcollate.plan.tree_bins import TreeBins
from fastcollate.plan.tree_plan import TreePlan
from fastcollate.rows.lengths import check_indices

Share: TypeAlias = Literal["all", "group", "prompts"]
"""The tokens that rows of a tree may share."""
Shift: TypeAlias = Literal["none", "next_token"]
PaddingAs: TypeAlias = Literal["own_segment", "continued_segment", "last_segment", "no_segment"]


@suggests_names
@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Packed(BinnedLayout):
    """Several sequences in each row of the output, called a *bin*.

    B sequences lie in N bins of W positions, and all per-token outputs are (N, W, ...)::

        input_ids       |  p   p   r   r   p   r  PAD |
        loss_mask       |  0   0   r   r   0   r   0  |
                         <------------ W ------------>

    - ``position_ids`` and ``sequence_ids``, int64 (N, W), are included: the position of each
      token in its sequence, and its row in the batch, -1 on padding.
    - ``cu_seqlens``, int32 (segments + 1,): the offsets of attention segments over all bins laid
      end to end; ``row_cu_seqlens``: those in each bin, a list of N int32 arrays; ``max_seqlen``:
      the longest segment, an int. With `multiple_of`, these count tokens, and
      ``cu_seqlens_padded``, ``row_cu_seqlens_padded`` and ``max_seqlen_padded`` rounded widths.
    - There is no ``attention_mask``: Hugging Face models detect packed batches by its absence,
      without a cache.
    - ``response_mask``, ``loss_mask`` and labels are as wide as ``input_ids``; :class:`PerRow`
      fields, names and ``prompt_lens`` belong to the B sequences, in batch order.

    Parameters
    ----------
    capacity
        Maximum tokens of a bin. :func:`plan_step` packs each mini-batch separately.
    plan
        The bins, instead of a capacity: a plan made by :func:`fastcollate.planning.pack` for the
        lengths of these rows, or a list of rows per bin.
    num_bins
        The number of bins, instead of a capacity: the capacity is the smallest, to 0.1%, with
        which `algorithm` needs no more bins: MULTIFIT (Coffman, Garey and Johnson, 1978). Missing
        bins then take the last sequence of other bins. In :func:`plan_step`, the number of bins per
        rank.
    algorithm
        The choice of a bin for each sequence. A sequence that fits no bin opens another.

        - ``"ffd"``, first fit decreasing: the first bin that fits, longest sequence first, ties in
          reverse order. SkyRL's, NeMo-RL's and LLaMA-Factory's.
        - ``"stable_ffd"``: the same with ties in order. prime-rl's, and miles' with
          ``oversize="own_bin"``.
        - ``"ff"``, first fit: the first bin that fits, in the order of the input. axolotl's, and
          slime's with ``oversize="own_bin"``.
        - ``"bfd"``, best fit decreasing: the fullest bin that fits, of several the first that was
          that full; longest sequence first, ties in order. TRL's.
        - ``"mffd"``, modified first fit decreasing: sequences of more than half of the capacity get
          a bin each, which others fill up; the rest goes to the emptiest of more bins. NeMo-RL's.
          Older versions of NeMo-RL add an empty bin if there is no rest.
        - ``"next_fit"``: the last bin, in the order of the input. NeMo-RL's concatenative packer,
          and torchtune's without splitting.
        - ``"concat"``: the same, but the part that exceeds the bin is cut off and opens the next.
          torchtune's with splitting, and TRL's ``"wrapped"``.
        - ``"balanced"``: the bin with the fewest tokens, longest sequence first, ties in order,
          as in SkyRL and ms-swift, which packs 1,000 sequences at a time by binpacking 2.
    max_sequences
        Maximum sequences of a bin, counting pieces of split ones; unlimited by default.
    min_bins, bins_multiple_of
        Minimum number of bins, and a number that it must be a multiple of, such as the number of
        ranks.
    allow_fewer_bins
        True: if there are fewer sequences than these bins, each gets a bin of its own; that many
        bins need not be a multiple. False: an error.
    grow_by
        How bins are added. ``"move"``, as in SkyRL and NeMo-RL: each takes the last sequence of the
        bin with the most sequences (of several, the last) until that has one left, then of the
        next. ``"split"``: the costliest bin of several sequences is split in two of about the same
        `cost`, repeatedly; with `allow_fewer_bins`, as in slime and miles (``cost="tokens"``) and
        prime-rl (its own cost of the model).
    oversize
        Treatment of a sequence that exceeds the capacity, or `max_cost`, by itself. ``"error"``: an
        error; ``"own_bin"``: it gets a bin above the limit; ``"split"``: it is split into pieces as
        long as possible, and a shorter rest, all packed like sequences. The default is ``"error"``,
        but ``"own_bin"`` for ``"balanced"``, and ``"split"`` for ``"concat"``, which allows nothing
        else.
    max_cost, cost
        Maximum cost of a bin, in addition to the capacity, and the cost of sequences, which
        ``grow_by="split"`` uses, too: ``"flops"``, ``24576 * L + L * L`` for a sequence of L
        tokens; ``"tokens"``; :class:`fastcollate.planning.Costs`; or a function that maps lengths,
        int64 (m,), to costs. Costs are finite and not negative; to split by cost, a longer piece
        must not cost less. Not with ``"concat"``.
    multiple_of
        Round the width of each sequence up to a multiple of this, which the capacity counts; by
        default that of `plan`.
    pad_to_multiple_of
        Round ``W`` up to a multiple of this, as data collators of Hugging Face do, and of
        `multiple_of`; the capacity does not count it.
    pad_to
        Fixed ``W``; by default the width of the fullest bin. A fuller bin is an error.
    shift
        Alignment of response-aligned fields. ``"none"``: at their tokens. ``"next_token"``: at the
        preceding token, whose output predicts them; the last position of a sequence holds the
        padding value, so no loss crosses a boundary. The first response token of a row without a
        prompt, or of a later part of a split row, then has no position, and its values are left
        out. Labels are moved by ``labels="shifted"`` alone.
    padding_as
        Treatment of the padding after the last sequence of a bin in ``cu_seqlens`` and
        ``position_ids``: ``"own_segment"``, a separate sequence; ``"continued_segment"``, the same
        with positions that continue the last sequence, as in torchtune; ``"last_segment"``, part
        of the last one; ``"no_segment"``, left out of ``cu_seqlens``, with positions of 0:
        ``cu_seqlens`` of several bins then holds no positions, but ``row_cu_seqlens`` does.

    Raises
    ------
    ValueError
        None or several of `capacity`, `num_bins` and `plan` are given; a packing option is given
        with a plan; `multiple_of` differs from the plan's; `pad_to` is not a multiple; or an option
        of packing is invalid or excludes another.
    TypeError
        An argument has the wrong type.

    Examples
    --------
    >>> fc.Packed(16384, shift="next_token")
    Packed(capacity=16384, shift='next_token')
    >>> fc.Packed(plan=[[1], [0, 2]], multiple_of=8)
    Packed(plan=((1,), (0, 2)), multiple_of=8)
    """

    name: ClassVar[str] = "packed"

    packs_by: ClassVar[str] = "pack"

    plan: BinPlan | Sequence[Sequence[int]] | Literal["single_row"] | None = None
    num_bins: int | None = None
    grow_by: Growth = "move"
    shift: Shift = "none"
    padding_as: PaddingAs = "own_segment"

    @classmethod
    def single_row(
        cls,
        *,
        multiple_of: int = 1,
        pad_to_multiple_of: int = 1,
        pad_to: int | None = None,
        shift: Shift = "none",
        padding_as: PaddingAs = "own_segment",
    ) -> Packed:
        """Put all sequences into one row of the output, for padding-free training.

        Parameters
        ----------
        multiple_of, pad_to_multiple_of, pad_to, shift, padding_as
            As in :class:`Packed`.

        Examples
        --------
        >>> fc.Packed.single_row(shift="next_token")
        Packed.single_row(shift='next_token')
        """
        return cls(
            plan="single_row",
            multiple_of=multiple_of,
            pad_to_multiple_of=pad_to_multiple_of,
            pad_to=pad_to,
            shift=shift,
            padding_as=padding_as,
        )

    def __post_init__(self) -> None:
        sizes = self._checked_sizes()
        if self.capacity is None and self.num_bins is None and self.plan is None:
            raise ValueError(
                "capacity and plan are None; pass fc.Packed(capacity=...) for bins of that many "
                "tokens, fc.Packed(num_bins=...) for a number of bins, fc.Packed(plan=...) for "
                "bins of your own, or fc.Packed.single_row()"
            )
        bins = self._packer() if self.plan is None else self._checked_plan()
        self._set("spec", LayoutSpec.packed(*sizes, bins, self.shift, self.padding_as))

    def __repr__(self) -> str:
        options = self._options()
        if options.get("plan") != "single_row":
            return call_text("Packed", options)
        del options["plan"]
        return call_text("Packed.single_row", options)

    def _packer(self) -> PackSpec:
        """Check the options of packing, and compile them."""
        if self.num_bins is not None:
            self._set_count("num_bins", "a number of bins")
            given = {
                "capacity": self.capacity is not None,
                "min_bins": self.min_bins != 0,
                "bins_multiple_of": self.bins_multiple_of != 1,
                "allow_fewer_bins": self.allow_fewer_bins is not False,
                "grow_by": self.grow_by != "move",
                f"algorithm={self.algorithm!r}": self.algorithm == "concat",
                "oversize='split'": self.oversize == "split",
            }
            if wrong := [name for name, is_given in given.items() if is_given]:
                raise ValueError(
                    f"num_bins is {self.num_bins}, which fixes the number of bins and leaves "
                    f"their capacity open, but {wrong[0]} is given, too; leave one of them out"
                )
        return self._compiled(self.num_bins, self.grow_by, uses_cost=self.grow_by == "split")

    def _checked_plan(self) -> Bins | Sequence[Sequence[int]] | None:
        """Check the plan, and return its bins; None for a single one."""
        plan = self.plan
        self._check_bins(plan)
        if isinstance(plan, str) and plan == "single_row":
            return None
        if isinstance(plan, BinPlan) and not isinstance(plan, TreeBins):
            return plan._core
        if isinstance(plan, (list, tuple)):
            bins = tuple(
                tuple(check_indices(f"plan[{index}]", bin_, "sequences").tolist())
                for index, bin_ in enumerate(plan)
            )
            self._set("plan", bins)
            return bins
        raise TypeError(
            f"plan is {describe(plan)}; pass the plan that fastcollate.planning.pack returned, or "
            "a list of rows for each bin"
        )


@suggests_names
@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Tree(BinnedLayout):
    """Several rows in each row of the output, with shared prefixes written once.

    Rows are sorted by their tokens, and each adds the tokens that it does not share with the row
    before it. For the rows ``p q a``, ``p q b c`` and ``p x``, with prompts of one token::

        input_ids       |  p   q   a   b   c   x  PAD |    targets     | q  a | q  b  c | x |
        position_ids    |  0   1   2   2   3   1   0  |    predictors  | 0  1 | 0  1  3 | 0 |
        subtree_end     |  6   5   3   5   5   6   7  |    loss_mask   | r  r | r  r  r | r |
                         <------------- W ----------->

    One position can predict several next tokens, and a token can belong to several rows. So values
    of responses are stored per row. B rows lie in N bins of W positions:

    ``input_ids``, ``position_ids``
        int64 (N, W). Positions are depths in the tree.
    ``subtree_end``
        int32 (N, W), the attention mask: position q attends to k if and only if
        ``k <= q < subtree_end[k]``. Padding attends to itself.
    ``loss_mask`` and other fields of responses
        (response tokens,): one value for each response token of each row, in batch order.
    ``targets``, ``predictors``
        int64 (response tokens,): the ids of these tokens, and the flat (N x W) positions whose
        outputs predict them.
    ``response_offsets``, ``row_bins``
        int64 (B + 1,), where each row's values start, and int64 (B,), its bin.
    a :class:`Field` of whole sequences
        (tokens of all rows,), with ``sequence_offsets``, int64 (B + 1,).
    routed experts
        (N, W, ...). A shared token has the experts of the first of its rows in the tree.

    There are no other masks and no ``cu_seqlens``, and labels only with `fork_early`.

    The first response token of a row without a prompt has no predictor (the value is 0) and does
    not train. Losses equal those of separate rows only if a token's result depends on the preceding
    tokens alone: see :func:`fastcollate.planning.prefix_tree`.

    Parameters
    ----------
    capacity
        Maximum tokens of a bin, counting shared tokens once. Larger trees are cut
        (:meth:`fastcollate.planning.TreePlan.pack`). None puts all rows into one bin.
    plan
        A plan made by :func:`fastcollate.planning.prefix_tree`, to be packed by `capacity`, or
        packed already by :meth:`TreePlan.pack`. Its shared tokens are checked against the rows.
    share
        Without a plan, the tokens that rows may share, as in ``prefix_tree``: ``"all"``,
        ``"group"`` (needs ``uids``) or ``"prompts"``.
    same_inputs
        One id per row, or per merged turn, for non-token inputs such as images: rows with different
        ids share nothing. Without ids, rows with fields of ``PerRow(concat=True)`` share nothing,
        and all other rows have the same inputs.
    fork_early
        True: rows share a token only if they agree on the next one, too, or both end with it. Each
        position then predicts one token, at one token per branch, so the batch can have labels:
        ``shift_labels``, and with ``labels="aligned"`` also ``labels``, an error if two rows train
        the same position.
    min_shared
        Least number of tokens of a shared run, from one fork to the next. Rows share a shorter one
        only up to the fork before it; its tokens count for the runs after it.
    algorithm
        As in :class:`Packed`, except ``"concat"``, which splits rows.
    max_sequences
        Maximum rows of a bin.
    min_bins, bins_multiple_of, allow_fewer_bins
        As in :class:`Packed`. To add bins, the trees of a bin are separated, then cut where that
        duplicates the fewest tokens; ties go to the cut that halves the largest one.
    oversize
        A row that exceeds the capacity, or `max_cost`, by itself: ``"error"`` or ``"own_bin"``.
    max_cost, cost
        Maximum cost of a bin, besides the capacity; shared tokens cost once. ``cost`` is a name,
        :class:`fastcollate.planning.Costs` or a function of lengths; a longer row must not cost
        less. Without `max_cost`, costs with ``per_segment`` or ``per_key`` decide what is shared:
        runs that save more than their segment and the keys on their path cost.
    multiple_of
        Round the width of each whole tree up to a multiple of this; by default as in `plan`.
    pad_to_multiple_of, pad_to
        As in :class:`Packed`.

    Raises
    ------
    ValueError
        A packing option is given without a capacity, a capacity with bins, or `share` with a plan;
        `multiple_of` differs from the plan's; `pad_to` is not a multiple; or an option of packing
        is invalid, splits rows or excludes another.
    TypeError
        An argument has the wrong type.

    Examples
    --------
    >>> fc.Tree(16384, share="group")
    Tree(capacity=16384, share='group')
    """

    name: ClassVar[str] = "tree"

    packs_by: ClassVar[str] = "TreePlan.pack"

    plan: TreePlan | TreeBins | None = None
    share: Share = "all"
    same_inputs: Sequence[Any] | None = None
    fork_early: bool = False
    min_shared: int = 1

    def __post_init__(self) -> None:
        sizes = self._checked_sizes()
        plan = self.plan
        if plan is not None and not isinstance(plan, (TreePlan, TreeBins)):
            raise TypeError(
                f"plan is {describe(plan)}; pass what fastcollate.planning.prefix_tree returned, "
                "or what its pack method did"
            )
        if plan is not None and self.share != "all":
            raise ValueError("share is given, but plan has decided that already; leave share out")
        if not isinstance(self.fork_early, bool):
            raise TypeError(f"fork_early is {describe(self.fork_early)}; pass True or False")
        self._set_count("min_shared", "a number of tokens")
        pack = self._packer()
        costs = self.cost.spec if isinstance(self.cost, Costs) and self._shares_by_cost else None
        ids = None
        if self.same_inputs is not None:
            ids = group_numbers("same_inputs", self.same_inputs)
            self._set("same_inputs", tuple(ids.tolist()))
        source = self.share if plan is None else plan._core
        limits = self.fork_early, self.min_shared, costs
        spec = LayoutSpec.of_tree(*sizes, source, pack, ids, limits)
        self._set("spec", spec)

    def _packer(self) -> PackSpec | None:
        """Check the options of packing, and compile them; None without a capacity."""
        if isinstance(self.plan, TreeBins):
            self._check_bins(self.plan)
            for name, planned in ("fork_early", self.plan.fork_early), ("min_shared", 1):
                if getattr(self, name) not in (planned, getattr(type(self)(), name)):
                    raise ValueError(
                        f"{name} is given, but plan has its bins already; leave {name} out, or "
                        f"pass it to {self.packs_by}"
                    )
            self._set("fork_early", self.plan.fork_early)
            return None
        if self.capacity is None:
            for name in self._given():
                if name == "cost" and self._shares_by_cost:
                    continue
                raise ValueError(
                    f"{name} is given, but capacity is None, so all rows lie in one bin; pass a "
                    f"capacity, or leave {name} out"
                )
            return None
        packer = self._compiled(None, "move", uses_cost=self._shares_by_cost)
        if packer.oversize == "split":
            option = "algorithm='concat'" if self.algorithm == "concat" else "oversize='split'"
            raise ValueError(
                f"{option} splits rows, but bins of trees hold whole rows; pass another algorithm, "
                "and oversize='error' or 'own_bin'"
            )
        return packer

    @property
    def has_limits(self) -> bool:
        """True if rows may share less than all tokens that they have in common."""
        return self.fork_early or self.min_shared > 1 or self._shares_by_cost

    @property
    def _shares_by_cost(self) -> bool:
        """True if the cost decides what rows share."""
        return isinstance(self.cost, Costs) and self.cost.has_paths

    def _check_cost(self) -> None:
        """Check the type of the cost."""
        if not isinstance(self.cost, (str, Costs)) and not callable(self.cost):
            raise ValueError(
                "cost has one number per row, but a tree needs the cost of tokens that rows have "
                "in common; pass cost as a name or a function"
            )


LayoutArgument: TypeAlias = Layout | Literal["left", "right", "two_segment", "jagged", "tree"]
"""A layout or the name of one with defaults. ``Packed`` has none: it needs a capacity."""

_CLASSES: dict[str, type[Layout]] = {
    kind.name: kind for kind in (Left, Right, TwoSegment, Jagged, Packed, Tree)
}
BY_NAME: dict[str, Layout] = {kind.name: kind() for kind in (Left, Right, TwoSegment, Jagged, Tree)}

LEFT = BY_NAME["left"]
JAGGED = BY_NAME["jagged"]


def layout_of(options: Any) -> Layout:
    """Return the layout whose ``to_dict`` returned these options.

    Raises
    ------
    TypeError, ValueError
        `options` is not such a dict, or an option is invalid.
    """
    if not isinstance(options, Mapping):
        raise TypeError(f"options is {describe(options)}; pass the dict that to_dict returned")
    given = dict(options)
    name = given.pop("layout", None)
    if not isinstance(name, str) or (kind := _CLASSES.get(name)) is None:
        raise ValueError(
            f"options['layout'] is {name!r}; pass the dict that Layout.to_dict returned"
        )
    if isinstance(cost := given.get("cost"), Mapping):
        given["cost"] = Costs.from_dict(cost)
    return kind(**given)


def check_layout(layout: Any, planned: Layout | None = None) -> Layout:
    """Return the layout given by an argument.

    Parameters
    ----------
    layout
        A layout or its name.
    planned
        The layout of the shard's step, if any.

    Raises
    ------
    TypeError, ValueError
        `layout` is not a layout, or differs from the planned one.
    """
    if isinstance(planned, BinnedLayout) and isinstance(layout, str) and layout == planned.name:
        return planned
    if isinstance(layout, str) and layout in BY_NAME:
        layout = BY_NAME[layout]
    elif isinstance(layout, str) and layout == "packed":
        if planned is None:
            raise ValueError(
                "layout='packed' does not say which rows share a row of the output; pass "
                "layout=fc.Packed(capacity=...), fc.Packed.single_row() for one row, or the shard "
                "of a step that was planned with such a layout"
            )
    elif not isinstance(layout, Layout):
        is_name = isinstance(layout, str)
        kind, found = (ValueError, show(layout)) if is_name else (TypeError, describe(layout))
        raise kind(
            f"layout is {found}; pass {', '.join(map(repr, BY_NAME))} or a layout with "
            "options, such as fc.Left(pad_to=...) or fc.Packed(capacity=...)"
        )
    if planned is not None and layout != planned:
        raise ValueError(
            f"layout is {layout!r}, but the step was planned with layout={planned!r}; "
            "leave layout out, or pass it to plan_step"
        )
    checked: Layout = layout
    return checked
