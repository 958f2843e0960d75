"""On narrow pages, long names break after their underscores and dots, not within a word."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

CODE = re.compile(r'(?<=<span class="pre">)[^<]{8,}')
AFTER = re.compile(r"(?<=\w[_./=(])(?=\w)")


def add_breaks(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Mark the places of a page's code where lines may break; `site.css` says on which pages."""
    if "body" in context:
        context["body"] = CODE.sub(lambda code: AFTER.sub("<wbr>", code[0]), context["body"])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the event."""
    app.connect("html-page-context", add_breaks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
