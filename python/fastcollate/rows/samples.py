"""Samples, one mapping per row or one column per key, as the columns of `build_batch`."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from fastcollate.common.arguments import is_sequence
from fastcollate.common.arrays import describe, is_array
from fastcollate.common.names import same_word
from fastcollate.common.row_columns import VALUES
from fastcollate.rows.dataset_columns import (
    first_row,
    is_dataset,
    is_streamed,
    makes_rows,
    read_columns,
    show_columns,
)
from fastcollate.rows.fields import FIELDS, AnyField, Field, check_key, refused_option
from fastcollate.rows.pairs import PAIR, arguments_of_pairs, join
from fastcollate.rows.per_row import PerRow
from fastcollate.rows.sample_keys import ARGUMENTS, COLUMNS, KEYS, Keys, conversion_of, read
from fastcollate.rows.sample_tokens import (
    OPTIONAL,
    SEQ_LENGTHS,
    TURN,
    check_one_mark,
    check_spans,
    is_object_array,
    tokens_of,
)
from fastcollate.rows.table_columns import is_column, is_frame, read_column
from fastcollate.rows.truncation import Limit, Truncated

EXPECTED = (
    "pass a list of dicts, a dict of columns, a table of Arrow, Polars or pandas, or a Dataset, "
    "with one item per row of the batch"
)

_READERS = ("to_arrow_table", "read_all", "to_table", "collect", "read")
"""Methods that return the table of a query, a stream, a file or a plan."""


class SampleColumns(NamedTuple):
    """Input of `build_batch`."""

    arguments: dict[str, Any]
    has_labels: bool
    ids: dict[str, Any]
    """Given rows of ids by key, unless the samples state that none is padding."""
    truncated: Truncated | None
    """None without a limit."""


def columns_of(
    samples: Any,
    fields: Mapping[str, AnyField],
    ignore: Collection[str] | None,
    renamed: Mapping[str, str],
    limit: Limit | None,
) -> SampleColumns:
    """Return the columns of samples, as arguments of `build_batch`.

    Parameters
    ----------
    samples
        See :class:`fastcollate.Collator`.
    fields
        More fields by key, each with the samples' key in place of its rows.
    ignore
        Keys of samples to ignore; None for all unknown ones.
    renamed
        Keys of samples, and the known key of each (see `check_columns`).
    limit
        The maximum length of a row, if any.
    """
    sources = {key: _sources(key, field) for key, field in fields.items()}
    of_fields = _read_by(fields)
    optional = {
        source
        for key, pair in sources.items()
        if getattr(fields[key], "default", None) is not None
        for source in pair
    }
    columns = _by_key(samples, Keys(of_fields, renamed, ignore), optional)
    _check_no_text(columns)
    for source, key in of_fields.items():
        if source not in columns:
            raise ValueError(
                f"fields[{key!r}] reads {source!r}, which samples do not have; pass a key of "
                "samples, or leave the field out"
            )
    # Masks that fields read still say what trains, unless something else does.
    are_marks = {"prompt", "prompt_len", "loss_mask"}.isdisjoint((*columns, *fields))
    as_fields = {*of_fields}.intersection((SEQ_LENGTHS,) if are_marks else OPTIONAL)
    own = {key: one for key, one in columns.items() if key not in as_fields}
    if any(key in columns for key in PAIR):
        arguments, truncated = arguments_of_pairs(columns, of_fields, limit)
        for key, field in fields.items():
            if key in arguments["fields"]:
                raise ValueError(
                    f"two outputs would be {key!r}: the one of pairs and fields[{key!r}]; give the "
                    "field another key"
                )
            if limit is not None and not isinstance(field, PerRow):
                raise ValueError(
                    f"max_length is {limit.max_length}, but fields[{key!r}] has values of tokens, "
                    "which it may cut from a pair; pass fc.PerRow, or leave the field out"
                )
            chosen, rejected = sources[key][0], sources[key][-1]
            values = join(columns[chosen], columns[rejected])
            arguments["fields"][key] = _with_values(field, values, columns)
        _take_values(arguments)
        return SampleColumns(arguments, False, {key: columns[key] for key in PAIR}, truncated)
    if two := [key for key, pair in sources.items() if len(pair) > 1]:
        raise ValueError(
            f"fields[{two[0]!r}] reads two keys, {sources[two[0]]}, but samples are not pairs of "
            "'chosen_ids' and 'rejected_ids'; pass one key"
        )
    arguments, spans, truncated = tokens_of(own, limit)
    if spans is not None:
        check_spans(columns, fields, of_fields, limit)
        of_tokens = {
            one for key, pair in sources.items() if type(fields[key]) is Field for one in pair
        }
        columns = {
            key: spans.of(key, one) if key in of_tokens else one for key, one in columns.items()
        }
    for key, name in COLUMNS.items():
        if key in columns and sources.get(key) != (key,):  # else a field of the same key
            if name in arguments:
                check_one_mark(own, key)
            arguments[name] = columns[key]
    if "loss_mask" in arguments and "loss_mask" in fields:
        check_one_mark(("loss_mask", *own), "loss_mask")
        raise ValueError(
            "samples have 'loss_mask', and fields['loss_mask'] reads "
            f"{sources['loss_mask'][0]!r} for the same output; leave the field out, or name "
            "'loss_mask' in ignore"
        )
    if fields:
        arguments["fields"] = {
            key: _with_values(field, columns[sources[key][0]], columns)
            for key, field in fields.items()
        }
        _take_values(arguments)
    has_labels = ({*VALUES} - {"loss_mask"}).isdisjoint((*arguments, *fields))
    if "input_ids" not in columns:
        return SampleColumns(arguments, has_labels, {}, None)
    is_told = (spans is not None and limit is None) or "attention_mask" in columns
    ids = {} if is_told else {"input_ids": columns["input_ids"]}
    return SampleColumns(arguments, has_labels, ids, truncated)


def _take_values(arguments: dict[str, Any]) -> None:
    """Pass fields with keys of arguments as these: the loss mask decides which tokens train."""
    fields = arguments["fields"]
    for name in VALUES:
        field = fields.get(name)
        if isinstance(field, Field) and (name == "loss_mask" or refused_option(field) is None):
            arguments[name] = fields.pop(name)
        elif name == "loss_mask" and field is not None:
            raise TypeError(
                f"fields['loss_mask'] is an fc.{type(field).__name__}, but a loss mask has one "
                "value per token; pass fc.Field"
            )


def _check_no_text(columns: Mapping[str, Any]) -> None:
    """Refuse text in place of token ids."""
    keys = (*TURN, "input_ids", *PAIR)
    first = {key: read(lambda key: columns[key][0], key) for key in keys if key in columns}
    if text := [key for key, row in first.items() if isinstance(row, str)]:
        found = first[text[0]]
        raise TypeError(
            f"{text[0]} holds text, {found!r:.40}, but batches are made of token ids; "
            f"{conversion_of(found)}"
        )


def check_columns(
    columns: Any, fields: Mapping[str, AnyField], ignore: Collection[str] | None
) -> dict[str, str]:
    """Return the samples' keys to rename, and the known key of each."""
    if not isinstance(columns, Mapping):
        raise TypeError(
            f"columns is {describe(columns)}; pass a mapping from keys of samples, such as "
            "{'question_ids': 'prompts'}"
        )
    renamed: dict[str, str] = {}
    owners: dict[str, str] = {}
    of_fields = _read_by(fields)
    for key, name in columns.items():
        if not isinstance(key, str) or not isinstance(name, str):
            raise TypeError(f"columns has {key!r}: {name!r}; pass strings")
        known = ARGUMENTS.get(name, name)
        if known not in KEYS:
            raise ValueError(f"columns[{key!r}] is {name!r}; {_known_key(columns, key, name)}")
        if known in owners:
            raise ValueError(
                f"columns has two keys for {name!r}, {owners[known]!r} and {key!r}; pass one"
            )
        if key in of_fields or key in (ignore or ()):
            other = f"fields[{of_fields[key]!r}] reads it" if key in of_fields else "ignore has it"
            raise ValueError(f"columns has {key!r}, but {other}; leave it out of one of them")
        renamed[key], owners[known] = known, key
    return renamed


