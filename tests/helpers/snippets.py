"""The Python snippets of the pages, and their runs."""

import doctest
import re
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from docs_setup import NEEDS, PAGE_NEEDS

from fastcollate.testing.reference import assert_same

ROOT = Path(__file__).parents[2]

FENCE = re.compile(r"^```([^`\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

HAS_TORCH = find_spec("torch") is not None


class Snippet(NamedTuple):
    page: str
    line: int
    code: str

    @property
    def shows_output(self):
        return self.code.startswith(">>>")

    @property
    def skipped(self):
        """The reason to skip it, or None."""
        for name in PAGE_NEEDS.get(self.page, ("torch",)):
            if find_spec(name) is None:
                return f"needs {name}"
        reasons = (reason for text, is_there, reason in NEEDS
                   if re.search(text, self.code) and not is_there())  # fmt: skip
        return next(reasons, None)

    @property
    def is_moved(self):
        """True if it runs on the CPU for lack of a GPU."""
        if '"cuda"' not in self.code or not HAS_TORCH:
            return False
        import torch

        return not torch.cuda.is_available()


def snippets_of(page):
    text = (ROOT / page).read_text("utf-8")
    found = list(FENCE.finditer(text))
    assert text.count("```") == 2 * len(found), f"{page} has a fence that is none of a block"
    return [
        Snippet(page, text.count("\n", 0, match.start(2)) + 1, match[2])
        for match in found
        if match[1] in ("python", "pycon") or match[2].startswith(">>>")
    ]


def page_names():
    pages = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md"))
    return ["README.md", *pages]


# Those of tutorials stand in scripts (test_tutorials.py).
SNIPPETS = {
    page: found
    for page in page_names()
    if not page.startswith("docs/tutorials/") and (found := snippets_of(page))
}


class Tables(dict):
    """Names of docs/tables.md, where every batch has to be that of its first snippet."""

    checked = 0

    def __setitem__(self, name, value):
        if name in ("batch", "batches"):
            expected = {"batch": [self["all"]], "batches": self["parts"]}.get(name)
            for one, other in zip(value if name == "batches" else [value], expected, strict=True):
                assert_same(one, other)
                assert one.uids == other.uids
                self.checked += 1
        super().__setitem__(name, value)


def begin(page, snippets):
    """Return the names of a page before its first snippet."""
    if page != "docs/tables.md":
        return {}
    shared = {}
    exec(snippets[0].code, shared)
    collate, table = shared["collate"], shared["table"]
    return Tables(all=collate(table), parts=[collate(table[:2]), collate(table[2:])])


def run(snippet, names):
    code = snippet.code.replace('"cuda"', '"cpu"') if snippet.is_moved else snippet.code
    if snippet.shows_output:
        # Empty lines of outputs are as they are on the page, not as doctests write them.
        code = re.sub(r"\n(?=\n)", "\n<BLANKLINE>", code)
        parsed = doctest.DocTestParser().get_doctest(code, names, snippet.page, snippet.page, 0)
        check(parsed, snippet.line)
        names.update(parsed.globs)
    else:
        # A traceback shows the line of the page.
        compiled = compile("\n" * (snippet.line - 1) + code, ROOT / snippet.page, "exec")
        checked = getattr(names, "checked", None)
        with gradients("backward" in code):
            exec(compiled, names)
        assert checked is None or names.checked > checked, "it makes no batch"


def gradients(are_needed):
    """FlexAttention has no backward pass on the CPU."""
    if not HAS_TORCH:
        return nullcontext()
    import torch

    return torch.set_grad_enabled(are_needed)


def check(parsed, line=0):
    parsed.lineno = line
    said = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    if runner.run(parsed, out=said.append, clear_globs=False).failed:
        pytest.fail("".join(said), pytrace=False)


class Pages:
    """The names of each page, and which of its snippets ran."""

    def __init__(self, folder):
        self.folder, self.begun = folder, {}

    def run_to(self, last):
        """Run a page's snippets until one, but those that ran before."""
        if last.page not in self.begun:
            self.begun[last.page] = begin(last.page, SNIPPETS[last.page]), []
        names, ran = self.begun[last.page]
        for snippet in SNIPPETS[last.page]:
            if snippet not in ran and snippet.line <= last.line and not snippet.skipped:
                ran.append(snippet)
                run(snippet, names)
        return names
