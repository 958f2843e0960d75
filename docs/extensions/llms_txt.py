"""`llms.txt`, a list of all pages for language models, and `llms-full.txt`, their text.

The format is that of https://llmstxt.org; sections and links are those of the navigation. Pages are
given as Markdown; what has another source (docstrings, included files), as HTML and text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

SUMMARY = """\
fastcollate turns ragged rollouts of LLM post-training (lists of token ids, rewards,
log-probabilities) into training tensors, in one Rust call: padded, packed or as trees, with merged
turns, balanced ranks and hand-over to devices. It replaces the collation code of SkyRL, verl, TRL,
NeMo-RL and transformers, and works in trainers of your own."""


def sections(app: Sphinx) -> Iterator[tuple[str, list[str]]]:
    """Return the captions of the navigation and the pages below them, in order."""
    for tree in app.env.get_doctree(app.config.root_doc).findall(addnodes.toctree):
        pages: list[str] = []
        for page in tree["includefiles"]:
            pages += below(app, page)
        yield tree["caption"], pages


def below(app: Sphinx, page: str) -> Iterator[str]:
    """Return a page and those in its own toctrees."""
    yield page
    for child in app.env.toctree_includes.get(page, []):
        yield from below(app, child)


def description(app: Sphinx, page: str) -> str:
    """Return the first sentence of a page."""
    for paragraph in app.env.get_doctree(page).findall(nodes.paragraph):
        text = " ".join(paragraph.astext().split())
        return re.split(r"(?<=[.:]) (?=[A-Z`])", text)[0].rstrip(":.")
    return ""


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write both files beside the pages."""
    if exception or app.builder.name != "html":
        return
    base, out = app.config.html_baseurl, Path(app.outdir)
    start = Path(app.env.doc2path(app.config.root_doc)).read_text("utf-8")
    links, texts = [f"# {app.config.project}", "> " + SUMMARY.replace("\n", " ")], [start]
    for caption, pages in sections(app):
        lines = []
        for page in pages:
            source = Path(app.env.doc2path(page))
            markdown = source.read_text("utf-8")
            is_whole = source.suffix == ".md" and "{include}" not in markdown
            url = f"{base}_sources/{page}.md.txt" if is_whole else f"{base}{page}.html"
            about = description(app, page)
            title = app.env.titles[page].astext()
            lines.append(f"- [{title}]({url})" + f": {about}" * bool(about))
            texts.append(markdown if is_whole else app.env.get_doctree(page).astext())
        if lines:
            links.append(f"## {caption}\n\n" + "\n".join(lines))
    (out / "llms.txt").write_text("\n\n".join(links) + "\n", "utf-8")
    (out / "llms-full.txt").write_text("\n\n".join(texts) + "\n", "utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the handler."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
