"""On narrow pages, long names break between their words."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

CODE = re.compile(r'(?<=<span class="pre">)[^<]{10,}')
# Prefixes such as fc. and endings such as .py are not lines of their own. Quotes are entities here.
PLACES = re.compile(
    r"(?<=\w{3}[_.])(?=[a-zA-Z0-9]\w\w)|(?<=\w\w/)(?=\w)|(?<=::)(?=\w)|(?<=\w[=(])(?=[\w&])"
    r"|(?<=\(\()(?=\w)|(?<=[)\]]\.)(?=\w{3})"
)
CAPITALS = re.compile(r"(?<=[a-z]{2})(?=[A-Z][A-Za-z])|(?<=[A-Z]{2})(?=[A-Z][a-z])")

# Shorter names, such as MemoryError, would read as two words, and fit a column of a phone.
WITH_CAPITALS = 12
# The name of a signature that has no room in a line of a phone.
LONG = 38


def with_breaks(code: re.Match[str]) -> str:
    """Mark the places of a name where lines may break."""
    place = "<wbr>" if len(code[0]) < LONG else '<wbr class="long">'
    marked = PLACES.sub(place, code[0])
    if len(code[0]) < WITH_CAPITALS:
        return marked
    return CAPITALS.sub('<wbr class="capital">', marked)


def add_breaks(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Mark the places in the code of a page; `site.css` says on which pages lines break there."""
    for part in {"body", "toc"} & context.keys():
        context[part] = CODE.sub(with_breaks, context[part])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the event."""
    app.connect("html-page-context", add_breaks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
