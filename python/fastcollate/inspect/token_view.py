"""Ids as text: decoded by a tokenizer, with control characters escaped."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from fastcollate.common.arrays import describe
from fastcollate.common.text import printable

NEWLINE = "↵"
"""The mark before a line break."""

NO_BREAK = "\xa0"
"""A space that does not break lines; text of tokens has none, as it is not printable."""


class Decoder:
    """Converts ids to text by a tokenizer, or to numbers without one.

    Parameters
    ----------
    tokenizer
        An object with ``decode(list_of_ids)``, a function of a list of ids, or None.

    Raises
    ------
    TypeError
        If it is none of these.
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
        """Ids outside the tokenizer's vocabulary."""

    @property
    def is_text(self) -> bool:
        """True if ids become text."""
        return self._decode is not None

    def text(self, ids: Sequence[int]) -> str:
        """Return ids as printable text."""
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
        """Return ids as one printable text, in a list."""
        return [self.text(ids)]

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Return each id as a separate text, on one line."""
        texts = (self.text([token]) for token in ids)
        if self._decode is None:
            return list(texts)
        return [text.replace(f"{NEWLINE}\n", NEWLINE).replace(" ", "␣") or "∅" for text in texts]

    def _known(self, ids: list[int]) -> str:
        """Decode ids that should be in the vocabulary."""
        if not ids:
            return ""
        try:
            return readable(self._decoded(ids))
        except _NoTextError as error:
            raise TypeError(str(error)) from error
        except Exception:  # tokenizers raise various errors for unknown ids
            if len(ids) == 1:
                return self._unknown(ids[0])
            return "".join(self._known([token]) for token in ids)

    def _decoded(self, ids: list[int]) -> str:
        """Call the tokenizer, keeping special tokens if it has such an option."""
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
    """A tokenizer returned no text."""


def _size(tokenizer: Any) -> int | None:
    """Return the number of ids of a tokenizer; None if unknown."""
    if hasattr(tokenizer, "get_vocab_size"):
        return int(tokenizer.get_vocab_size())
    if hasattr(tokenizer, "decode") and hasattr(tokenizer, "__len__"):
        return len(tokenizer)
    return None


def readable(text: str) -> str:
    """Escape characters that cannot be printed, and mark line breaks."""
    return printable(text).replace("\n", f"{NEWLINE}\n")


def width_of(text: str) -> int:
    """Return the width of a printable text in terminal columns."""
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def shorten(text: str, width: int) -> str:
    """Cut a text to the given number of columns."""
    if width_of(text) <= width:
        return text
    while text and width_of(text) > width - 1:
        text = text[:-1]
    return f"{text}…"