def _known_key(columns: Mapping[str, str], key: str, name: str) -> str:
    """Return advice for a name in columns that is not one of ours."""
    known = (*KEYS, *ARGUMENTS)
    if key in known:
        turned = {ours: theirs for theirs, ours in columns.items()}
        return f"it maps the samples' keys to ours, not the reverse: pass columns={turned}"
    if (meant := same_word(name, known)) is not None:
        return f"did you mean {meant!r}?"
    return f"pass one of {[*known]}"


def check_sources(fields: Mapping[str, Any]) -> dict[str, AnyField]:
    """Check fields that hold a key of the samples in place of rows."""
    if not isinstance(fields, Mapping):
        raise TypeError(f"fields is {describe(fields)}; pass a mapping of keys to fc.Field")
    for key, field in fields.items():
        if not isinstance(field, AnyField):
            raise TypeError(
                f"fields[{key!r}] is {describe(field)}; pass {FIELDS} with the samples' key in "
                f"place of the rows: fc.Field({key!r})"
            )
        check_key(key)
        _sources(key, field)
    return dict(fields)


def _read_by(fields: Mapping[str, AnyField]) -> dict[str, str]:
    """Return the keys of samples that fields read, and one of the fields for each."""
    return {
        source: key
        for key, field in fields.items()
        for source in (*_sources(key, field), *_starts(field))
    }


