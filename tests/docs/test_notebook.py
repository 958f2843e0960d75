"""The notebook shows what its code returns."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs/tutorials/notebook.ipynb"


@pytest.mark.filterwarnings("ignore")  # theirs
def test_the_stored_outputs_are_those_of_the_code(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs/extensions")
    monkeypatch.delitem(sys.modules, "notebooks", raising=False)
    import notebooks

    text = NOTEBOOK.read_text("utf-8")
    cells = [cell for cell in notebooks.cells_of(text) if cell["cell_type"] == "code"]
    found = notebooks.run(cells)
    assert [cell["outputs"] for cell in cells] == found, (
        "run: python docs/extensions/notebooks.py docs/tutorials/notebook.ipynb"
    )
    page = notebooks.as_markdown(text)
    assert page.count("```{raw} html") == sum("text/html" in str(one) for one in found)
    assert "the loss fell: True" in page
