"""Notebooks as pages, with the outputs that are stored in them.

``python docs/extensions/notebooks.py FILE`` runs a notebook without Jupyter, and stores outputs.
"""

from __future__ import annotations

import ast
import io
import json
import sys
from contextlib import redirect_stdout
from typing import Any

Cell = dict[str, Any]


def cells_of(notebook: str) -> list[Cell]:
    """Return the cells of a notebook's JSON, with sources and outputs as one string each."""
    cells: list[Cell] = json.loads(notebook)["cells"]
    for cell in cells:
        cell["source"] = "".join(cell["source"])
    return cells


def run(cells: list[Cell]) -> list[list[Cell]]:
    """Run the code of cells in one namespace, and return the outputs of each code cell."""
    names: dict[str, Any] = {}
    return [_run(cell["source"], names) for cell in cells if cell["cell_type"] == "code"]


def _run(code: str, names: dict[str, Any]) -> list[Cell]:
    """Return what is printed, and the display of a last line that is an expression."""
    body = ast.parse(code).body
    last = None
    if isinstance(body[-1], ast.Expr):
        last = ast.Expression(body.pop().value)  # type: ignore[attr-defined]
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        value = None if last is None else eval(compile(last, "cell", "eval"), names)
    outputs = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": printed.getvalue()})
    if value is not None:
        data = {"text/plain": repr(value)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_()
        outputs.append(
            {"data": data, "execution_count": None, "metadata": {}, "output_type": "execute_result"}
        )
    return outputs


def as_markdown(notebook: str) -> str:
    """Return a notebook as a page of MyST."""
    parts = []
    for cell in cells_of(notebook):
        if cell["cell_type"] == "markdown":
            parts.append(cell["source"])
            continue
        parts.append(f"```python\n{cell['source']}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "text/html" in data:
                parts.append(f"````{{raw}} html\n{''.join(data['text/html'])}\n````")
            else:
                text = "".join(output.get("text", data.get("text/plain", "")))
                parts.append(f"```{{code-block}} text\n:class: output\n\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def setup(app: Any) -> dict[str, bool]:
    """Read notebooks as pages."""
    from myst_parser.parsers.sphinx_ import MystParser

    class NotebookParser(MystParser):  # type: ignore[misc]
        """Reads the Markdown of a notebook."""

        supported = ("notebook",)

        def parse(self, inputstring: str, document: Any) -> None:
            super().parse(as_markdown(inputstring), document)

    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True}


def _store(path: str) -> None:
    """Run a notebook, and write it with its outputs."""
    with open(path, encoding="utf-8") as file:
        notebook = json.load(file)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell, outputs in zip(code, run(cells_of(json.dumps(notebook))), strict=True):
        cell["outputs"] = outputs
    with open(path, "w", encoding="utf-8") as file:
        json.dump(notebook, file, ensure_ascii=False, indent=1)
        file.write("\n")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        _store(name)
