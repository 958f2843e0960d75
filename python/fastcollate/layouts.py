"""Layouts and the widths that do not come from the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fastcollate._fastcollate import LayoutSpec, Plan
from fastcollate.arguments import checked_int, counted
from fastcollate.arrays import describe
from fastcollate.plan.bin_plan import BinPlan
from fastcollate.plan.lengths import Integers
from fastcollate.plan.packing import checked_options
from fastcollate.plan.packing import pack as pack_bins

if TYPE_CHECKING:
    from fastcollate.plan.step_plan import Shard

PackArgument: TypeAlias = BinPlan | Mapping[str, Any] | Sequence[Sequence[int]] | None
Shift: TypeAlias = Literal["none", "next_token"]
Tail: TypeAlias = Literal["extra_segment", "extend_last", "outside"]

LAYOUTS = ("left", "two_segment", "right", "jagged", "packed")
"""All layouts."""

AS_TOKENS_LIE = ("none", "extra_segment")
"""`shift` and `tail` if nothing is said of them."""

LEFT = LayoutSpec("left", None, None, None, 1)
"""The left layout with all widths from the data."""


def checked_layout(
    name: str,
    pad_to: int | None,
    max_prompt_len: int | None,
    max_response_len: int | None,
    pad_to_multiple_of: int,
    pack: PackArgument = None,
    shift: Shift = "none",
    tail: Tail = "extra_segment",
    rows: Literal["single"] | None = None,
    shard: Shard | None = None,
) -> LayoutSpec:
    """Check the arguments of a layout, also against each other."""
    arguments = (name, pad_to, max_prompt_len, max_response_len, pad_to_multiple_of)
    is_packed = pack is not None or rows is not None or (shift, tail) != AS_TOKENS_LIE
    if arguments == ("left", None, None, None, 1) and not is_packed and shard is None:
        return LEFT  # spares small batches the time
    if name not in LAYOUTS:
        names = ", ".join(map(repr, LAYOUTS[:-1]))
        raise ValueError(f"layout is {name!r}; pass {names} or {LAYOUTS[-1]!r}")
    widths = {
        "pad_to": pad_to,
        "max_prompt_len": max_prompt_len,
        "max_response_len": max_response_len,
        "pad_to_multiple_of": pad_to_multiple_of,
    }
    for argument, value in widths.items():
        if value is None and argument != "pad_to_multiple_of":
            continue
        least = 1 if argument == "pad_to_multiple_of" else 0
        widths[argument] = width = checked_int(argument, value, "a number of tokens")
        if width < least:
            raise ValueError(f"{argument} is {value}; pass a number from {least} on")
    if name == "jagged":
        defaults = {**dict.fromkeys(widths), "pad_to_multiple_of": 1}
        given = [argument for argument, value in widths.items() if value != defaults[argument]]
        if given:
            raise ValueError(
                f"{given[0]} is about widths, but layout='jagged' pads nothing; leave it out"
            )
    if name == "two_segment" and pad_to is not None:
        raise ValueError(
            "pad_to fixes the width of one block, but layout='two_segment' has two; "
            "pass max_prompt_len and max_response_len"
        )
    if name != "two_segment" and max_prompt_len is not None:
        raise ValueError(
            f"max_prompt_len fixes the width of prompts, which layout={name!r} has not; pass pad_to"
        )
    multiple = widths["pad_to_multiple_of"] or 1
    rounded = ["max_prompt_len", "max_response_len"] if name == "two_segment" else ["pad_to"]
    for argument in rounded:
        if (widths[argument] or 0) % multiple:
            raise ValueError(
                f"{argument} is {widths[argument]}, "
                f"which is no multiple of pad_to_multiple_of={multiple}"
            )
    if name != "packed":
        if getattr(shard, "bin_offsets", None) is not None:
            raise ValueError(
                f"the step was planned with pack=, so that ranks have as many bins, not rows; "
                f"pass layout='packed' instead of {name!r}"
            )
        if is_packed:
            options = {"pack": pack is not None, "shift": shift != "none"}
            options["rows='single'"] = rows is not None
            option = next((option for option, is_given in options.items() if is_given), "tail")
            raise ValueError(f"{option} is for layout='packed', but layout is {name!r}")
        return LayoutSpec(*arguments)
    if max_response_len is not None:
        raise ValueError(
            "max_response_len fixes the width of responses, but with layout='packed' fields are as "
            "wide as sequences; pass pad_to"
        )
    return LayoutSpec(
        *arguments, _checked_pack(pack, multiple, rows, shard), *_checked_how(shift, tail)
    )


def _checked_how(shift: Any, tail: Any) -> tuple[str, str]:
    for name, value, values in (
        ("shift", shift, ("none", "next_token")),
        ("tail", tail, ("extra_segment", "extend_last", "outside")),
    ):
        if not isinstance(value, str) or value not in values:
            raise ValueError(f"{name} is {value!r}; pass {' or '.join(map(repr, values))}")
    return shift, tail


def _checked_pack(
    pack: Any, multiple: int, rows: Any, shard: Shard | None
) -> Callable[[Integers], BinPlan] | None:
    """Return what makes bins of lengths; None for those of the shard, or for a single one."""
    has_bins = getattr(shard, "bin_offsets", None) is not None
    if rows is not None:
        if not isinstance(rows, str) or rows != "single":
            raise ValueError(
                f"rows is {describe(rows)}; pass 'single', or a shard of plan_step as shard="
            )
        if pack is not None:
            raise ValueError("rows='single' puts everything in one row; leave pack out")
        return None
    if pack is None:
        if has_bins:
            return None
        raise ValueError(
            "layout='packed' needs to know which rows share a row of the output: pass "
            "pack=dict(capacity=...) or a plan of fastcollate.planning.pack, rows='single' for one "
            "row, or the shard of a step planned with pack="
        )
    if has_bins:
        raise ValueError("the shard has its bins from plan_step(pack=...); leave pack out")
    if isinstance(pack, BinPlan):
        _check_multiple(pack.pad_to_multiple_of, multiple)
        return lambda _: pack
    if isinstance(pack, (list, tuple)):
        return lambda lengths: BinPlan.from_bins(pack, lengths, multiple)
    if not isinstance(pack, Mapping):
        raise TypeError(
            f"pack is {describe(pack)}; pass a plan of fastcollate.planning.pack, its options, "
            "or bins: lists of rows"
        )
    _check_multiple(pack.get("pad_to_multiple_of", multiple), multiple)
    return partial(pack_bins, **{"pad_to_multiple_of": multiple, **checked_options(pack)})


def _check_multiple(planned: Any, multiple: int) -> None:
    """Check that places are rounded up as planned: bins would exceed their capacity otherwise."""
    if multiple not in (1, planned):
        raise ValueError(
            f"pad_to_multiple_of is {multiple}, but pack is planned for {planned!r}; "
            "pass it to fastcollate.planning.pack alone"
        )


def torn_message(plan: Plan) -> str | None:
    """Say that tokens have no place where sequences were split, if some have not."""
    if plan.num_torn == 0:
        return None
    tokens = counted(plan.num_torn, "response token")
    return (
        f"{tokens} before which pack split a sequence cannot be predicted in their row, so that "
        "with shift='next_token' their values are left out; pack without splitting, or pass "
        "shift='none'"
    )