def _sources(key: str, field: AnyField) -> tuple[str, ...]:
    """Return the key of the samples that a field reads, or the two keys for pairs."""
    source = getattr(field, _values_name(field))
    if isinstance(source, str):
        return (source,)
    sources = source if isinstance(source, tuple) and len(source) == 2 else ()
    if not sources or not all(isinstance(one, str) for one in sources):
        raise TypeError(
            f"fields[{key!r}] holds {describe(source)}, but values come with the samples; "
            f"pass their key: fc.{type(field).__name__}({key!r})"
        )
    return sources


def _values_name(field: AnyField) -> str:
    return dataclasses.fields(field)[0].name


def _starts(field: AnyField) -> tuple[str, ...]:
    """Return the keys of samples that hold the first captured tokens of a field."""
    starts = getattr(field, "starts", None)
    return (starts,) if isinstance(starts, str) else ()


def _with_values(field: AnyField, values: Any, columns: Mapping[str, Any]) -> AnyField:
    if isinstance(field, PerRow) and field.concat and is_array(values) and values.ndim > 1:
        values = list(values)  # rows of equal shapes come as one array
    changes: dict[str, Any] = {_values_name(field): values}
    for key in _starts(field):
        changes["starts"] = columns[key]
    return dataclasses.replace(field, **changes)


# Keys


def _by_key(samples: Any, keys: Keys, optional: Collection[str]) -> dict[str, Any]:
    """Return the used columns by known key, with one item per row each.

    Samples may lack `optional` keys, if others have them.
    """
    if is_dataset(samples) and not makes_rows(samples) and len(samples) > 0:
        used = keys.used(show_columns(samples), lambda key: first_row(samples)[key])
        columns = read_columns(samples, list(used))
        return {name: columns[key] for key, name in used.items()}
    _check_is_one_batch(samples)
    names = samples if isinstance(samples, Mapping) else _names_of_table(samples)
    if names is not None:

        def first(key: str) -> Any:
            if key not in names:
                raise KeyError(key)  # Polars has an error of its own
            return _readable(samples[key])[0]

        used = keys.used(names, first)
        columns = {name: _readable(samples[key]) for key, name in used.items()}
        for key in (*TURN, *PAIR, "input_ids"):
            if _is_one_row(columns.get(key)):
                raise ValueError(
                    f"samples is one sample: its {key!r} is one row of ids; pass a list of samples"
                )
        return columns
    if not is_sequence(samples):
        is_path = isinstance(samples, (str, PathLike))
        how = " (of a file: pyarrow.parquet.read_table(path))" if is_path else ""
        raise TypeError(f"samples is {describe(samples)}; {EXPECTED}{how}")
    return _transpose(samples, keys, optional)


