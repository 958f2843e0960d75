"""The base of layouts with bins: the options of packing, checked once."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastcollate._fastcollate import PackSpec, Plan
from fastcollate.common.arguments import check_bool, check_count, check_number, tally
from fastcollate.common.arrays import describe
from fastcollate.plan.bin_plan import BinPlan
from fastcollate.plan.costs import CostArgument, Costs, costs_of, is_function
from fastcollate.plan.layout import Layout
from fastcollate.rows.lengths import Integers

Algorithm: TypeAlias = Literal[
    "ffd", "stable_ffd", "ff", "bfd", "mffd", "next_fit", "concat", "balanced"
]
Oversize: TypeAlias = Literal["error", "own_bin", "split"]
Growth: TypeAlias = Literal["move", "split"]


@dataclass(frozen=True, slots=True, repr=False)
class BinnedLayout(Layout):
    """Base of layouts whose output rows are bins of rows.

    It has the options of packing, so the same object packs by hand.
    """

    packs_by: ClassVar[str]
    """The function that packs with this layout."""

    capacity: int | None = None
    _: KW_ONLY
    plan: Any = None
    algorithm: Algorithm = "ffd"
    max_sequences: int | None = None
    min_bins: int = 0
    bins_multiple_of: int = 1
    allow_fewer_bins: bool = False
    oversize: Oversize | None = None
    max_cost: float | None = None
    cost: Literal["flops", "tokens"] | CostArgument = "flops"
    multiple_of: int = 1
    pad_to_multiple_of: int = 1
    pad_to: int | None = None

    @property
    def packer(self) -> PackSpec | None:
        """The compiled options of packing; None if rows are not packed by length."""
        return self.spec.packer

    def _checked_sizes(self) -> tuple[int | None, int, int]:
        """Check the fixed width and what widths are rounded up to, and return them."""
        self._check_widths("pad_to", rounded=["pad_to"])
        self._check_widths(rounded=["pad_to"], multiple="pad_to_multiple_of")
        return self.pad_to, self.width_multiple, self.multiple_of

    @property
    def width_multiple(self) -> int:
        """What the width is rounded up to: a multiple of both options."""
        if self.pad_to_multiple_of == 1:
            return 1  # places of rows are rounded
        planned = getattr(self.plan, "multiple_of", 1)
        return math.lcm(self.pad_to_multiple_of, self.multiple_of, planned)

    def packing_costs(self, lengths: Integers) -> NDArray[np.float64] | None:
        """Return the costs of sequences of the given lengths; None if packing uses none."""
        if self.max_cost is None and getattr(self, "grow_by", "move") == "move":
            return None
        return costs_of("cost", self.cost, lengths, "sequence")

    def _compiled(self, num_bins: int | None, grow_by: Any, *, uses_cost: bool) -> PackSpec:
        """Check the options of packing, keep numbers as such, and compile them.

        Without a limit, costs are an error unless something else uses them.
        """
        self._check_cost()
        cost: Any = self.cost
        if isinstance(cost, Costs):
            cost = cost.spec
        elif callable(cost):
            cost = partial(costs_of, "cost", cost, noun="sequence")
        if num_bins is None:
            self._set_count("capacity", "a number of tokens")
        if self.max_sequences is not None:
            self._set_count("max_sequences", "a number of sequences")
        check_count("multiple_of", self.multiple_of, "a number of tokens", bits=32)
        self._set_count("min_bins", "a number of bins", least=0)
        self._set_count("bins_multiple_of", "a number of bins")
        check_bool("allow_fewer_bins", self.allow_fewer_bins)
        spec = PackSpec(
            self.algorithm,
            self.oversize,
            self.capacity,
            self.max_sequences,
            self.multiple_of,
            self._checked_max_cost(uses_cost),
            cost,
            self.min_bins,
            self.bins_multiple_of,
            grow_by,
            num_bins,
            self.allow_fewer_bins,
        )
        if self.algorithm == "concat":
            if spec.oversize != "split":
                raise ValueError(
                    f"oversize is {spec.oversize!r}, but algorithm='concat' splits sequences; "
                    "leave oversize out, or pass algorithm='next_fit'"
                )
            if self.max_cost is not None:
                self.check_whole("max_cost")
        return spec

    def check_whole(self, name: str) -> None:
        """Reject an option that is incompatible with cutting sequences at any token."""
        if self.algorithm == "concat":
            raise ValueError(
                f"{name} is given, but algorithm='concat' cuts sequences at any token; leave "
                f"{name} out, or pass another algorithm"
            )

    def _set_count(self, name: str, advice: str, **limits: int) -> None:
        self._set(name, check_count(name, getattr(self, name), advice, **limits))

    def _check_cost(self) -> None:
        """Check the type of the cost."""
        if not isinstance(self.cost, (str, Costs)) and not is_function(self.cost):
            raise TypeError(
                f"cost is {describe(self.cost)}; pass 'tokens', 'flops', fc.planning.Costs(...), a "
                "function of lengths or, for one cost per row, "
                "plan=fastcollate.planning.pack(lengths, fc.Packed(...), costs=...)"
            )

    def _checked_max_cost(self, uses_cost: bool) -> float:
        """Return the limit of costs, infinity if there is none; keep it as a float."""
        limit, cost = self.max_cost, self.cost
        if limit is None:
            if not uses_cost and not (isinstance(cost, str) and cost == "flops"):
                raise ValueError(
                    "cost is given, but max_cost is None; pass both, or grow_by='split' (ranks "
                    "of a step are balanced by shard_by of plan_step)"
                )
            return math.inf
        most = check_number("max_cost", limit)
        per_bin = cost.per_bin if isinstance(cost, Costs) else 0.0
        if not most > per_bin:
            beside = f", the per_bin of {cost!r}" if per_bin > 0 else ""
            raise ValueError(f"max_cost is {most:g}; pass a number above {per_bin:g}{beside}")
        self._set("max_cost", most)
        return most

    def _given(self) -> list[str]:
        """Return the options of packing that are given."""
        own = {"plan", "multiple_of", "pad_to", "shift", "padding_as", "share", "same_inputs"}
        own |= {"pad_to_multiple_of", "fork_early", "min_shared"}
        return [name for name in self._options() if name not in own]

    def _check_bins(self, plan: Any) -> None:
        """Check that no option of packing is given with a plan, and that both round alike."""
        for name in self._given():
            raise ValueError(
                f"{name} is given, but plan has its bins already; leave {name} out, or pass it "
                f"to fastcollate.planning.{self.packs_by}"
            )
        if isinstance(plan, BinPlan) and self.multiple_of not in (1, plan.multiple_of):
            raise ValueError(
                f"multiple_of is {self.multiple_of}, but plan was made with "
                f"multiple_of={plan.multiple_of}; leave multiple_of out"
            )


def split_message(plan: Plan) -> str | None:
    """Return a warning about response tokens left out at splits; None if there are none."""
    if plan.num_lost == 0:
        return None
    tokens = tally(plan.num_lost, "response token")
    return (
        "packing split sequences: with shift='next_token' no position holds the value of a part's "
        f"first token, so the values of {tokens} are left out; pack without splitting, or pass "
        "shift='none'"
    )
