"""The pages of the documentation site: complete reference, navigation and alternative texts."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "python" / "fastcollate"
ENDS = (".md", ".rst", ".ipynb")
PAGES = sorted(page for end in ENDS for page in DOCS.glob(f"**/*{end}"))


def public_names():
    """Return the names in every `__all__`, read without an import: Ray may be absent."""
    lists = {}
    for path in PACKAGE.glob("**/*.py"):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                lists[module.removesuffix(".__init__")] = ast.literal_eval(node.value)
    for module, names in lists.items():
        handed_on = lists.get(module.rpartition(".")[0], [])
        if not set(names) <= set(handed_on):
            yield from (f"{module}.{name}" for name in names)


def test_every_public_name_is_in_the_reference_once():
    text = "\n".join(path.read_text("utf-8") for path in sorted(DOCS.glob("reference/*.rst")))
    documented = re.findall(
        r"^\.\. (?:auto)?(?:class|function|data):: ([\w.]+)", text, re.MULTILINE
    )
    whole = re.findall(r"^\.\. automodule:: (\S+)$", text, re.MULTILINE)
    names = {name for name in public_names() if name.rpartition(".")[0] not in whole}
    assert len(documented) == len(set(documented))
    assert names <= set(documented)
    # Others are types that methods return, which users need not import.
    received = {name.rpartition(".")[2] for name in set(documented) - names}
    assert all(name[0].isupper() for name in received)
    assert received.isdisjoint(name.rpartition(".")[2] for name in names)
    assert {name.rpartition(".")[0] for name in public_names()} >= set(whole)


def entries(page):
    """Return the pages in the toctrees of a page."""
    text = page.read_text("utf-8")
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    trees += re.findall(r"^\.\. toctree::\n((?:   .*\n|\n)*)", text, re.MULTILINE)
    for line in "\n".join(trees).split("\n"):
        if line.strip() and not line.strip().startswith(":"):
            yield from (path for end in ENDS for path in page.parent.glob(line.strip() + end))


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


def test_pictures_show_what_the_library_returns(tmp_path):
    pytest.importorskip("torch")  # for the snippet of the start page
    subprocess.run([sys.executable, DOCS / "drawing", "--out", tmp_path], check=True)
    drawn = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text("utf-8") for path in DOCS.glob("pictures/*")}
    assert drawn == kept, "run make pictures"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_code_fits_into_a_wide_page(page):
    for language, code in re.findall(
        r"^```(.*?)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    ):
        columns = 100 if language in {"py", "python"} else 118
        assert [line for line in code.split("\n") if len(line) > columns] == []


@pytest.mark.parametrize(
    "parts",
    [
        "tests/|docs/|test_|site.py",
        "fc.Routed!Experts(|starts=|starts)",
        "cu_seqlens_|padded",
        ".ci/|upstream",
        "__init__.py",
        "Async!GRPO!Trainer",
        "MemoryError",
        "Error::|External",
        "oversize=|&quot;own_|bin&quot;",
        "Field((|ids, counts)",
        "merge_|turns(...).|report",
        "entry[token].|logprob",
        "prompt",
        "get_~position_~ids_~from_~packed_~seq_~lengths",
    ],
)
def test_names_break_between_words(monkeypatch, parts):
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(DOCS / "extensions")
    from word_breaks import add_breaks

    code = '<span class="pre">{}</span>'.format
    context = dict.fromkeys(("body", "toc"), code(re.sub("[|!~]", "", parts)))
    add_breaks(None, "page", "page.html", context, None)
    for mark, place in ("|", ""), ("!", ' class="capital"'), ("~", ' class="long"'):
        parts = parts.replace(mark, f"<wbr{place}>")
    broken = code(parts)
    assert context == {"body": broken, "toc": broken}


def test_summaries_have_the_titles_of_sections(monkeypatch):
    nodes = pytest.importorskip("docutils.nodes")
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(DOCS / "extensions")
    from summaries import table

    page, part = nodes.section(ids=["page"]), nodes.section(ids=["verl"])
    part += nodes.title(text="verl")
    page += part
    found = [(page, "fc.pad", "pad", "Pad"), (part, "fc.a", "a", "A"), (part, "fc.b", "b", "B")]
    rows = [row.astext().split() for row in table(found).findall(nodes.row)]
    assert rows == [["pad", "Pad"], ["verl"], ["a", "A"], ["b", "B"]]


def test_search_words_lead_to_pages(monkeypatch):
    """The build checks their sections."""
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(DOCS / "extensions")
    from search_words import LINES, WORDS

    words = [word for line in LINES for word in line.split(": ")[1].split(", ")]
    assert len({word.lower().replace("_", " ") for word in words}) == len(words) == len(WORDS)
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in PAGES}
    assert {target.partition("#")[0] for target in WORDS.values()} <= pages


def test_sections_of_the_search_have_their_own_text(monkeypatch):
    nodes = pytest.importorskip("docutils.nodes")
    addnodes = pytest.importorskip("sphinx.addnodes")
    monkeypatch.syspath_prepend(DOCS / "extensions")
    from search_words import sections

    signature = addnodes.desc_signature("", "", ids=["fc.pad"], fullname="pad")
    about = addnodes.desc_content("", nodes.paragraph(text="Pad\nrows."))
    inner = nodes.section("", nodes.title(text="Inner"), nodes.paragraph(text="In."), ids=["in"])
    outer = nodes.section("", nodes.title(text="Outer"), nodes.comment(text="no"), ids=["out"])
    outer += [nodes.paragraph(text="Out."), addnodes.desc("", signature, about), inner]
    expected = [("out", "Outer", "Out."), ("fc.pad", "pad", "Pad rows."), ("in", "Inner", "In.")]
    assert [*sections(outer)] == expected


def test_types_of_parameters(monkeypatch):
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(DOCS / "extensions")
    from parameter_types import add_types

    import fastcollate as fc

    lines = ["Plan.", "", "Parameters", "----------", "rows", "    Rows.", "dp_size", "    Ranks."]
    lines += ["keep_together", "layout", "uids, dp_size", "", "Returns", "-------", "dp_size"]
    add_types(None, "function", "plan_step", fc.plan_step, None, lines)
    assert lines[4:] == [
        *("rows", "    Rows.", "dp_size : ``int``", "    Ranks."),
        *('keep_together : ``"prompt" | "trajectory"``', "layout : ``Layout | str``"),
        *("uids, dp_size", "", "Returns", "-------", "dp_size"),
    ]


def test_members_have_the_order_of_their_table(monkeypatch):
    nodes = pytest.importorskip("docutils.nodes")
    addnodes = pytest.importorskip("sphinx.addnodes")
    monkeypatch.syspath_prepend(DOCS / "extensions")
    from summaries import order

    def member(name):
        return addnodes.desc("", addnodes.desc_signature(fullname=f"Batch.{name}"), name=name)

    links = [addnodes.pending_xref(reftarget=name) for name in ("show", "check", "show")]
    about = nodes.paragraph()
    content = addnodes.desc_content("", nodes.table("", *links), member("check"), about)
    content += [member("pop"), member("show")]
    order(content)
    assert [node.get("name") for node in content] == [None, "show", None, "check", "pop"]
