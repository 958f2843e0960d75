"""``fastcollate view``: rows of a file as text."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from fastcollate.cli.files import Source
from fastcollate.cli.options import AsJson, Debug, Input, SchemaName, TokenizerPath, reads_columns
from fastcollate.cli.printing import print_json, print_text
from fastcollate.cli.rows import FileRows
from fastcollate.cli.tokenizers import FileTokenizer
from fastcollate.inspect.call_view import view_calls
from fastcollate.inspect.row_view import FOLD
from fastcollate.rollouts.calls import Calls
from fastcollate.rows.columns import Ragged


@reads_columns
def view(
    *,
    path: Input,
    schema: SchemaName = None,
    row: Annotated[
        list[int] | None,
        typer.Option(
            metavar="ROW", help="Number of a row, from 1, which is the default; repeat for several."
        ),
    ] = None,
    tokenizer: TokenizerPath = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD",
            help="Show rewards, logprobs, advantages or loss_mask, beneath tokens or in the title "
            "of a row; repeat for several.",
        ),
    ] = None,
    all_tokens: Annotated[
        bool, typer.Option("--all", help="Show all tokens; by default long runs are folded.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
    names: dict[str, str],
) -> None:
    """Show rows: the prompt, the tokens that train and the masked ones."""
    text = None if tokenizer is None else FileTokenizer(tokenizer)
    source = Source.of(path, names, schema)
    numbers = list(dict.fromkeys(row or [1]))
    calls, count = source.rows(numbers)
    rows = FileRows(1, calls)
    if text is not None:
        text.check(rows, path, numbers)
    fields = [source.column_of(name) for name in field or []]
    for given, name in zip(field or [], fields, strict=True):
        if name not in (values := _values(rows)):
            known = ", ".join(values)
            has = f"only {known}" if known else "none; leave it out"
            raise ValueError(f"--field is {given!r}, but {path} has {has}")
    if as_json:
        print_json([_plain(calls.select([at]), row, text) for at, row in enumerate(numbers)])
        return
    titles = {at: rows.title(at, f"row {row:,} of {count:,}") for at, row in enumerate(numbers)}
    fold = None if all_tokens else FOLD
    view = view_calls(calls, range(len(numbers)), text, fields, fold, titles)
    Console(highlight=False).print(view)
    if row is None and count > 1:
        print_text(f"row 1 of {count:,}; pass --row N for another, repeatedly for several")


def _values(rows: FileRows) -> dict[str, Any]:
    """Return the values of rows that can be shown, those that there are."""
    return {**rows.values, **rows.calls._arguments("advantages")}


def _plain(calls: Calls, row: int, tokenizer: FileTokenizer | None) -> dict[str, Any]:
    """Return a row as JSON values."""
    rows = FileRows(row, calls)
    found: dict[str, Any] = {"row": row}
    tokens = {"prompt": calls.prompts, "response": calls.responses}
    columns: dict[str, Any] = {**tokens, **_values(rows), **rows.ids}
    for name, column in columns.items():
        values = column.to_list() if isinstance(column, Ragged) else np.asarray(column).tolist()
        found[name] = values[0]
    if tokenizer is not None:
        for name in ("prompt", "response"):
            found[f"{name}_text"] = tokenizer.decode(found[name])
    return found
