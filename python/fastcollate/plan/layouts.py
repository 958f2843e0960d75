"""Layouts: the arrangement of a batch's rows in its outputs, and the options of each."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from fastcollate._fastcollate import PADDING_AS, SHARES, SHIFTS, LayoutSpec, PackSpec, Plan
from fastcollate.arguments import check_choice, checked_count, counted, suggests_names
from fastcollate.arrays import describe
from fastcollate.plan.bin_plan import BinPlan
from fastcollate.plan.costs import NAMED_COSTS, CostArgument, Costs
from fastcollate.plan.grouping import group_numbers
from fastcollate.plan.lengths import checked_indices
from fastcollate.plan.packing import Algorithm, Growth, Oversize, Packer
from fastcollate.plan.tables import Table
from fastcollate.plan.tree_bins import TreeBins
from fastcollate.plan.tree_plan import TreePlan, checked_tree_packer

Share: TypeAlias = Literal["all", "group", "prompts"]
"""The tokens that rows of a tree may share."""
Shift: TypeAlias = Literal["none", "next_token"]
PaddingAs: TypeAlias = Literal["own_segment", "last_segment", "no_segment"]

L = TypeVar("L", bound="Layout")


class Layout:
    """Base class of layouts: small frozen values, validated on construction.

    Two layouts are equal if their classes and all options are.
    """

    __slots__ = ("spec",)

    name: ClassVar[str]
    """The layout's name as a string argument."""

    spec: LayoutSpec
    """The compiled form, built once."""

    def to_dict(self) -> dict[str, Any]:
        """Return the layout as a JSON-compatible dict.

        Returns
        -------
        dict
            ``"layout"``, the name, and the options that differ from their defaults.

        Raises
        ------
        TypeError
            An option is a function: pickle the layout instead.
        """
        return {"layout": self.name} | {
            name: _plain(name, value) for name, value in self._options().items()
        }

    @classmethod
    def from_dict(cls: type[L], options: Mapping[str, Any]) -> L:
        """Return the layout that :meth:`to_dict` wrote.

        Raises
        ------
        TypeError, ValueError
            `options` is not such a dict, or an option is invalid.
        """
        if not isinstance(options, Mapping):
            raise TypeError(f"options is {describe(options)}; pass the dict that to_dict returned")
        given = dict(options)
        name = given.pop("layout", None)
        kind = _CLASSES.get(name) if isinstance(name, str) else None
        if kind is None or not issubclass(kind, cls):
            raise ValueError(
                f"options['layout'] is {name!r}; pass the dict that {cls.__name__}.to_dict returned"
            )
        if isinstance(plan := given.get("plan"), Mapping):
            given["plan"] = kind._plan_of(plan)
        if isinstance(cost := given.get("cost"), Mapping):
            given["cost"] = Costs.from_dict(cost)
        return kind(**given)

    @staticmethod
    def _plan_of(tables: Mapping[str, Any]) -> Any:
        """Return the plan with these tables."""
        return BinPlan.from_dict(tables)

    def row_width(
        self, widths: tuple[int, int, int], bin_width: int | None, has_only_totals: bool
    ) -> int | None:
        """Return the width of an output row in positions; None if rows lie end to end.

        Parameters
        ----------
        widths
            Token counts of the longest prompt, response and row.
        bin_width
            Width of the widest bin, if there are bins.
        has_only_totals
            True if only total row lengths are known.
        """
        width = self._rounded(widths[2] if bin_width is None else bin_width)
        return max(width, getattr(self, "pad_to", None) or 0)

    def _rounded(self, width: int) -> int:
        multiple = getattr(self, "multiple_of", None) or 1
        return -(-width // multiple) * multiple

    def __reduce__(self) -> tuple[Callable[..., Layout], tuple[Any, ...]]:
        return _restored, (type(self), self._options())

    def __repr__(self) -> str:
        return _call(type(self).__name__, self._options())

    def _options(self) -> dict[str, Any]:
        """Return the options that differ from their defaults."""
        return {
            option.name: value
            for option in fields(self)  # type: ignore[arg-type]
            if (value := getattr(self, option.name)) is not option.default
            and (option.default is None or _differ(value, option.default))
        }

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_widths(self, *widths: str, rounded: Sequence[str]) -> None:
        """Check fixed widths, and that the `rounded` ones are multiples of ``multiple_of``."""
        for name in widths:
            if (width := getattr(self, name)) is not None:
                self._set(name, checked_count(name, width, "a number of tokens", least=0))
        name = "multiple_of"
        multiple = checked_count(name, getattr(self, name), "a number of tokens")
        self._set(name, multiple)
        for name in rounded:
            if (width := getattr(self, name) or 0) % multiple:
                raise ValueError(
                    f"{name} is {width}, but multiple_of is {multiple}; "
                    f"pass a multiple of {multiple} as {name}"
                )


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class _OneBlock(Layout):
    """Base of layouts with prompts and responses in one block."""

    pad_to: int | None = None
    pad_response_to: int | None = None
    multiple_of: int = 1

    def __post_init__(self) -> None:
        self._check_widths("pad_to", "pad_response_to", rounded=["pad_to"])
        widths = (self.pad_to, None, self.pad_response_to)
        self._set("spec", LayoutSpec(self.name, *widths, self.multiple_of))


@suggests_names
@dataclass(frozen=True, repr=False, kw_only=True)
class Left(_OneBlock):
    """One left-padded block; response-aligned fields are right-aligned. SkyRL's layout.

    With ``B`` rows, ``W = max(prompt + response)`` and ``R = max(response)``::

        input_ids       | PAD PAD  p   p   r   r  |      loss_mask  |  0   r   r  |
                        |  p   p   p   r   r   r  |                 |  r   r   r  |
                         <---------- W ---------->                   <---- R --->

    Response values are aligned with ``log_probs[:, -R - 1 : -1]``.

    Parameters
    ----------
    pad_to
        Fixed ``W``, equal on all data-parallel ranks. A longer row is an error.
    pad_response_to
        Fixed ``R``, and a lower bound of ``W``.
    multiple_of
        Round ``W`` up to a multiple of this.

    Raises
    ------
    ValueError
        A width is below 0, `multiple_of` is below 1, or `pad_to` is not a multiple of it.
    TypeError
        An argument is not an integer.

    Examples
    --------
    >>> fc.Left(pad_to=4096, multiple_of=64)
    Left(pad_to=4096, multiple_of=64)
    """

    __slots__ = ()

    name: ClassVar[str] = "left"


@suggests_names
@dataclass(frozen=True, repr=False, kw_only=True)
class Right(_OneBlock):
    """One right-padded block.

    With ``B`` rows, ``W = max(prompt + response)`` and ``R = max(response)``::

        input_ids       |  p   p   r   r  PAD PAD |      loss_mask  |  r   r   0  |
                        |  p   p   p   r   r   r  |                 |  r   r   r  |
                         <---------- W ---------->                   <---- R --->

    Parameters
    ----------
    pad_to, pad_response_to, multiple_of
        As in :class:`Left`.

    Raises
    ------
    ValueError, TypeError
        As in :class:`Left`.
    """

    __slots__ = ()

    name: ClassVar[str] = "right"


@suggests_names
@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class TwoSegment(Layout):
    """Left-padded prompts, then right-padded responses. verl's layout.

    With ``B`` rows, ``P = max(prompt)``, ``R = max(response)`` and ``W = P + R``::

        input_ids       | PAD  p   p   r   r  PAD |      loss_mask  |  r   r   0  |
                        |  p   p   p   r   r   r  |                 |  r   r   r  |
                         <--- P --->   <--- R --->                   <---- R --->

    Parameters
    ----------
    pad_prompt_to, pad_response_to
        Fixed ``P`` and ``R``, equal on all data-parallel ranks. A longer prompt or response is an
        error.
    multiple_of
        Round ``P`` and ``R`` each up to a multiple of this.

    Raises
    ------
    ValueError
        A width is below 0, `multiple_of` is below 1, or a fixed width is not a multiple of it.
    TypeError
        An argument is not an integer.
    """

    name: ClassVar[str] = "two_segment"

    pad_prompt_to: int | None = None
    pad_response_to: int | None = None
    multiple_of: int = 1

    def __post_init__(self) -> None:
        widths = "pad_prompt_to", "pad_response_to"
        self._check_widths(*widths, rounded=widths)
        fixed = (None, self.pad_prompt_to, self.pad_response_to)
        self._set("spec", LayoutSpec(self.name, *fixed, self.multiple_of))

    def row_width(
        self, widths: tuple[int, int, int], bin_width: int | None, has_only_totals: bool
    ) -> int | None:
        """Return the width of an output row in positions: of prompt and response together."""
        if has_only_totals:
            return Layout.row_width(self, widths, bin_width, has_only_totals)
        both = self.pad_prompt_to or widths[0], self.pad_response_to or widths[1]
        return sum(map(self._rounded, both))


@suggests_names
@dataclass(frozen=True, slots=True, repr=False)
class Jagged(Layout):
    """Rows end to end without padding, for variable-length attention.

    For two rows::

        input_ids       |  p   p   r   r  |  p   p   p   r   r   r  |
        loss_mask       |  r   r  |  r   r   r  |

    ``input_ids``, int64 (tokens,), come with the rows' ``offsets``, int64 (B + 1,), the same
    offsets as ``cu_seqlens``, int32, and ``max_seqlen``, an int. Per-token fields are
    (tokens, ...). Response-aligned fields are (response tokens, ...), with ``response_offsets``,
    int64 (B + 1,). ``loss_mask`` is the only mask.
    """

    name: ClassVar[str] = "jagged"

    def __post_init__(self) -> None:
        self._set("spec", LayoutSpec(self.name, None, None, None, 1))

    def row_width(
        self, widths: tuple[int, int, int], bin_width: int | None, has_only_totals: bool
    ) -> int | None:
        """Return None: rows lie end to end."""
        return None


@suggests_names
@dataclass(frozen=True, slots=True, repr=False)
class Packed(Layout):
    """Several sequences in each row of the output, called a *bin*.

    B sequences lie in N bins of W positions, and all per-token outputs are (N, W, ...)::

        input_ids       |  p   p   r   r   p   r  PAD |
        loss_mask       |  0   0   r   r   0   r   0  |
                         <------------ W ------------>

    ``position_ids`` and ``sequence_ids``, int64 (N, W), are included: the position of each
    token in its sequence, and its row in the batch, -1 on padding. ``cu_seqlens``, int32
    (segments + 1,), holds the offsets of attention segments over all bins laid end to end,
    ``row_cu_seqlens`` the offsets in each bin, a list of N int32 arrays, and ``max_seqlen``, an
    int, the longest segment. With `multiple_of`, these count tokens, and ``cu_seqlens_padded``,
    ``row_cu_seqlens_padded`` and ``max_seqlen_padded`` count rounded widths. There is no
    ``attention_mask``: Hugging Face models detect packed batches by its absence, without a cache.
    ``response_mask``, ``loss_mask`` and labels are as wide as ``input_ids``; :class:`PerRow`
    fields, names and ``prompt_lens`` belong to the B sequences, in batch order.

    Parameters
    ----------
    capacity
        Maximum tokens of a bin, packed by :func:`fastcollate.planning.pack`.
        :func:`plan_step` packs each mini-batch separately.
    plan
        The bins, instead of a capacity: a plan made by ``pack`` for the lengths of these rows, or
        a list of rows per bin.
    num_bins
        The number of bins, instead of a capacity, as in ``pack``: bins are as narrow as possible.
        In :func:`plan_step`, the number of bins per rank.
    algorithm, max_sequences, min_bins, bins_multiple_of, grow_by, oversize, max_cost, cost
        With `capacity`, as in ``pack``. For one cost per row, or rows to keep together, pass the
        plan that ``pack`` makes with them.
    multiple_of
        Round the width of each sequence up to a multiple of this; by default that of `plan`.
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
        ``position_ids``: ``"own_segment"``, a separate sequence; ``"last_segment"``, part of the
        last one; ``"no_segment"``, left out of ``cu_seqlens``, with positions of 0.

    Raises
    ------
    ValueError
        None or several of `capacity`, `num_bins` and `plan` are given; a packing option is given
        with a plan; `multiple_of` differs from the plan's; `pad_to` is not a multiple; or ``pack``
        rejects the options.
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

    capacity: int | None = None
    _: KW_ONLY
    num_bins: int | None = None
    plan: BinPlan | Sequence[Sequence[int]] | Literal["single_row"] | None = None
    algorithm: Algorithm = "ffd"
    max_sequences: int | None = None
    min_bins: int = 0
    bins_multiple_of: int = 1
    grow_by: Growth = "moving"
    oversize: Oversize | None = None
    max_cost: float | None = None
    cost: Literal["flops", "tokens"] | CostArgument = "flops"
    multiple_of: int = 1
    pad_to: int | None = None
    shift: Shift = "none"
    padding_as: PaddingAs = "own_segment"

    @classmethod
    def single_row(
        cls,
        *,
        multiple_of: int = 1,
        pad_to: int | None = None,
        shift: Shift = "none",
        padding_as: PaddingAs = "own_segment",
    ) -> Packed:
        """Put all sequences into one row of the output, for padding-free training.

        Parameters
        ----------
        multiple_of, pad_to, shift, padding_as
            As in :class:`Packed`.

        Examples
        --------
        >>> fc.Packed.single_row(shift="next_token")
        Packed.single_row(shift='next_token')
        """
        return cls(
            plan="single_row",
            multiple_of=multiple_of,
            pad_to=pad_to,
            shift=shift,
            padding_as=padding_as,
        )

    def __post_init__(self) -> None:
        self._check_widths("pad_to", rounded=["pad_to"])
        check_choice("shift", self.shift, SHIFTS)
        check_choice("padding_as", self.padding_as, PADDING_AS)
        if self.capacity is None and self.num_bins is None and self.plan is None:
            raise ValueError(
                "capacity and plan are None; pass fc.Packed(capacity=...) for bins of that many "
                "tokens, fc.Packed(num_bins=...) for a number of bins, fc.Packed(plan=...) for "
                "bins of your own, or fc.Packed.single_row()"
            )
        if self.plan is None:
            self._check_packing()
        else:
            self._set("plan", self._checked_plan())
        spec = LayoutSpec(
            *(self.name, self.pad_to, None, None, self.multiple_of),
            self._bins(),
            self.shift,
            self.padding_as,
        )
        self._set("spec", spec)

    def row_width(
        self, widths: tuple[int, int, int], bin_width: int | None, has_only_totals: bool
    ) -> int | None:
        """Return the width of an output row in positions; None before there are bins."""
        if bin_width is None:
            return None
        return Layout.row_width(self, widths, bin_width, has_only_totals)

    @property
    def packer(self) -> Packer:
        """The packer with these options."""
        options = {name: getattr(self, name) for name in _PACKING}
        return Packer.of(self.capacity, multiple_of=self.multiple_of, **options)

    def __repr__(self) -> str:
        options = self._options()
        if options.get("plan") != "single_row":
            return _call("Packed", options)
        del options["plan"]
        return _call("Packed.single_row", options)

    def _check_packing(self) -> None:
        """Check the options of packing, and keep numbers as such."""
        if not isinstance(self.cost, (str, Costs)) and not callable(self.cost):
            raise TypeError(
                f"cost is {describe(self.cost)}; pass {', '.join(map(repr, NAMED_COSTS))}, "
                "fc.planning.Costs(...), a "
                "function of lengths or, for one cost per row, "
                "plan=fastcollate.planning.pack(lengths, ..., cost=...)"
            )
        if isinstance(self.cost, str):
            check_choice("cost", self.cost, NAMED_COSTS)
        packer = self.packer
        if self.num_bins is None:
            self._set("capacity", packer.capacity)
        self._set("num_bins", packer.num_bins)
        self._set("min_bins", packer.min_bins)
        self._set("bins_multiple_of", packer.bins_multiple_of)
        if self.max_sequences is not None:
            self._set("max_sequences", packer.max_sequences)
        if self.max_cost is not None:
            self._set("max_cost", packer.max_cost)

    def _checked_plan(self) -> BinPlan | tuple[tuple[int, ...], ...] | str:
        _refuse_packing(self._options(), ("capacity", *_PACKING), "pack")
        plan = self.plan
        if isinstance(plan, BinPlan):
            _check_multiple(self, plan)
            return plan
        if isinstance(plan, str) and plan == "single_row":
            return plan
        if isinstance(plan, (list, tuple)):
            return tuple(
                tuple(checked_indices(f"plan[{index}]", bin_, "sequences").tolist())
                for index, bin_ in enumerate(plan)
            )
        raise TypeError(
            f"plan is {describe(plan)}; pass the plan that fastcollate.planning.pack returned, or "
            "a list of rows for each bin"
        )

    def _bins(self) -> PackSpec | BinPlan | Sequence[Sequence[int]] | None:
        """Return the source of the bins; None for a single bin."""
        if self.plan is None:
            return self.packer.spec
        return None if isinstance(self.plan, str) else self.plan


@suggests_names
@dataclass(frozen=True, slots=True, repr=False)
class Tree(Layout):
    """Several rows in each row of the output, with shared prefixes written once.

    Rows are sorted by their tokens, and each adds the tokens that it does not share with the row
    before it. For the rows ``p q a``, ``p q b c`` and ``p x``, with prompts of one token::

        input_ids       |  p   q   a   b   c   x  PAD |    targets     | q  a | q  b  c | x |
        position_ids    |  0   1   2   2   3   1   0  |    predictors  | 0  1 | 0  1  3 | 0 |
        subtree_end     |  6   5   3   5   5   6   7  |    loss_mask   | r  r | r  r  r | r |
                         <------------- W ----------->

    B rows lie in N bins of W positions. ``input_ids`` and ``position_ids``, the depth of each token
    in its rows, are int64 (N, W). ``subtree_end``, int32 (N, W), is the attention mask: position q
    attends to k if and only if ``k <= q < subtree_end[k]``. Padding attends to itself.

    A position can predict several next tokens, and a token can belong to several rows. So
    response-aligned fields, including ``loss_mask``, are (response tokens,), one value for each
    response token of each row, in batch order. ``targets``, the token ids, and ``predictors``,
    int64, have the same shape: a predictor is the flat (N x W) position whose output predicts the
    token. ``response_offsets``, int64 (B + 1,), holds the start of each row's values, and
    ``row_bins``, int64 (B,), the bin of each row. A :class:`Field` of whole sequences is (tokens of
    all rows,), with ``sequence_offsets``, int64 (B + 1,). Routed experts are (N, W, ...); those of
    a shared token come from the first of its rows in the tree. There are no other masks, no
    ``labels`` and no ``cu_seqlens``.

    The first response token of a row without a prompt has no predictor (the value is 0) and does
    not train. Losses equal those of separate rows only if each token's result depends
    on the tokens before it alone: see :func:`fastcollate.planning.prefix_tree`.

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
    algorithm, max_sequences, min_bins, bins_multiple_of, oversize, max_cost, cost
        With `capacity`, as in ``TreePlan.pack``.
    multiple_of
        Round the width of each whole tree up to a multiple of this; by default that of `plan`.
    pad_to
        Fixed ``W``; by default the width of the fullest bin. A fuller bin is an error.

    Raises
    ------
    ValueError
        A packing option is given without a capacity, a capacity with bins, or `share` with a plan;
        `multiple_of` differs from the plan's; `pad_to` is not a multiple; or ``TreePlan.pack``
        rejects the options.
    TypeError
        An argument has the wrong type.

    Examples
    --------
    >>> fc.Tree(16384, share="group")
    Tree(capacity=16384, share='group')
    """

    name: ClassVar[str] = "tree"

    capacity: int | None = None
    _: KW_ONLY
    plan: TreePlan | TreeBins | None = None
    share: Share = "all"
    same_inputs: Sequence[Any] | None = None
    algorithm: Algorithm = "ffd"
    max_sequences: int | None = None
    min_bins: int = 0
    bins_multiple_of: int = 1
    oversize: Oversize | None = None
    max_cost: float | None = None
    cost: Literal["flops", "tokens"] | CostArgument = "flops"
    multiple_of: int = 1
    pad_to: int | None = None

    def __post_init__(self) -> None:
        self._check_widths("pad_to", rounded=["pad_to"])
        check_choice("share", self.share, SHARES)
        plan = self.plan
        if plan is not None and not isinstance(plan, (TreePlan, TreeBins)):
            raise TypeError(
                f"plan is {describe(plan)}; pass what fastcollate.planning.prefix_tree returned, "
                "or what its pack method did"
            )
        if plan is not None and self.share != "all":
            raise ValueError("share is given, but plan has decided that already; leave share out")
        self._check_packing()
        ids = None
        if self.same_inputs is not None:
            ids = group_numbers("same_inputs", self.same_inputs)
            self._set("same_inputs", tuple(ids.tolist()))
        source = plan._core if isinstance(plan, TreePlan) else plan or self.share
        pack = None if self.capacity is None else self.packer.spec
        spec = LayoutSpec.of_tree(self.pad_to, self.multiple_of, source, pack, ids)
        self._set("spec", spec)

    @property
    def packer(self) -> Packer:
        """The packer with these options."""
        options = {name: getattr(self, name) for name in _TREE_PACKING}
        return checked_tree_packer(self.capacity, multiple_of=self.multiple_of, **options)

    def _check_packing(self) -> None:
        """Check the options of packing, and keep numbers as such."""
        given, plan = self._options(), self.plan
        if isinstance(plan, TreeBins):
            _refuse_packing(given, ("capacity", *_TREE_PACKING), "TreePlan.pack")
            _check_multiple(self, plan)
        elif self.capacity is not None:
            if isinstance(self.cost, str):
                check_choice("cost", self.cost, NAMED_COSTS)
            packer = self.packer
            for name in ("capacity", *_TREE_PACKING):
                if name in given and name not in ("oversize", "cost"):
                    self._set(name, getattr(packer, name))
        elif wrong := [name for name in _TREE_PACKING if name in given]:
            raise ValueError(
                f"{wrong[0]} is given, but capacity is None, so all rows lie in one bin; pass a "
                f"capacity, or leave {wrong[0]} out"
            )

    @staticmethod
    def _plan_of(tables: Mapping[str, Any]) -> TreePlan | TreeBins:
        return (TreePlan if "order" in tables else TreeBins).from_dict(tables)


_PACKING = (
    "num_bins",
    "algorithm",
    "max_sequences",
    "min_bins",
    "bins_multiple_of",
    "grow_by",
    "oversize",
    "max_cost",
    "cost",
)
"""Packing options of :class:`Packed`."""

_TREE_PACKING = tuple(name for name in _PACKING if name not in ("num_bins", "grow_by"))
"""Packing options of :class:`Tree`."""


def _differ(value: Any, default: Any) -> bool:
    """Return whether an option differs from its default."""
    try:
        return bool(value != default)
    except ValueError:  # of an array, which no option is
        return True


def _refuse_packing(given: Iterable[str], names: Iterable[str], function: str) -> None:
    """Reject packing options given with a plan of bins."""
    for name in names:
        if name in given:
            raise ValueError(
                f"{name} is given, but plan has its bins already; leave {name} out, or pass it "
                f"to fastcollate.planning.{function}"
            )


def _check_multiple(layout: Packed | Tree, plan: BinPlan | TreeBins) -> None:
    """Check that a layout and its plan round alike."""
    if layout.multiple_of not in (1, plan.multiple_of):
        raise ValueError(
            f"multiple_of is {layout.multiple_of}, but plan was made with "
            f"multiple_of={plan.multiple_of}; leave multiple_of out"
        )


LayoutArgument: TypeAlias = (
    Layout | Literal["left", "right", "two_segment", "jagged", "packed", "tree"]
)
"""A layout or its name. ``"packed"`` has no defaults: it names the layout of a shard's step."""

_CLASSES: dict[str, type[Layout]] = {
    kind.name: kind for kind in (Left, Right, TwoSegment, Jagged, Packed, Tree)
}
BY_NAME: dict[str, Layout] = {kind.name: kind() for kind in (Left, Right, TwoSegment, Jagged, Tree)}

LEFT = BY_NAME["left"]
JAGGED = BY_NAME["jagged"]


def checked_layout(layout: Any, planned: Layout | None = None) -> Layout:
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
    if isinstance(planned, (Packed, Tree)) and isinstance(layout, str) and layout == planned.name:
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
        kind, found = (ValueError, repr(layout)) if is_name else (TypeError, describe(layout))
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


def split_message(plan: Plan) -> str | None:
    """Return a warning about response tokens left out at splits; None if there are none."""
    if plan.num_lost == 0:
        return None
    tokens = counted(plan.num_lost, "response token")
    return (
        f"{tokens} come first in a part of a sequence that packing split, so no position holds "
        "their values with shift='next_token' and these are left out; pack without splitting, or "
        "pass shift='none'"
    )


def _restored(kind: type[Layout], options: dict[str, Any]) -> Layout:
    """Return the layout restored from a pickle."""
    return kind(**options)


def _plain(name: str, value: Any) -> Any:
    """Return an option as a JSON-compatible value."""
    if isinstance(value, (Table, Costs)):
        return value.to_dict()
    if isinstance(value, tuple):
        return [list(item) if isinstance(item, tuple) else item for item in value]
    if callable(value):
        raise TypeError(
            f"{name} is a function, {describe(value)}, which JSON cannot hold; pickle the layout "
            f"or the plan instead, or pass {name} by name"
        )
    return value


def _call(name: str, options: Mapping[str, Any]) -> str:
    """Return the source text of a call with these options."""

    def shown(value: Any) -> str:
        if isinstance(value, Table):
            return f"<{value!r}>"
        return reprlib.repr(value) if isinstance(value, tuple) else repr(value)

    return f"{name}({', '.join(f'{name}={shown(value)}' for name, value in options.items())})"