def _check_is_one_batch(samples: Any) -> None:
    """Refuse containers of several tables, and lazy ones."""
    kind = type(samples).__name__
    if isinstance(samples, dict):
        splits = [key for key, one in samples.items() if is_dataset(one) or is_streamed(one)]
        if splits:
            raise TypeError(f"samples ({kind}) has splits; pass one: samples[{splits[0]!r}]")
    elif is_streamed(samples):
        raise TypeError(
            f"samples ({kind}) has no length; pass one batch at a time: "
            "map(collate, samples.iter(batch_size=32))"
        )
    elif not is_sequence(samples) or hasattr(samples, "__arrow_c_stream__"):
        if reader := next((name for name in _READERS if hasattr(samples, name)), None):
            raise TypeError(
                f"the rows of samples ({kind}) are not read yet; pass samples.{reader}()"
            )
        if isinstance(samples, Iterator):
            raise TypeError(
                f"samples ({kind}) has no length; pass one batch at a time: "
                "list(itertools.islice(samples, 32))"
            )


def _is_one_row(column: Any) -> bool:
    """Return True if a column of ids is a single row."""
    if is_array(column):
        return column.ndim == 1 and not is_object_array(column)
    first = column[0] if isinstance(column, (list, tuple)) and column else None
    return isinstance(first, (int, np.integer))


def _names_of_table(samples: Any) -> list[str] | None:
    """Return the names of a table's columns; None for other objects."""
    if is_frame(samples):
        return list(samples.columns)
    if not hasattr(samples, "__arrow_c_stream__") and not hasattr(samples, "__arrow_c_array__"):
        return None
    for of_table in (samples, getattr(samples, "schema", None)):
        for attribute in ("column_names", "names", "columns"):
            names = getattr(of_table, attribute, None)
            if isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names):
                return list(names)
    return None


def _readable(column: Any) -> Any:
    """Return a column in a readable form: columns of datasets, pandas and Ray are converted.

    Rows of NumPy arrays have a Ray type, whose storage lacks part of their shape.
    """
    if is_column(column):
        return read_column(column)
    name = getattr(getattr(column, "type", None), "extension_name", "")
    if not name.startswith("ray."):
        return column
    chunks = [chunk.to_numpy(zero_copy_only=False) for chunk in getattr(column, "chunks", [column])]
    if len({chunk.shape[1:] for chunk in chunks} | {chunk.dtype for chunk in chunks}) == 2:
        return np.concatenate(chunks)
    rows = np.empty(sum(map(len, chunks)), object)
    for index, row in enumerate(row for chunk in chunks for row in chunk):
        rows[index] = row
    return rows


def _transpose(samples: Sequence[Any], keys: Keys, optional: Collection[str]) -> dict[str, Any]:
    """Return one list per known key, from samples that all have the same keys, or None."""
    if len(samples) == 0:
        raise ValueError("samples is empty; pass at least one sample")
    # Read once, and no further: a dataset may make its samples anew each time, and endlessly.
    samples = list(islice(samples, len(samples)))
    for index, sample in enumerate(samples):
        if not isinstance(sample, Mapping):
            if _names_of_table(sample) is not None:
                raise TypeError(
                    f"samples[{index}] is a table ({type(sample).__name__}); pass one table of "
                    "all rows"
                )
            raise TypeError(
                f"samples[{index}] is {describe(sample)}; pass a mapping such as a dict, or the "
                "whole table if these are its rows"
            )
    if optional:
        given = [key for key in optional if any(key in sample for sample in samples)]
        samples = [{**dict.fromkeys(given), **sample} for sample in samples]
    used = keys.used(samples[0], samples[0].__getitem__)
    for index, sample in enumerate(samples):
        if sample.keys() == samples[0].keys():
            continue
        holder, other, names = 0, index, used
        if all(name in sample for name in used):
            names = keys.used(sample, sample.__getitem__, is_first=False)
            holder, other = index, 0
        if missing := [name for name in names if name not in samples[other]]:
            key = missing[0]
            may_lack = COLUMNS.get(names[key]) in VALUES or key in keys.of_fields
            default = f"fields={{{key!r}: fc.Field({key!r}, default=...)}}"
            raise ValueError(
                f"samples[{other}] has no {key!r}, but samples[{holder}] has; pass it in all "
                "samples or in none"
                + (f", or as a field with a default: {default}" if may_lack else "")
            )
    return {name: [sample[key] for sample in samples] for key, name in used.items()}
