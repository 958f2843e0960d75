"""What the search knows beyond Sphinx's index: words that lead to a section, and sections' texts.

Sphinx finds pages, and gives nearly all the same rank. `static/site.js` ranks sections, by the file
that is written here and read on the page of the search alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

LINES = Path(__file__).with_suffix(".txt").read_text("utf-8").splitlines()
WORDS = {
    word: target
    for target, words in (line.split(": ") for line in LINES)
    for word in words.split(", ")
}
"""Words, in any order and number and with any underscores, to the section to find first."""

LEFT_OUT = ("architecture", "changelog", "contributing", "internals")
"""Pages on the project itself: found by their titles alone."""

FILE = "_static/search_words.js"


def leave_out(app: Sphinx, env: BuildEnvironment) -> None:
    """Leave pages out of Sphinx's index."""
    for name in LEFT_OUT:
        env.metadata[name]["nosearch"] = ""


def sections(document: nodes.document) -> Iterator[tuple[str, str, str]]:
    """Return id, title and text of each section, and name of the reference, without inner ones."""
    kinds = (nodes.section, addnodes.desc)
    for part in document.findall(lambda node: isinstance(node, kinds)):
        head, *own = part.children
        ids = (part if isinstance(part, nodes.section) else head)["ids"]
        if isinstance(part, addnodes.desc):
            own = part[-1].children
        hidden = (*kinds, nodes.Invisible, nodes.raw)
        text = " ".join(node.astext() for node in own if not isinstance(node, hidden))
        if ids:
            title = head["fullname"] if "fullname" in head else head.astext()
            yield ids[0], title, " ".join(text.split())


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write the file, unless words lead nowhere."""
    if exception or app.builder.name != "html":
        return
    pages = sorted(app.env.found_docs)
    texts = {name: [*sections(app.env.get_doctree(name))] for name in pages}
    for name in LEFT_OUT:
        texts[name] = [(*texts[name][0][:2], "")]
    known = {*pages} | {f"{name}#{one}" for name in pages for one, *_ in texts[name]}
    if unknown := sorted({*WORDS.values()} - known):
        raise ValueError(f"search words lead to unknown sections: {unknown}")
    data = {"WORDS": WORDS, "SECTIONS": texts}
    lines = [f"const {name} = {json.dumps(of, ensure_ascii=False)};\n" for name, of in data.items()]
    Path(app.outdir, FILE).write_text("".join(lines), "utf-8")


def read_it(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Load the file on the page of the search."""
    if page == "search":
        app.add_js_file(FILE.removeprefix("_static/"))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the handlers."""
    app.connect("env-updated", leave_out)
    app.connect("html-page-context", read_it)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
