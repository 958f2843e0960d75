"""The snippets of docs/tables.md: each batch in them is that of the table in the first one."""

import re
from pathlib import Path

import pytest

from fastcollate.testing.reference import assert_same

pytest.importorskip("torch")
pytest.importorskip("pyarrow")

PAGE = Path(__file__).parents[1] / "docs" / "tables.md"
TEXT = PAGE.read_text("utf-8")
FIRST, *OTHERS = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


class Checked(dict):
    """Names of a snippet, which is refused where it makes another batch."""

    def __init__(self, shared):
        super().__init__()
        collate, table = shared["collate"], shared["table"]
        self.all, self.parts = collate(table), [collate(table[:2]), collate(table[2:])]
        self.checked = 0

    def __setitem__(self, name, value):
        super().__setitem__(name, value)
        expected = {"batch": [self.all], "batches": self.parts}.get(name, [])
        found = value if name == "batches" else [value]
        for one, other in zip(found if expected else [], expected, strict=True):
            assert_same(one, other)
            assert one.uids == other.uids
            self.checked += 1


@pytest.mark.parametrize("code", ["", *OTHERS])
def test_a_snippet(code, tmp_path, monkeypatch):
    for library in "polars", "duckdb", "pandas", "datasets":
        if library in code:
            pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    shared = {}
    exec(FIRST, shared)
    names = Checked(shared)
    exec(code or FIRST, shared, names)
    assert names.checked
