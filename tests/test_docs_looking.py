"""The snippets of docs/looking.md, with what they print."""

import doctest
import re
from pathlib import Path

import pytest

import fastcollate as fc
from rollouts import load_rollouts, load_tokenizer

PAGE = Path(__file__).parents[1] / "docs" / "looking.md"


def names():
    """Return what the page has from the beginning."""
    rollouts = load_rollouts()
    columns = ("prompts", "responses", "loss_mask", "rewards", "logprobs")
    return {
        "fc": fc,
        "tokenizer": load_tokenizer(),
        "ids": rollouts.trajectory_ids,
        "columns": {name: getattr(rollouts, name) for name in columns},
    }


def test_the_snippets(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    snippets = re.findall(
        r"^```pycon\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert len(snippets) == 5
    # Empty lines of outputs are as they are on the page, not as doctests write them.
    text = "\n".join(re.sub(r"\n(?=\n)", "\n<BLANKLINE>", snippet) for snippet in snippets)
    test = doctest.DocTestParser().get_doctest(text, names(), "looking.md", str(PAGE), 0)
    failed, tried = doctest.DocTestRunner().run(test)
    assert (failed, tried) == (0, 7), pytest.fail("see above") if failed else tried
