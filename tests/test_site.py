"""The pages of the documentation site: complete reference, navigation and alternative texts."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "python" / "fastcollate"
NOT_PUBLIC = {"fastcollate.compat.verl.upsampling"}  # all of it is in the package's list
PAGES = sorted([*DOCS.glob("**/*.md"), *DOCS.glob("**/*.rst")])


def public_names():
    """Return the names in every `__all__`, read without an import: Ray may be absent."""
    names = []
    for path in sorted(PACKAGE.glob("**/*.py")):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        module = module.removesuffix(".__init__")
        for node in ast.parse(path.read_text("utf-8")).body:
            is_list = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            if is_list and module not in NOT_PUBLIC:
                names += [f"{module}.{name}" for name in ast.literal_eval(node.value)]
    return names


def test_every_public_name_is_in_the_reference_once():
    text = "\n".join(path.read_text("utf-8") for path in sorted(DOCS.glob("reference/*.rst")))
    documented = re.findall(r"^\.\. (?:auto)?(?:class|function|data):: (\S+)$", text, re.MULTILINE)
    whole = re.findall(r"^\.\. automodule:: (\S+)$", text, re.MULTILINE)
    names = [name for name in public_names() if name.rpartition(".")[0] not in whole]
    assert sorted(documented) == sorted(names)
    assert {name.rpartition(".")[0] for name in public_names()} >= set(whole)


def entries(page):
    """Return the pages in the toctrees of a page."""
    text = page.read_text("utf-8")
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    trees += re.findall(r"^\.\. toctree::\n((?:   .*\n|\n)*)", text, re.MULTILINE)
    for line in "\n".join(trees).split("\n"):
        if line.strip() and not line.strip().startswith(":"):
            yield from (
                path for end in (".md", ".rst") for path in page.parent.glob(line.strip() + end)
            )


def test_every_page_is_in_the_navigation():
    found, to_read = set(), [DOCS / "index.md"]
    while to_read:
        page = to_read.pop()
        if page not in found:
            found.add(page)
            to_read += entries(page)
    assert found == set(PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_pictures(page):
    """Every picture exists and has a text for those who do not see it."""
    for text, target in re.findall(r"!\[(.*?)\]\((\S+?)\)", page.read_text("utf-8"), re.DOTALL):
        assert len(text) > 10, target
        assert (page.parent / target).exists()
