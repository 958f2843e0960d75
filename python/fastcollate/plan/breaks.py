"""Breaks: turns that do not continue the tokens before them, and hints at the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

from fastcollate.common.text import show_id

SAME_TEXT = "the same text in other tokens: it was decoded and encoded again"
REASONING = "a reasoning block was removed: chat templates drop the reasoning of earlier turns"
SPACE = "white space was trimmed or added"
FIRST_PROMPT = "the first prompt differs: a changed system prompt, or a sub-agent"
SHORT_PROMPT = "the prompt is shorter than the first one: turns out of order, or a sub-agent"

OPENINGS = (
    "<think>",
    "<thinking>",
    "<reasoning>",
    "<|channel|>analysis",
    "[THINK]",
    "<seed:think>",
)
"""Opening tags of reasoning in common models."""

AROUND = 5
"""Number of ids that a break keeps on either side of its position."""


class Tokenizer(Protocol):
    """An object that decodes token ids to text."""

    def decode(self, ids: list[int], /) -> str:
        """Return the text of ids."""


class Break(NamedTuple):
    """A turn that does not continue the tokens before it.

    With policy ``"branch"``, a turn that opens a group is compared with the turn just before it.

    Attributes
    ----------
    turn : int
        The turn, as an index of the input.
    trajectory : int
        Its trajectory, numbered from 0.
    position : int
        Position of the first difference between its prompt and the tokens before it.
    expected : int
        The id there in the tokens before it.
    found : int or None
        The id there in the prompt; None if the prompt ends there.
    kind : str
        ``"shorter"``: the prompt ends there. ``"drift"``: the position lies inside the last
        response, as with re-tokenised text, or was realigned. ``"diverged"``: anything else.
    realigned : bool
        True if the turn was joined by policy ``"realign"``.
    expected_ids, found_ids : tuple of int
        Ids of the tokens before it and of the prompt, from up to 5 positions before to 5 after.
    expected_text, found_text : str or None
        These ids as text, if there is a tokenizer.
    trajectory_id : object
        The trajectory's id, if there are ids.
    hint : str or None
        The reason, if the difference is of a known kind: a changed or shorter first prompt or, with
        a tokenizer, the same text in other tokens, a removed reasoning block, or white space.
    """

    turn: int
    trajectory: int
    position: int
    expected: int
    found: int | None
    kind: Literal["diverged", "shorter", "drift"]
    realigned: bool
    expected_ids: tuple[int, ...]
    found_ids: tuple[int, ...]
    expected_text: str | None = None
    found_text: str | None = None
    trajectory_id: Any = None
    hint: str | None = None

    def __str__(self) -> str:
        given = self.trajectory_id
        name = self.trajectory if given is None else show_id(given)
        kind = f"{self.kind}, realigned" if self.realigned else self.kind
        found = "the prompt ends" if self.found is None else f"the prompt has {self.found}"
        expected_ids = _window(self.expected_ids, self.position) + _text(self.expected_text)
        found_ids = _window(self.found_ids, self.position) + _text(self.found_text)
        hint = "" if self.hint is None else f"\n  hint      {self.hint}"
        return (
            f"turn {self.turn} of trajectory {name} ({kind}): "
            f"at position {self.position} {found} instead of {self.expected}\n"
            f"  expected  {expected_ids}\n"
            f"  found     {found_ids}{hint}"
        )


def make_break(
    entry: Any,
    trajectory: int,
    first_prompt_len: int,
    trajectory_ids: Sequence[Any] | None,
    tokenizer: Tokenizer | None,
) -> Break:
    """Return a break of the core, with its texts if there is a tokenizer."""
    turn, position, start, kind, realigned, expected, found = entry
    at = position - start
    same, expected_text, found_text = (
        None if tokenizer is None else tokenizer.decode(ids)
        for ids in (expected[:at], expected, found)
    )
    return Break(
        turn=turn,
        trajectory=trajectory,
        position=position,
        expected=expected[at],
        found=found[at] if at < len(found) else None,
        kind=kind,
        realigned=realigned,
        expected_ids=tuple(expected),
        found_ids=tuple(found),
        expected_text=expected_text,
        found_text=found_text,
        trajectory_id=None if trajectory_ids is None else trajectory_ids[trajectory],
        hint=hint_of(kind, position, first_prompt_len, same, expected_text, found_text),
    )


def _window(ids: tuple[int, ...], position: int) -> str:
    """Return ids as text, with that at `position` in brackets."""
    at = min(position, AROUND)
    cells = [f"[{i}]" if index == at else str(i) for index, i in enumerate(ids)]
    if at == len(ids):
        cells.append("[]")
    return ("... " if position > AROUND else "") + " ".join(cells)


def _text(text: str | None) -> str:
    return "" if text is None else f"   {text!r}"


def hint_of(
    kind: str,
    position: int,
    first_prompt_len: int,
    common: str | None,
    expected: str | None,
    found: str | None,
) -> str | None:
    """Return the known kind of a difference, or None.

    Parameters
    ----------
    kind
        As of the break.
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
        return SHORT_PROMPT if kind == "shorter" else FIRST_PROMPT
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
