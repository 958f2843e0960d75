"""Links to files outside `docs/` lead to the repository, or to the page that includes the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).parents[2]
URL = "https://github.com/fastcollate/fastcollate"
INCLUDED = {ROOT / "CONTRIBUTING.md": "contributing", ROOT / "CHANGELOG.md": "changelog"}


class RepositoryLinks(SphinxTransform):
    """Resolve relative links that MyST does not take for links to pages."""

    default_priority = 5  # before anything collects downloads

    def apply(self, **options: Any) -> None:
        """Replace each link to an existing file."""
        for kind in (addnodes.download_reference, addnodes.pending_xref):
            for node in list(self.document.findall(kind)):
                if node.get("reftype") == "myst":
                    self.resolve(node)

    def resolve(self, node: Any) -> None:
        """Replace one link, unless it leads to a page, or nowhere: then MyST warns."""
        target, anchor = node["reftarget"], node.get("reftargetid")
        if node.get("refdomain") == "doc":  # MyST takes any .md file for a page
            if target in self.env.found_docs:
                node["refexplicit"] = not is_file_name(node)
                return
            path = Path(self.env.srcdir, f"{target}.md")
        else:
            target, _, anchor = target.partition("#")
            # The source is the file that holds the link, in an included file, too.
            path = (Path(node.source).parent / target).resolve()
        if not path.exists() or not path.is_relative_to(ROOT):
            return
        page = INCLUDED.get(path) or self.env.path2doc(path)
        if page in self.env.found_docs:
            node.replace_self(page_link(node, page, anchor))
        else:
            url = repository_url(path) + (f"#{anchor}" if anchor else "")
            node.replace_self(nodes.reference("", "", *node.children, refuri=url, internal=False))


def repository_url(path: Path) -> str:
    """Return the address of a file or folder in the repository."""
    kind = "tree" if path.is_dir() else "blob"
    return f"{URL}/{kind}/main/{path.relative_to(ROOT).as_posix()}"


def is_file_name(node: Any) -> bool:
    """Return True for `[steps.md](steps.md)`: the site shows the title of the page."""
    return bool(node.astext().endswith(".md"))


def page_link(node: Any, page: str, anchor: str) -> addnodes.pending_xref:
    """Return a link to a page of the site, for MyST to resolve."""
    link = addnodes.pending_xref(
        "", *node.children, refdomain="doc", reftarget=page, reftargetid=anchor or None,
        refdoc=node["refdoc"], reftype="myst", refexplicit=not is_file_name(node),
    )  # fmt: skip
    link.source, link.line = node.source, node.line
    return link


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the transform."""
    app.add_transform(RepositoryLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
