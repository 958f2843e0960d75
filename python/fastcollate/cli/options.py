"""Options shared by several commands."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fastcollate.cli.errors import in_flags
from fastcollate.cli.schemas import COLUMN_OPTIONS, flag
from fastcollate.plan.costs import Costs
from fastcollate.rollouts.sources import COLUMNS, SOURCES

Input = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Parquet, Arrow IPC or JSON lines (also compressed), or a folder of such files.",
    ),
]
TokenizerPath = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        metavar="FILE",
        help="The model's tokenizer.json, or its folder, to show ids as text.",
    ),
]
SchemaName = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="NAME",
        help=f"Schema of the file, recognised by its keys if left out: {', '.join(SOURCES)}.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")]
EndIds = Annotated[
    list[int] | None,
    typer.Option(
        "--eos",
        min=0,
        metavar="ID",
        help="Id of a token that ends a response; repeat for several.",
    ),
]
Capacity = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="TOKENS",
        help="Tokens per bin; by default 16,384, or the power of two that holds the longest row.",
    ),
]
Ranks = Annotated[
    int, typer.Option("--dp-size", min=1, metavar="RANKS", help="Number of data-parallel ranks.")
]
RANKS = 8
"""Data-parallel ranks by default, as of one node."""


def rows_option(what: str) -> Any:
    """Return the option, with its help."""
    return typer.Option("--rows-per-mini-batch", min=1, metavar="ROWS", help=what)


MergePolicy = Annotated[
    Literal["exact", "branch", "realign", "none"],
    typer.Option(
        "--merge",
        metavar="POLICY",
        help="How to merge the turns of a trajectory: exact, branch, realign, or none.",
    ),
]
CostsPath = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help='Costs as JSON, such as {"per_token": 1, "per_pair": 0.001}; by default a row '
        "costs its tokens.",
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def costs_of(path: Path | None) -> Costs | None:
    """Read the costs written by ``Costs.to_dict``.

    Raises
    ------
    ValueError
        The file holds no costs.
    """
    if path is None:
        return None
    try:
        return Costs.from_dict(json.loads(path.read_text("utf-8")))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"--costs is {path}, which has no costs: {error}; write for example "
            '{"per_token": 1, "per_pair": 0.001}'
        ) from error


def _first_names(names: tuple[str, ...]) -> str:
    """Name the first columns that are looked for."""
    return f"{', '.join(names[:3])}{', ...' if len(names) > 3 else '.'}"


def reads_columns(command: Callable[..., None]) -> Callable[..., None]:
    """Add one option per column to a command, which gets the given names as `names`.

    Its errors begin with an option, or name the file.
    """
    signature = inspect.signature(command, eval_str=True)
    own = [one for name, one in signature.parameters.items() if name != "names"]
    added = [
        inspect.Parameter(
            role,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None,
                typer.Option(
                    flag(role),
                    metavar="COLUMN",
                    help=f"{what} By default {_first_names(COLUMNS.columns[role])}",
                    rich_help_panel="Columns",
                ),
            ],
        )
        for role, what in COLUMN_OPTIONS.items()
    ]
    own = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]

    @functools.wraps(command)
    def call(**given: Any) -> None:
        names = {role: given.pop(role) for role in COLUMN_OPTIONS}
        names = {role: name for role, name in names.items() if name is not None}
        try:
            command(**given, names=names)
        except (TypeError, ValueError) as error:
            text, path = in_flags(str(error)), given["path"]
            if text.startswith("--") or str(path) in text:
                raise
            raise ValueError(f"{path}: {text}") from error

    call.__signature__ = signature.replace(parameters=own + added)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in own + added}
    return call
