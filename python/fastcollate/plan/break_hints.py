"""Hints: the known kinds of differences between a prompt and the tokens before it."""

from __future__ import annotations

SAME_TEXT = "the same text in other tokens: it was decoded and encoded again"
REASONING = "a reasoning block was removed: chat templates leave out that of earlier turns"
SPACE = "white space was trimmed or added"
FIRST_PROMPT = "the first prompt differs: a changed system prompt, or a sub-agent"

OPENINGS = (
    "<think>",
    "<thinking>",
    "<reasoning>",
    "<|channel|>analysis",
    "[THINK]",
    "<seed:think>",
)
"""Opening tags of reasoning in common models."""


def hint_of(
    position: int,
    first_prompt_len: int,
    common: str | None,
    expected: str | None,
    found: str | None,
) -> str | None:
    """Return the known kind of a difference, or None.

    Parameters
    ----------
    position
        Position of the first difference between the prompt and the tokens before it.
    first_prompt_len
        Tokens of the trajectory's first prompt.
    common
        The text of the ids just before, if there is a tokenizer.
    expected, found
        The text of the ids just before and from `position`, in both.
    """
    if position < first_prompt_len:
        return FIRST_PROMPT
    if common is None or expected is None or found is None:
        return None
    # The last characters may be incomplete without later ids.
    expected, found = expected.rstrip("\ufffd"), found.rstrip("\ufffd")
    opening = next((opening for opening in OPENINGS if opening in expected), None)
    if opening is not None and opening not in found:
        return REASONING
    common = common.rstrip("\ufffd")
    if _go_on_alike(common, expected, found):
        return SAME_TEXT
    if _go_on_alike(*("".join(text.split()) for text in (common, expected, found))):
        return SPACE
    return None


def _go_on_alike(common: str, one: str, other: str) -> bool:
    """Return whether one text is a prefix of the other, and longer than `common`."""
    shorter, longer = sorted((one, other), key=len)
    return len(shorter) > len(common) and longer.startswith(shorter)
