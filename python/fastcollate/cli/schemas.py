"""The schema of a file: a source's, or the columns that options name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from fastcollate.common.text import show
from fastcollate.rollouts.schema import IDS, NUMBERS, RESPONSES, Schema, key_of
from fastcollate.rollouts.sources import COLUMNS, ENGINES, OTHER, ROW_PATHS, SOURCES
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

CHAT = ("messages", "conversations", "conversation", "prompt_messages")

OF_ROWS = ("rewards", "uids", "trajectory_ids", "is_last_step", "versions", "finish_reasons")
"""Columns that rows may have around the calls of a source."""


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
    fits = _with_plain_numbers(fits_of(first), first)
    known = recognised(fits, names) if schema is None else SOURCES[schema]
    source = schema
    if (known is None or (schema == "engines" and not _has_responses(known, fits))) and (
        nested := _nested(first)
    ):
        known, source = nested, "engines"
    known = known or COLUMNS
    if known is not ENGINES:
        known = known.narrowed(partial(fits, known))
    source = source or _source_of(known, fits, kinds)
    known = _with_columns_of_rows(known, fits, first, kinds)
    if names:
        known = _with_names(known, names, fits, kinds, place)
    if schema is None:
        _check_tokens(known, fits, first, kinds, place)
    elif not _has_responses(known, fits) and (other := recognised(fits, names)) is not None:
        raise ValueError(
            f"--schema is {schema!r}, but {place} has no tokens of responses under its keys; leave "
            f"it out: the rows are recognised as {_source_of(other, fits, kinds)}"
        )
    paths = found_paths(known, fits).values()
    keys = (path.rpartition(".")[2] for path in paths)
    read = {key_of(path) for path in paths}
    unread = [key + _why(key, first, kinds, fits) for key in kinds if key not in read]
    return known, f"{source}: {', '.join(keys)}", unread


def _with_plain_numbers(fits: Fits, first: Any) -> Fits:
    """Return a function by which lists of structs in a row are no numbers of tokens."""

    def fits_plainly(schema: Schema, column: str, path: str) -> bool | None:
        value = first.get(path) if isinstance(first, dict) and column in NUMBERS else None
        return False if _are_structs(value) else fits(schema, column, path)

    return fits_plainly


def _are_structs(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(one, dict) for one in value)


def _has_responses(schema: Schema, fits: Fits) -> bool:
    """Return True if there are tokens of responses."""
    return not found_paths(schema, fits).keys().isdisjoint(RESPONSES)


def _nested(first: Any) -> Schema | None:
    """Return the schema of a row with the response of an engine under one of its keys."""
    swift = SOURCES["ms-swift"]
    for key, value in first.items() if isinstance(first, dict) else ():
        if isinstance(value, dict) and isinstance(value.get("choices"), list):
            arrays, columns = (
                [tuple(path.replace("response.", f"{key}.", 1) for path in one) for one in paths]
                for paths in ([swift.calls], swift.columns.values())
            )
            return Schema(arrays[0], **dict(zip(swift.columns, columns, strict=True)))
    return None


def _with_columns_of_rows(
    known: Schema, fits: Fits, first: Any, kinds: Mapping[str, str]
) -> Schema:
    """Return a schema with the plain columns of rows around its calls that it lacks itself."""
    columns: dict[str, Any] = {**known.columns}
    read = {*found_paths(known, fits)}
    used = {path for paths in columns.values() for path in paths}
    for path, name in ROW_PATHS.items():
        if name not in OF_ROWS or name in read or path in used or key_of(path) not in kinds:
            continue
        if not isinstance(first[key_of(path)], list) and fits(known, name, path):
            columns[name] = (*columns.get(name, ()), path)
            read.add(name)
    return known if columns == known.columns else known.with_columns(columns)


def _why(key: str, first: Any, kinds: Mapping[str, str], fits: Fits) -> str:
    """Return why a column of a known name is not read, in parentheses; else nothing."""
    names = {path: name for name in ("rewards", *NUMBERS) for path in COLUMNS.columns[name]}
    if key not in names:
        return ""
    if (value := first[key]) is None:
        return " (null)"
    if fits(COLUMNS, names[key], key) is not False:
        return ""
    if isinstance(value, dict):
        inner = next((one for one in value if fits(COLUMNS, names[key], f"{key}.{one}")), None)
        return " (a struct" + (f": pass {flag(names[key])} {key}.{inner})" if inner else ")")
    if _are_structs(value):
        return " (a list of structs, not numbers)"
    return f" ({'text' if isinstance(value, str) else kinds[key]}, not numbers)"


def _source_of(known: Schema, fits: Fits, kinds: Mapping[str, str]) -> str:
    """Name the source of a recognised schema, which may have columns of other sources as well."""
    if known is ENGINES:
        return "engines"

    def count_columns(name: str) -> int:
        own = SOURCES[name].narrowed(partial(fits, SOURCES[name]))
        return len(own.columns.items() & known.columns.items()) if own.calls == known.calls else -1

    name = max(("columns", *SOURCES), key=count_columns)
    # ms-swift writes messages as well; without them it is a server's response under that key.
    return "engines" if name == "ms-swift" and "messages" not in kinds else name


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
        are_flags = name == "is_last_step"
        fit = fits(found, "trains" if are_flags else name, path)
        if fit is None and path not in kinds:
            raise ValueError(
                f"{flag(name)} is {path!r}, but {place} has no such column; name one of "
                f"{_all(kinds)}"
            )
        if not fit:
            kind = "booleans" if are_flags else "token ids" if name in IDS else "numbers"
            raise ValueError(
                f"{flag(name)} is {path!r}, which is {kinds.get(path, show(path))} in {place}; "
                f"name a column of {kind}"
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
    missing = [name for name in ("prompts", "responses") if name not in there]
    pair = [name for name in kinds if re.match("chosen|rejected", name)]
    if len({name[:6] for name in pair}) == 2:
        raise ValueError(
            f"{place} has preference pairs ({', '.join(pair)}), which the commands do not read; "
            "write each answer as a row of its own (a Collator reads pairs)"
        )
    bodies = [first, *(first.values() if isinstance(first, dict) else ())]
    if any(isinstance(one, dict) and isinstance(one.get("choices"), list) for one in bodies):
        raise ValueError(
            f"{place} has OpenAI responses without token ids of {' and '.join(missing)}; ask the "
            "server for return_token_ids=True"
        )
    if (kind := _text_of(first, kinds)) is not None:
        raise ValueError(
            f"{place} has {kind}, but no token ids; tokenize them with the chat template of the "
            "model, and write prompt_ids and response_ids"
        )
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
