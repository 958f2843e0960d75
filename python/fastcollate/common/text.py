"""Values and text of others, in messages and on terminals."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence

import numpy as np

MOST_BITS = 100
"""Bits of the longest integer that is written in full."""


MOST_OF_ID = 80
"""Characters of the longest id that is written in full."""


class _Short(reprlib.Repr):
    """`reprlib.repr`, with integers of any length."""

    def repr_int(self, integer: int, level: int) -> str:
        bits = int(integer).bit_length()
        return str(integer) if bits <= MOST_BITS else f"an integer of {bits} bits"


_short = _Short().repr


def show(value: object) -> str:
    """Return the repr of any object in a few words on one line, without control characters."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = _short(value.item() if isinstance(value, np.generic) else value)
    return printable(text.replace("\n", " "))


def show_id(identity: object) -> str:
    """Return the repr of an id, abbreviated if it is long, without control characters."""
    try:
        text = repr(identity)
    except Exception:  # whatever its own code raises
        text = f"an object of type {type(identity).__name__}"
    return printable(text if len(text) <= MOST_OF_ID else f"{text[: MOST_OF_ID - 3]}...")


def printable(text: str) -> str:
    """Escape characters that a terminal may obey, such as those that move its cursor."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else escaped(one) for one in text)


def escaped(character: str) -> str:
    """Return the escape sequence of a character, as in a string of Python."""
    return character.encode("unicode_escape").decode("ascii")


def in_words(items: Sequence[str], word: str) -> str:
    """Return items as words of a sentence: ``a, b and c``."""
    *others, last = items
    return f"{', '.join(others)} {word} {last}" if others else last


def table_of(cells: Sequence[Sequence[str]]) -> str:
    """Return cells as lines of right-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.rjust, row, widths)) for row in cells)
