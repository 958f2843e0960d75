"""``fastcollate view``: rows of a file as text."""

from __future__ import annotations

import json
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from fastcollate.build import build_batch
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
from fastcollate.inspect.row_view import FOLD
from fastcollate.rows.columns import Ragged


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
        if name not in found[0].fields:
            known = ", ".join(found[0].fields) or "none"
            raise ValueError(f"--field is {name!r}, but {path} has these fields: {known}")
    if as_json:
        print(json.dumps([_plain(rows, text) for rows in found]))
        return
    console = Console(highlight=False)
    for rows in found:
        batch = build_batch(
            rows.prompts,
            rows.responses,
            pad_token_id=0,
            array_type="numpy",
            layout="jagged",
            **rows.fields,
        )
        named = (("uid", rows.uids), ("trajectory", rows.trajectory_ids))
        title = [f"row {rows.first_row:,}"]
        title += [f"{name} {column[0]}" for name, column in named if column is not None]
        fold = None if all_tokens else FOLD
        shown = batch.show(0, tokenizer=text, fields=field or (), fold=fold)
        console.print(shown._named(", ".join(title)))


def _plain(rows: FileRows, tokenizer: FileTokenizer | None) -> dict[str, Any]:
    """Return a row as JSON values."""
    found: dict[str, Any] = {"row": rows.first_row}
    for name, column in zip(rows._fields[1:], rows[1:], strict=True):
        if column is not None:
            values = column.to_list() if isinstance(column, Ragged) else np.asarray(column).tolist()
            found[{"prompts": "prompt", "responses": "response"}.get(name, name)] = values[0]
    if tokenizer is not None:
        for name in ("prompt", "response"):
            found[f"{name}_text"] = tokenizer.decode(found[name])
    return found
