"""A table at the top of each page of the reference: every name, and the first sentence on it.

Members of a class with a table of its own have the order of that table. Classes that are received,
not imported, have no module before their names.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class Summaries(SphinxTransform):
    """Insert the table below the first paragraph of a page."""

    default_priority = 845  # after directives, before Sphinx collects objects

    def apply(self, **options: Any) -> None:
        """Insert it, if the page has two names or more."""
        if not self.env.docname.startswith("reference/"):
            return
        found = list(self.entries())
        first = next(self.document.findall(nodes.paragraph), None)
        if len(found) > 1 and first is not None:
            first.parent.insert(first.parent.index(first) + 1, table(found))

    def entries(self) -> Iterator[tuple[nodes.section, str, str, str]]:
        """Return the section, the id, the short name and the first sentence of each name."""
        found = {}
        for entry in self.document.findall(addnodes.desc):
            about = next(entry[-1].findall(nodes.paragraph), None)
            is_member = entry["objtype"] in ("attribute", "method", "property")
            if entry[0].get("ids") and about is not None and not is_member:
                found[entry[0]["ids"][0]] = entry.parent, first_sentence(about.astext())
        last = [name.rpartition(".")[2] for name in found]
        for name, (section, about_it) in found.items():
            parts = name.split(".")
            short = ".".join(parts[-2:] if last.count(parts[-1]) > 1 else parts[-1:])
            yield section, name, short, about_it


def first_sentence(text: str) -> str:
    """Return the text up to its first full stop."""
    return re.split(r"(?<=\.)\s|:\s", " ".join(text.split()), maxsplit=1)[0].rstrip(".:")


def table(found: list[tuple[nodes.section, str, str, str]]) -> nodes.table:
    """Make a table of names, with links, and sentences, below the titles of their sections."""
    body = nodes.tbody()
    for section, entries in groupby(found, key=lambda entry: entry[0]):
        if isinstance(section.parent, nodes.section):
            title = nodes.reference("", section[0].astext(), refid=section["ids"][0], internal=True)
            body += nodes.row("", nodes.entry("", nodes.paragraph("", "", title), morecols=1))
        for _, target, name, about in entries:
            link = nodes.reference("", "", nodes.literal(text=name), refid=target, internal=True)
            cells = (nodes.paragraph("", "", link), nodes.paragraph(text=about))
            body += nodes.row("", *(nodes.entry("", cell) for cell in cells))
    group = nodes.tgroup(cols=2)
    group += [nodes.colspec(colwidth=30), nodes.colspec(colwidth=70), body]
    return nodes.table("", group, classes=["summaries"])


class Members(SphinxTransform):
    """Order members by the table of their class, and shorten the names of internal classes."""

    default_priority = 844  # before the summaries

    def apply(self, **options: Any) -> None:
        """Change the classes of a page."""
        for entry in self.document.findall(addnodes.desc):
            if entry["objtype"] == "class":
                shorten(entry[0])
                order(entry[-1])


def shorten(signature: addnodes.desc_signature) -> None:
    """Remove the module of a class that it does not export."""
    module = sys.modules.get(signature["module"])
    if signature["fullname"] not in getattr(module, "__all__", ()):
        for name in [*signature.findall(addnodes.desc_addname)]:
            signature.remove(name)


def order(content: addnodes.desc_content) -> None:
    """Sort the members of a class by the first table of its description, if it has one."""
    table = next((node for node in content if isinstance(node, nodes.table)), None)
    if table is None:
        return
    named = [one["reftarget"] for one in table.findall(addnodes.pending_xref)]
    rank = {name: place for place, name in reversed([*enumerate(named)])}
    members = [node for node in content if isinstance(node, addnodes.desc)]
    places = [content.index(node) for node in members]
    members.sort(key=lambda one: rank.get(one[0]["fullname"].rpartition(".")[2], len(rank)))
    for place, member in zip(places, members, strict=True):
        content[place] = member


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the transforms."""
    app.add_transform(Members)
    app.add_transform(Summaries)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
