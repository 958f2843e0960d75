"""``fastcollate view``: rows of a file as text."""

from __future__ import annotations

import json
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from fastcollate.cli.columns import FileRows
from fastcollate.cli.files import Source
from fastcollate.cli.options import (
    AsJson,
    Debug,
    Input,
    TokenizerPath,
    reads_columns,
)
from fastcollate.cli.tokenizers import FileTokenizer
from fastcollate.inspect.batch_view import BatchView
from fastcollate.inspect.row_view import FOLD
from fastcollate.rows.columns import Ragged

IN_TITLES = {"uids": "uid", "trajectory_ids": "trajectory"}
"""Ids in the title of a row."""


@reads_columns
def view(
    *,
    path: Input,
    row: Annotated[
        list[int] | None,
        typer.Option(min=0, metavar="ROW", help="Counted from 0 on; repeat for more. [default: 0]"),
    ] = None,
    tokenizer: TokenizerPath = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD", help="Show rewards or logprobs beneath the tokens; repeat for both."
        ),
    ] = None,
    all_tokens: Annotated[
        bool, typer.Option("--all", help="Show all tokens: long runs are folded otherwise.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
    names: dict[str, str],
) -> None:
    """Show rows: what is prompt, what trains and what is masked."""
    text = None if tokenizer is None else FileTokenizer(tokenizer)
    source = Source.of(path, names)
    found = [source.row(number) for number in dict.fromkeys(row or [0])]
    for rows in found:
        if text is not None:
            text.check(rows, path)
    for name in field or []:
        if name not in found[0].values:
            known = ", ".join(found[0].values) or "none"
            raise ValueError(f"--field is {name!r}, but {path} has these fields: {known}")
    if as_json:
        print(json.dumps([_plain(rows, text) for rows in found]))
        return
    console = Console(highlight=False)
    for rows in found:
        title = [f"row {rows.first_row:,}"]
        title += [
            f"{word} {rows.ids[name][0]}" for name, word in IN_TITLES.items() if name in rows.ids
        ]
        view = BatchView(
            rows.build()._state,
            *(0, text, field or (), None if all_tokens else FOLD),
            names={0: ", ".join(title)},
        )
        console.print(view)


def _plain(rows: FileRows, tokenizer: FileTokenizer | None) -> dict[str, Any]:
    """Return a row as JSON values."""
    found: dict[str, Any] = {"row": rows.first_row}
    columns = {"prompt": rows.prompts, "response": rows.responses, **rows.values, **rows.ids}
    for name, column in columns.items():
        values = column.to_list() if isinstance(column, Ragged) else np.asarray(column).tolist()
        found[name] = values[0]
    if tokenizer is not None:
        for name in ("prompt", "response"):
            found[f"{name}_text"] = tokenizer.decode(found[name])
    return found
