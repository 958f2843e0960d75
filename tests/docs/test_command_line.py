"""The page of the command line: its outputs, and its table of names."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("typer")
pytest.importorskip("tokenizers")

from fastcollate.cli.app import run
from fastcollate.cli.schemas import COLUMN_OPTIONS
from fastcollate.rollouts.sources import COLUMNS, SOURCES

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "examples" / "rollouts"
PAGE = (ROOT / "docs" / "command-line.md").read_text("utf-8")


def test_the_page(tmp_path, monkeypatch, capsys):
    """Every command of the page ends as the page shows it, but for figures of balancing."""
    monkeypatch.chdir(tmp_path)
    for name in ("rollouts.jsonl.gz", "tokenizer.json"):
        Path(name).write_bytes((RECORDED / name).read_bytes())
    Path("costs.json").write_text(json.dumps({"per_token": 1.0, "per_pair": 0.001}))
    commands = re.findall(r"^\$ fastcollate (.*)\n((?:(?!\$ |```).*\n)*)", PAGE, re.MULTILINE)
    assert len(commands) >= 4
    for line, output in commands:
        monkeypatch.setenv("COLUMNS", "84")
        code = run(line.split())
        found = capsys.readouterr()
        text = (found.out + found.err).replace("\xa0", " ")
        assert code == (2 if output.startswith("fastcollate: --") else 0)
        shown = output.replace("...\n", "")
        if code:  # an error, which is wrapped
            text, shown = (" ".join(one.split()) for one in (text, shown))
        if line.startswith("plan"):
            text, shown = (re.sub(r" *[-\d.,]+", " 0", one) for one in (text, shown))
        assert text.startswith(shown), f"{line}:\n{text}"


def test_all_column_names_are_on_the_page():
    for column in COLUMN_OPTIONS:
        assert f"`--{column.replace('_', '-')}`" in PAGE
        for name in COLUMNS.columns[column]:
            assert f"`{name}`" in PAGE
    assert all(f"`{name}`" in PAGE for name in SOURCES)
