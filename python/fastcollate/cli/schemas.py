"""The schema of a file: a source's, or the columns that options name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from fastcollate.common.text import show
from fastcollate.rollouts.schema import IDS, RESPONSES, Schema, key_of
from fastcollate.rollouts.sources import COLUMNS, ENGINES, OTHER, SOURCES
from fastcollate.rollouts.walking import Fits, fits_of, found_paths, recognised

COLUMN_OPTIONS = {
    "prompts": "Token ids of prompts.",
    "responses": "Token ids of responses.",
    "sequences": "Token ids of prompts with their responses, in place of both.",
    "prompt_lens": "Number of prompt tokens of each sequence.",
    "loss_mask": "Loss mask, per token of responses or of sequences.",
    "rewards": "Rewards, per response token or per row.",
    "logprobs": "Log-probabilities of response tokens.",
    "attention_mask": "Attention mask, 0 on padding, which is removed (verl).",
    "uids": "Id of the prompt of each row.",
    "trajectory_ids": "Id of the trajectory of each row.",
    "is_last_step": "True for the last turn of each trajectory.",
}
"""Columns that options name, each with a description."""

CHAT = ("messages", "conversations", "conversation", "chosen", "prompt_messages")


def flag(column: str) -> str:
    """Return the option that names a column."""
    return f"--{column.replace('_', '-')}"


def schema_of_file(
    first: Any, kinds: dict[str, str], names: Mapping[str, str], schema: str | None, place: str
) -> tuple[Schema, str, list[str]]:
    """Return the schema of a file whose first body is `first`, with values of these kinds.

    The text names the source and the keys of its columns; the list has the keys of a body that are
    not read.

    Raises
    ------
    ValueError
        If a given column is missing or has other values, or there are no token ids.
    """
    if schema is not None and schema not in SOURCES:
        raise ValueError(f"--schema is {schema!r}; {OTHER}")
    fits = fits_of(first)
    known = (recognised(fits, names) if schema is None else SOURCES[schema]) or COLUMNS
    if known is not ENGINES:
        known = known.narrowed(partial(fits, known))
    source = schema or _source_of(known, fits)
    if names:
        known = _with_names(known, names, fits, kinds, place)
    if schema is None:
        _check_tokens(known, fits, first, kinds, place)
    paths = found_paths(known, fits).values()
    keys = (path.rpartition(".")[2] for path in paths)
    read = {key_of(path) for path in paths}
    return known, f"{source}: {', '.join(keys)}", [key for key in kinds if key not in read]


def _source_of(known: Schema, fits: Fits) -> str:
    """Name the source of a recognised schema, which may have columns of other sources as well."""
    if known is ENGINES:
        return "engines"

    def count_columns(name: str) -> int:
        own = SOURCES[name].narrowed(partial(fits, SOURCES[name]))
        return len(own.columns.items() & known.columns.items()) if own.calls == known.calls else -1

    return max(("columns", *SOURCES), key=count_columns)


def _with_names(
    known: Schema, names: Mapping[str, str], fits: Fits, kinds: dict[str, str], place: str
) -> Schema:
    """Return a schema with given columns in place of its own."""
    given = {name: (path,) for name, path in names.items()}
    others = {
        name: tuple(path for path in paths if path not in names.values())
        for name, paths in known.columns.items()
    }
    columns: dict[str, Any] = {name: paths for name, paths in others.items() if paths} | given
    if "sequences" in names:
        columns = {
            name: one for name, one in columns.items() if name not in ("prompts", "responses")
        }
    found = known.with_columns(columns)
    for name, path in names.items():
        fit = fits(found, name, path)
        if fit is None and path not in kinds:
            raise ValueError(
                f"{place} has no column {path!r} ({flag(name)}); name one of {_all(kinds)}"
            )
        if not fit:
            its, kind = kinds.get(path, show(path)), "token ids" if name in IDS else "numbers"
            raise ValueError(
                f"column {path!r} of {place} is {its}; pass a column of {kind} as {flag(name)}"
            )
    return found


def _check_tokens(
    schema: Schema, fits: Fits, first: Any, kinds: dict[str, str], place: str
) -> None:
    """Check that there are tokens of prompts and responses."""
    there = found_paths(schema, fits)
    have_prompts = "prompts" in there or schema.are_nodes
    if "sequences" in there or (have_prompts and not there.keys().isdisjoint(RESPONSES)):
        return
    if (kind := _text_of(first, kinds)) is not None:
        raise ValueError(
            f"{place} has {kind}, but no token ids; tokenize them with the chat template of the "
            "model, and write prompt_ids and response_ids"
        )
    missing = [name for name in ("prompts", "responses") if name not in there]
    options = " and ".join(f"{flag(name)} COLUMN" for name in missing)
    raise ValueError(
        f"{place} has no token ids of {' and '.join(missing)} under a known name; it has "
        f"{_all(kinds)}; name columns of lists of integers with {options}, or with "
        "--sequences COLUMN (within a struct: COLUMN.KEY), or name the source with --schema"
    )


def _text_of(first: Any, kinds: dict[str, str]) -> str | None:
    """Name the text of a file of chats or of texts; None for other files."""
    chat = [name for name in kinds if name in CHAT or _are_messages(first[name])]
    if chat:
        return f"chat messages ({', '.join(chat)})"
    names = {"text", "prompt", "completion", "response", "question", "answer", "instruction"}
    text = [name for name in kinds if name in names and isinstance(first[name], str)]
    return f"text ({', '.join(text)})" if text else None


def _are_messages(value: Any) -> bool:
    """Return True for dictionaries with roles."""
    return isinstance(value, list) and any(isinstance(one, dict) and "role" in one for one in value)


def _all(kinds: dict[str, str]) -> str:
    """Name all columns, each with its type."""
    names = [f"{name} ({kind})" for name, kind in kinds.items()]
    return ", ".join(names[:20]) + (" ..." if len(names) > 20 else "") or "no columns"
