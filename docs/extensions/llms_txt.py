"""Pages for language models: a Markdown copy of each page, `llms.txt` and `llms-full.txt`.

`PAGE.md` is beside `PAGE.html`, with absolute links. `llms.txt` lists all pages, in the format of
https://llmstxt.org; its sections are those of the navigation. `llms-full.txt` has the text of the
pages, without those on the project itself, and a line for each name of the reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from repository_links import INCLUDED, repository_url
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import SphinxError

SUMMARY = """\
> fastcollate turns ragged rollouts of LLM post-training (lists of token ids, rewards,
> log-probabilities) into training tensors, in one Rust call: padded, packed or as trees, with
> merged turns, balanced ranks and hand-over to devices. It replaces the collation code of SkyRL,
> verl, TRL, NeMo-RL and transformers, and works in trainers of your own."""

# From the line that installs to the end of the first snippet.
BEGINNING = re.compile(r"^```\ngit clone .*?^```python\n.*?^```$", re.DOTALL | re.MULTILINE)
TOCTREE = re.compile(r"^```\{toctree\}\n.*?^```\n", re.DOTALL | re.MULTILINE)
INCLUDE = re.compile(r"^```\{include\} (\S+)\n((?::.*\n)*)```$", re.MULTILINE)
LINK = re.compile(r"\]\(([^()\s]+)\)")


class Page(NamedTuple):
    """A page of the navigation."""

    name: str
    title: str
    url: str
    """Of its Markdown copy; of its HTML if there is none."""
    about: str
    """Its first paragraph."""


def navigation(app: Sphinx) -> Iterator[tuple[str, list[Page]]]:
    """Return the captions of the navigation and the pages below them, in order."""
    root = app.config.root_doc
    for tree in app.env.get_doctree(root).findall(addnodes.toctree):
        names: list[str] = []
        for _, entry in tree["entries"]:
            names += [root] if entry == "self" else below(app, entry)
        yield tree["caption"], [page(app, name) for name in names]


def below(app: Sphinx, name: str) -> Iterator[str]:
    """Return a page and those in its own toctrees; nothing for an address."""
    if name in app.env.found_docs:
        yield name
    for child in app.env.toctree_includes.get(name, []):
        yield from below(app, child)


def page(app: Sphinx, name: str) -> Page:
    """Describe a page."""
    paragraphs = app.env.get_doctree(name).findall(nodes.paragraph)
    about = " ".join(next((each.astext() for each in paragraphs), "").split())
    about = re.split(" Guides?: ", about)[0].rstrip(":.")
    return Page(name, app.env.titles[name].astext(), address(app, name), about)


def address(app: Sphinx, name: str) -> str:
    """Return the address of a page."""
    end = ".md" if app.env.doc2path(name).suffix == ".md" else ".html"
    return f"{app.config.html_baseurl}{name}{end}"


def markdown(app: Sphinx, path: Path) -> str:
    """Return a page's text with included files and absolute links, without its toctrees."""

    def included(match: re.Match[str]) -> str:
        text = markdown(app, (path.parent / match[1]).resolve())
        options = dict(re.findall(r"^:([\w-]+): (.*)$", match[2], re.MULTILINE))
        if "start-after" in options:
            text = text.partition(options["start-after"])[2]
        if "end-before" in options:
            text = text.partition(options["end-before"])[0]
        return text.strip()

    def absolute(match: re.Match[str]) -> str:
        target, hash_sign, anchor = match[1].partition("#")
        file = (path.parent / target).resolve() if target else path
        if not file.exists():
            return match[0]
        name = INCLUDED.get(file) or app.env.path2doc(file)
        if name in app.env.found_docs:
            url = address(app, name)
        elif file.suffix == ".svg":
            url = f"{app.config.html_baseurl}_images/{file.name}"
        else:
            url = repository_url(file)
        return f"]({url}{hash_sign}{anchor})"

    text = TOCTREE.sub("", path.read_text("utf-8"))
    return LINK.sub(absolute, INCLUDE.sub(included, text)).strip() + "\n"


def signatures(app: Sphinx, of: Page) -> str:
    """Return the title, and a line for each name that a page of the reference documents."""
    lines = [f"# {of.title}\n"]
    for entry in app.env.get_doctree(of.name).findall(addnodes.desc):
        signature, content = entry[0], entry[-1]
        arguments = next(signature.findall(addnodes.desc_parameterlist), None)
        call = signature["ids"][0] + (arguments.astext() if arguments else "")
        first = next(content.findall(nodes.paragraph), None)
        lines.append(f"- `{call}`" + (f": {' '.join(first.astext().split())}" if first else ""))
    return "\n".join(lines) + "\n"


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write all files."""
    if exception or app.builder.name != "html":
        return
    out, base, root = Path(app.outdir), app.config.html_baseurl, app.config.root_doc
    texts = {
        name: markdown(app, Path(app.env.doc2path(name)))
        for name in sorted(app.env.found_docs)
        if address(app, name).endswith(".md")
    }
    beginning = BEGINNING.search(texts[root])
    if not beginning:
        raise SphinxError("llms.txt: the start page has no line that installs, with a snippet")
    short, full = [f"# {app.config.project}", SUMMARY, beginning[0]], [SUMMARY]
    for caption, pages in navigation(app):
        lines = [f"- [{each.title}]({each.url}): {each.about}" for each in pages]
        short.append(f"## {caption}\n\n" + "\n".join(lines))
        for each in pages if caption not in ("Project", "Contributing") else []:
            text = texts.get(each.name) or signatures(app, each)
            full.append(f"Page: {each.url}\n\n{text}")
    short.append(
        f"## Optional\n\n- [All pages in one file]({base}llms-full.txt): the text of tutorials, "
        "guides and pages on frameworks, and a line for each name of the reference"
    )
    files = {f"{name}.md": text for name, text in texts.items()}
    files["llms.txt"] = "\n\n".join(short) + "\n"
    files["llms-full.txt"] = "\n\n".join(full)
    for file, text in files.items():
        (out / file).parent.mkdir(exist_ok=True)
        (out / file).write_text(text, "utf-8")
    for file, text in files.items():
        for target in re.findall(re.escape(f"]({base}") + r"([^)#]*)", text):
            if target and not (out / target).exists():
                raise SphinxError(f"{file}: no file for the link {base}{target}")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the handler."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
