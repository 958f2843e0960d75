"""Layouts and the widths that do not come from the data."""

from __future__ import annotations

from fastcollate._fastcollate import LayoutSpec
from fastcollate.arguments import checked_int

LEFT = LayoutSpec("left", None, None, None, 1)
"""The left layout with all widths from the data."""


def checked_layout(
    name: str,
    pad_to: int | None,
    max_prompt_len: int | None,
    max_response_len: int | None,
    pad_to_multiple_of: int,
) -> LayoutSpec:
    """Check the arguments of a layout, also against each other."""
    arguments = (name, pad_to, max_prompt_len, max_response_len, pad_to_multiple_of)
    if arguments == ("left", None, None, None, 1):
        return LEFT  # spares small batches the time
    if name not in ("left", "two_segment", "right", "jagged"):
        raise ValueError(f"layout is {name!r}; pass 'left', 'two_segment', 'right' or 'jagged'")
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
    rounded = ["max_prompt_len", "max_response_len"] if name == "two_segment" else ["pad_to"]
    for argument in rounded:
        if (widths[argument] or 0) % pad_to_multiple_of:
            raise ValueError(
                f"{argument} is {widths[argument]}, "
                f"which is no multiple of pad_to_multiple_of={pad_to_multiple_of}"
            )
    return LayoutSpec(*arguments)
