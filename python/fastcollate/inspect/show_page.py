"""Rows of a batch as HTML."""

from __future__ import annotations

from fastcollate.inspect import markup
from fastcollate.inspect.row_view import Piece, Shown
from fastcollate.inspect.styles import STYLES


def rows_html(shown: Shown) -> str:
    """Return a batch's view as HTML, without styles."""
    legend = [markup.text("span", kind, kind) for kind in STYLES]
    parts = [
        markup.element("p", " ".join([*legend, markup.text("span", "…n… left out", "folded")]))
    ]
    for section in shown.sections:
        if section.title:
            parts.append(markup.text("p", section.title, "title"))
        for part in section.parts:
            title = markup.text("p", part.title, "title") if part.title else ""
            if part.has_values:
                tokens = _grid(part.pieces, shown.fields)
            else:
                tokens = ("" if shown.is_text else " ").join(map(_flowing, part.pieces))
            content = title + markup.element("div", tokens, "tokens")
            parts.append(markup.element("div", content, "part" if section.title else ""))
    parts += [markup.text("p", note, "note") for note in shown.notes]
    return "".join(parts)


def _flowing(piece: Piece) -> str:
    """Return the text of a piece."""
    [text] = piece.texts
    return markup.text("span", text, piece.kind or "folded")


def _grid(pieces: list[Piece], fields: list[str]) -> str:
    """Return tokens with the values of fields below."""
    names = "".join(markup.text("span", name) for name in ("\xa0", *fields))
    cells = [markup.element("span", names, "cell names")]
    for piece in pieces:
        columns = zip(*piece.values, strict=True) if piece.values else [("",) * len(fields)]
        for text, values in zip(piece.texts, columns, strict=True):
            cell = markup.text("span", text, piece.kind or "folded")
            for name, value in zip(fields, values, strict=True):
                cell += markup.text("span", value, title=name if value else "")
            cells.append(markup.element("span", cell, "cell"))
    return "".join(cells)
