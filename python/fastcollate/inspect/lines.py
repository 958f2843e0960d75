"""Text in lines of a given width, made of styled pieces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple, TypeAlias

from fastcollate.common.text import printable
from fastcollate.inspect.row_view import Piece, Shown
from fastcollate.inspect.styles import KINDS, STYLES
from fastcollate.inspect.token_view import NO_BREAK, shorten, width_of

LEAST_WIDTH = 20
"""Least width of a line, however narrow the terminal is."""

INDENT = 2
MOST_CELL = 16
"""Largest width of a token with values below it."""

Styled: TypeAlias = tuple[str, str]
"""A text and the name of its style."""

Line: TypeAlias = list[Styled]

_WORDS = re.compile(r"\n| *[^ \n]+| +")
"""Line breaks, and words with the spaces in front of them."""


def lines_of(shown: Shown, width: int, has_legend: bool = True) -> Iterator[Line]:
    """Yield the lines of a batch's view, with the legend of its marks unless it is left out."""
    width = max(width, LEAST_WIDTH)
    if has_legend:
        yield from wrap(_legend(), width, 0)
    for at, section in enumerate(shown.sections):
        if has_legend or at > 0:
            yield []
        indent = INDENT if section.title else 0
        yield from wrap([(section.title, "title")], width, 0)
        for part in section.parts:
            yield from wrap([(part.title, "title")], width, indent)
            inner = indent + (INDENT if part.title else 0)
            if part.has_values:
                yield from _grid(part.pieces, shown.fields, width, inner)
            else:
                pieces = (_flowing(piece, shown.is_text) for piece in part.pieces)
                yield from wrap(chain.from_iterable(pieces), width, inner)
    for note in shown.notes:
        yield []
        yield from wrap([(note, "folded")], width, 0)


def plain(lines: Iterable[Line]) -> str:
    """Return lines as text without styles."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def _legend() -> Line:
    """Return the legend of the marks."""
    words: Line = []
    for kind in KINDS:
        words += [(kind.join(STYLES[kind].marks), kind), (" ", "")]
    return [*words, ("…n… left out", "folded")]


def _flowing(piece: Piece, is_text: bool) -> Line:
    """Return the text of a piece, between its marks, and the space after it."""
    [text] = piece.texts
    if piece.kind is None:
        text = text.replace(" ", NO_BREAK)
        return [(f" {text} " if is_text else f"{text} ", "folded")]
    opening, closing = STYLES[piece.kind].marks
    if piece.kind == "padding":
        text = text.replace(" ", NO_BREAK)
    shown = (f"{opening}{text}{closing}", piece.kind)
    return [shown] if is_text and piece.kind != "padding" else [shown, (" ", "")]


def wrap(pieces: Iterable[Styled], width: int, indent: int) -> Iterator[Line]:
    """Break text into lines, between words where that is possible."""
    line: Line = []
    room = width - indent
    used = 0
    margin = (" " * indent, "")
    for text, style in pieces:
        for word in _WORDS.findall(text):
            if not line and style == "folded":
                word = word.lstrip(" ")
            if word == "\n":
                yield [margin, *line]
                line, used = [], 0
                continue
            size = width_of(word)
            if used + size > room and used > 0:
                yield [margin, *line]
                line, used = [], 0
                word = word.lstrip(" ")
                size = width_of(word)
            while size > room:
                head = _head(word, room)
                yield [margin, (head.replace(NO_BREAK, " "), style)]
                word = word[len(head) :]
                size = width_of(word)
            if word:
                line.append((word.replace(NO_BREAK, " "), style))
                used += size
    if line:
        yield [margin, *line]


def _head(text: str, width: int) -> str:
    """Return the part of a text that fits, at least one character."""
    end = len(text)
    while end > 1 and width_of(text[:end]) > width:
        end -= 1
    return text[:end]


class _Cell(NamedTuple):
    """A token with its values below."""

    text: str
    style: str
    values: list[str]


def _grid(pieces: list[Piece], fields: list[str], width: int, indent: int) -> Iterator[Line]:
    """Yield lines of tokens with the values of fields below."""
    names = [shorten(printable(name), max(width // 3, 6)) for name in ("", *fields)]
    margin = max(map(width_of, names)) + indent
    room = width - margin
    row: list[_Cell] = []
    used = 0
    for cell in chain.from_iterable(_cells(piece, len(fields), room - 3) for piece in pieces):
        size = 1 + max(map(width_of, (cell.text, *cell.values)))
        if row and used + size > room:
            yield from _grid_lines(row, names, margin)
            row, used = [], 0
        row.append(cell)
        used += size
    if row:
        yield from _grid_lines(row, names, margin)


def _cells(piece: Piece, count: int, most: int) -> Iterator[_Cell]:
    """Yield the tokens of a piece; padding and omitted tokens as one."""
    style = piece.kind or "folded"
    opening, closing = STYLES[style].marks
    if piece.kind is not None:
        most = min(most, MOST_CELL)
    columns = zip(*piece.values, strict=True) if piece.values else [("",) * count]
    for text, values in zip(piece.texts, columns, strict=True):
        shown = f"{opening}{shorten(text, most)}{closing}"
        yield _Cell(shown, style, [shorten(value, most) for value in values])


def _grid_lines(row: list[_Cell], names: list[str], margin: int) -> Iterator[Line]:
    """Yield a line of tokens, and a line of values for each field that any of them has."""
    table = [[cell.text, *cell.values] for cell in row]
    sizes = [1 + max(map(width_of, texts)) for texts in table]
    for index, name in enumerate(names):
        texts = [texts[index] for texts in table]
        if not any(texts):
            continue
        line: Line = [(" " * (margin - width_of(name)) + name, "folded")]
        for cell, text, size in zip(row, texts, sizes, strict=True):
            line.append((" " * (size - width_of(text)) + text, cell.style if index == 0 else ""))
        yield line
