"""Ids as text: what a tokenizer makes of them, and nothing that a terminal would obey."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from fastcollate.arrays import describe

NEWLINE = "↵"
"""What stands for a line break, in front of it."""

NO_BREAK = "\xa0"
"""A space at which no line ends; text of tokens has none, since it cannot be printed."""


class Decoder:
    """A tokenizer, or ids as they are.

    Parameters
    ----------
    tokenizer
        Anything with ``decode(list_of_ids)``, a function of a list of ids, or None.

    Raises
    ------
    TypeError
        If it is nothing of these.
    """

    def __init__(self, tokenizer: Any) -> None:
        decode = getattr(tokenizer, "decode", tokenizer)
        if isinstance(tokenizer, (str, bytes)) or not (decode is None or callable(decode)):
            raise TypeError(
                f"tokenizer is {describe(tokenizer)}; pass an object with decode(list_of_ids), "
                "such as transformers.AutoTokenizer.from_pretrained(...), or a function"
            )
        self._decode: Callable[..., Any] | None = decode
        self._size = _size(tokenizer)
        self.misfits: list[int] = []
        """Ids that the tokenizer does not have."""

    @property
    def is_text(self) -> bool:
        """Whether ids become text."""
        return self._decode is not None

    def text(self, ids: Sequence[int]) -> str:
        """Return ids as text that can be printed."""
        if self._decode is None:
            return " ".join(map(str, ids))
        parts: list[str] = []
        known: list[int] = []
        for token in ids:
            if token >= 0 and (self._size is None or token < self._size):
                known.append(token)
                continue
            parts += [self._known(known), self._unknown(token)]
            known = []
        return "".join([*parts, self._known(known)])

    def lines(self, ids: Sequence[int]) -> list[str]:
        """Return ids as one text that can be printed, in a list."""
        return [self.text(ids)]

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Return each id as text of its own, in one line."""
        texts = (self.text([token]) for token in ids)
        if self._decode is None:
            return list(texts)
        return [text.replace(f"{NEWLINE}\n", NEWLINE).replace(" ", "␣") or "∅" for text in texts]

    def _known(self, ids: list[int]) -> str:
        """Decode ids that the tokenizer should have."""
        if not ids:
            return ""
        try:
            return readable(self._decoded(ids))
        except _NoTextError as error:
            raise TypeError(str(error)) from error
        except Exception:  # whatever a tokenizer raises for an id that it does not have
            if len(ids) == 1:
                return self._unknown(ids[0])
            return "".join(self._known([token]) for token in ids)

    def _decoded(self, ids: list[int]) -> str:
        """Call the tokenizer, so that it leaves no token out if it can be told so."""
        assert self._decode is not None
        try:
            text = self._decode(ids, skip_special_tokens=False)
        except TypeError:  # it has no such option
            text = self._decode(ids)
        if not isinstance(text, str):
            raise _NoTextError(f"tokenizer made {describe(text)} of ids; pass one that makes a str")
        return text

    def _unknown(self, token: int) -> str:
        self.misfits.append(token)
        return f"⟨?{token}⟩"


class _NoTextError(Exception):
    """A tokenizer returned something else than text."""


def _size(tokenizer: Any) -> int | None:
    """Return the number of ids that a tokenizer has, if it says so."""
    if hasattr(tokenizer, "get_vocab_size"):
        return int(tokenizer.get_vocab_size())
    if hasattr(tokenizer, "decode") and hasattr(tokenizer, "__len__"):
        return len(tokenizer)
    return None


def readable(text: str) -> str:
    """Write what cannot be printed as escapes, and mark line breaks."""
    if text.isprintable():
        return text
    return "".join(_readable(char) for char in text)


def _readable(char: str) -> str:
    if char == "\n":
        return f"{NEWLINE}\n"
    if char.isprintable():
        return char
    return char.encode("unicode_escape").decode("ascii")


def width_of(text: str) -> int:
    """Return how many columns of a terminal a printable text takes."""
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def shortened(text: str, width: int) -> str:
    """Cut a text that takes more columns than that."""
    if width_of(text) <= width:
        return text
    while text and width_of(text) > width - 1:
        text = text[:-1]
    return f"{text}…"
