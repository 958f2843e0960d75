"""Alignment of packed examples, as SkyRL's workers read them."""

from __future__ import annotations

import inspect
import math
from typing import Any, NamedTuple

from fastcollate.compat.skyrl.installed import skyrl_module

MODULE = "skyrl.backends.skyrl_train.distributed.megatron.packing_utils"
FUNCTION = "get_packed_seq_align_size"


class Alignment(NamedTuple):
    """The alignment of examples in a row."""

    size: int
    """The multiple. Not 0."""
    is_limited: bool
    """True if a row's capacity counts aligned lengths, not tokens."""


def packed_alignment(
    tp_size: int, cp_size: int, *, fp8_enabled: bool, fp8_recipe: str | None
) -> Alignment:
    """Return the alignment of the installed SkyRL, or without SkyRL that of 0.4.0.

    Workers compute the offsets again: with another multiple they would silently read other tokens.
    SkyRL 0.4.0 limits aligned lengths with fp8 and tokens without; 0.3.0 always limits tokens.

    Raises
    ------
    ValueError
        The spec ``"auto"``.
    RuntimeError
        The installed SkyRL has no function that returns it.
    """
    module = skyrl_module(MODULE)
    if module is None:
        size = _align_size(tp_size, cp_size, fp8_enabled, fp8_recipe)
        return Alignment(size, is_limited=fp8_enabled)
    function: Any = getattr(module, FUNCTION, None)
    if function is None:
        raise RuntimeError(
            f"{MODULE} has no {FUNCTION}, so the installed SkyRL aligns examples in another way; "
            "use its own collator"
        )
    options: dict[str, Any] = {"fp8_enabled": fp8_enabled}
    has_recipes = "fp8_recipe" in inspect.signature(function).parameters
    if has_recipes:
        options["fp8_recipe"] = fp8_recipe
    elif fp8_recipe is not None:
        raise ValueError(
            f"fp8_recipe is {fp8_recipe!r}, but the installed SkyRL has no recipes; pass None"
        )
    return Alignment(function(tp_size, cp_size, **options), is_limited=has_recipes and fp8_enabled)


def _align_size(tp_size: int, cp_size: int, fp8_enabled: bool, fp8_recipe: str | None) -> int:
    size = 2 * tp_size * cp_size if cp_size > 1 else tp_size
    if not fp8_enabled:
        return size
    spec = (fp8_recipe or "").strip().lower()
    if spec == "auto":
        raise ValueError(
            "fp8_recipe is 'auto', which workers may resolve in another way than the collator; "
            "pass 'blockwise' or 'mxfp8'"
        )
    if spec == "mxfp8":
        return math.lcm(size, 32 * tp_size * cp_size)
    return math.lcm(size, 128 * tp_size * cp_size if tp_size > 1 else 16 * cp_size)
