"""Samples, one mapping per row or one column per key, as the columns of `build_batch`."""

from __future__ import annotations

import dataclasses
import difflib
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from fastcollate._fastcollate import Stretches, pack_ids
from fastcollate.arguments import counted, id_list
from fastcollate.arrays import describe, is_array, is_tensor, offsets_of, to_numpy
from fastcollate.ingest.column_input import ragged
from fastcollate.ingest.columns import Ragged
from fastcollate.ingest.fields import Field, PerRow, RoutedExperts

AnyField = Field | PerRow | RoutedExperts

IGNORED = -100
"""The label that losses leave out."""

COLUMNS = {
    "rewards": "rewards",
    "loss_mask": "loss_masks",
    "logprobs": "logprobs",
    "uid": "uids",
    "trajectory_id": "trajectory_ids",
    "is_last_step": "is_last_step",
}
"""Keys of samples beside those of the tokens, and what `build_batch` calls all of them."""

TURN = ("prompt", "response")
"""Keys of the tokens of a rollout's turn."""

SEQUENCE = ("input_ids", "prompt_len", "labels", "attention_mask")
"""Keys of a sequence for supervised fine-tuning. The second or the third says what trains."""

EXPECTED = (
    "pass a list of dicts, a dict of columns, or a table of Arrow or Polars, "
    "with one item per row of the batch"
)


class Columns(NamedTuple):
    """What `build_batch` is called with."""

    arguments: dict[str, Any]
    has_labels: bool


def columns_of(
    samples: Any, fields: Mapping[str, AnyField], ignore: Collection[str] | None
) -> Columns:
    """Return the columns of samples, as arguments of `build_batch`.

    Parameters
    ----------
    samples
        See :class:`fastcollate.Collator`.
    fields
        More fields by their keys, each with the key of the samples in place of its rows.
    ignore
        Keys of samples that are not used; None for all that have no meaning.
    """
    sources = {key: _source(key, field) for key, field in fields.items()}
    known = {*COLUMNS, *TURN, *SEQUENCE, *sources.values()}
    columns = _by_key(samples, known, ignore)
    for key, source in sources.items():
        if source not in columns:
            raise ValueError(f"fields has {key!r}, but samples have no {source!r}")
    arguments = _tokens(columns)
    for key, name in COLUMNS.items():
        if key in columns:
            if name in arguments:
                raise ValueError(
                    f"samples have {key!r} and 'labels', which say both what trains; pass either"
                )
            arguments[name] = columns[key]
    if fields:
        arguments["fields"] = {
            key: _with_values(field, columns[sources[key]]) for key, field in fields.items()
        }
    return Columns(arguments, "labels" in columns)


def checked_sources(fields: Mapping[str, Any]) -> dict[str, AnyField]:
    """Check fields that name a key of the samples where others hold rows."""
    if not isinstance(fields, Mapping):
        raise TypeError(f"fields is {describe(fields)}; pass a mapping of keys to fc.Field")
    for key, field in fields.items():
        if not isinstance(field, (Field, PerRow, RoutedExperts)):
            raise TypeError(
                f"fields[{key!r}] is {describe(field)}; pass fc.Field, fc.PerRow or "
                "fc.RoutedExperts with the samples' key in place of the rows: "
                f"fc.Field({key!r})"
            )
        _source(key, field)
    return dict(fields)


def _source(key: str, field: AnyField) -> str:
    """Return which key of the samples holds the values of a field."""
    source = getattr(field, _values_name(field))
    if not isinstance(source, str):
        raise TypeError(
            f"fields[{key!r}] holds {describe(source)}, but values come with the samples; "
            f"pass their key: fc.{type(field).__name__}({key!r})"
        )
    return source


def _values_name(field: AnyField) -> str:
    return dataclasses.fields(field)[0].name


def _with_values(field: AnyField, values: Any) -> AnyField:
    if isinstance(field, PerRow) and field.concat and is_array(values) and values.ndim > 1:
        values = list(values)  # rows that happen to have one shape come as one array
    changes: dict[str, Any] = {_values_name(field): values}
    return dataclasses.replace(field, **changes)


# Keys


def _by_key(samples: Any, known: Collection[str], ignore: Collection[str] | None) -> dict[str, Any]:
    """Return the columns that are used, of one item per row each."""
    names = samples if isinstance(samples, Mapping) else _names_of_table(samples)
    if names is not None:
        columns = {key: _readable(samples[key]) for key in _used(names, known, ignore)}
        for key in (*TURN, "input_ids"):
            if _is_one_row(columns.get(key)):
                raise ValueError(
                    f"samples is one sample: its {key!r} is one row of ids; pass a list of samples"
                )
        return columns
    is_sequence = hasattr(type(samples), "__len__") and hasattr(type(samples), "__getitem__")
    if not is_sequence or isinstance(samples, (str, bytes, bytearray)):
        raise TypeError(f"samples is {describe(samples)}; {EXPECTED}")
    return _transposed(samples, known, ignore)


def _is_one_row(column: Any) -> bool:
    """Say whether what should be rows of ids is one row."""
    if is_array(column):
        return column.ndim == 1 and not _is_object_array(column)
    first = column[0] if isinstance(column, (list, tuple)) and column else None
    return isinstance(first, (int, np.integer))


def _names_of_table(samples: Any) -> list[str] | None:
    """Return the names of a table's columns, or None of anything that is no table."""
    if not hasattr(samples, "__arrow_c_stream__") and not hasattr(samples, "__arrow_c_array__"):
        return None
    for of_table in (samples, getattr(samples, "schema", None)):
        for attribute in ("column_names", "names", "columns"):
            names = getattr(of_table, attribute, None)
            if isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names):
                return list(names)
    return None


def _readable(column: Any) -> Any:
    """Return a column that others than Ray can read too.

    Rows that were NumPy arrays have a type of Ray's, whose storage does not say all of their shape.
    """
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


def _transposed(
    samples: Sequence[Any], known: Collection[str], ignore: Collection[str] | None
) -> dict[str, Any]:
    """Return one list per key, of samples that all have the same keys."""
    if len(samples) == 0:
        raise ValueError("samples is empty; a batch needs one row or more")
    # Read once, and no further: a data set may make its samples anew each time, and without an end.
    samples = list(islice(samples, len(samples)))
    for index, sample in enumerate(samples):
        if not isinstance(sample, Mapping):
            raise TypeError(
                f"samples[{index}] is {describe(sample)}; pass a mapping such as a dict"
            )
    used = _used(samples[0], known, ignore)
    for index, sample in enumerate(samples):
        if sample.keys() == samples[0].keys():
            continue
        own = _used(sample, known, ignore)
        for holder, names, other, others in ((0, used, index, own), (index, own, 0, used)):
            if missing := [name for name in names if name not in others]:
                raise ValueError(
                    f"samples[{other}] has no {missing[0]!r}, but samples[{holder}] has; "
                    "pass it in all samples or in none"
                )
    return {key: [sample[key] for sample in samples] for key in used}


def _used(keys: Iterable[str], known: Collection[str], ignore: Collection[str] | None) -> list[str]:
    """Return the keys that have a meaning, and refuse those that have none and are not ignored."""
    if ignore is None:
        return [key for key in keys if key in known]
    used = [key for key in keys if key not in ignore]
    for key in used:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, 1)
            meant = f" (did you mean {close[0]!r}?)" if close else ""
            raise ValueError(
                f"samples have the key {key!r}, which has no meaning here{meant}; "
                f"pass fields={{{key!r}: fc.Field({key!r})}}, or ignore=[{key!r}]"
            )
    return used


# Tokens


def _tokens(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return prompts and responses, and loss masks if there are labels."""
    if "prompt" in columns or "response" in columns:
        others = [key for key in SEQUENCE if key in columns]
        if missing := [key for key in TURN if key not in columns]:
            raise ValueError(f"samples have no {missing[0]!r}, which belongs to their other tokens")
        if others:
            raise ValueError(
                f"samples have {others[0]!r} beside 'prompt' and 'response'; pass either, or name "
                "what is not meant in ignore"
            )
        return {"prompts": columns["prompt"], "responses": columns["response"]}
    if "input_ids" not in columns:
        raise ValueError(
            "samples have no tokens; pass 'prompt' and 'response', or 'input_ids' with "
            f"'prompt_len' or 'labels' (their keys are {list(columns)})"
        )
    if ("prompt_len" in columns) == ("labels" in columns):
        raise ValueError(
            f"samples have 'input_ids' and {'both' if 'labels' in columns else 'neither'} of "
            "'prompt_len' and 'labels'; pass one of them, to say what trains"
        )
    ids = _ids("input_ids", columns["input_ids"])
    if "attention_mask" in columns:
        _check_no_padding(ids, _ids("attention_mask", columns["attention_mask"]))
    values, starts = ids.values, ids.offsets[:-1]
    if "labels" in columns:
        trained = _trained(ids, _ids("labels", columns["labels"]))
        prompt_lens = _first(trained, ids.offsets)
    else:
        prompt_lens = _prompt_lens(columns["prompt_len"], ids.lengths)
    response_lens = ids.lengths - prompt_lens
    arguments: dict[str, Any] = {
        "prompts": Stretches([(values, starts, prompt_lens)]),
        "responses": Stretches([(values, starts + prompt_lens, response_lens)]),
    }
    if "labels" in columns:
        arguments["loss_masks"] = Stretches([(trained, starts + prompt_lens, response_lens)])
    return arguments


def _ids(name: str, column: Any) -> Ragged:
    """Return a column of integers in one array, or one tensor, on the host."""
    if isinstance(column, (list, tuple)) or _is_object_array(column):
        arrays = [row for row in column if _is_integers(row)]
        if len(arrays) == len(column) > 0 and len({row.dtype for row in arrays}) == 1:
            return Ragged(np.concatenate(arrays), offsets_of([len(row) for row in arrays]))
        # Boxed numbers are unboxed by the core, which names the place of a bad one.
        packed = [pack_ids(name, row, index) for index, row in enumerate(column)]
        return ragged(packed, dtype="int64") if packed else Ragged(np.empty(0, np.int64), [0])
    try:
        rows = ragged(column)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} cannot be read: {error}") from error
    values = to_numpy(rows.values)
    if values.ndim != 1 or values.dtype.kind not in "biu":
        raise TypeError(
            f"{name} holds {values.dtype} of shape {values.shape[1:]} per token; pass integers"
        )
    # A tensor stays one: the core looks up where its memory is, which another thread may move.
    is_view = is_tensor(rows.values) and rows.values.is_cpu
    return rows if is_view else Ragged(values, rows.offsets)


def _is_object_array(column: Any) -> bool:
    return isinstance(column, np.ndarray) and column.dtype.kind == "O"


def _is_integers(row: Any) -> bool:
    return type(row) is np.ndarray and row.ndim == 1 and row.dtype.kind in "iu"


def _check_same_lengths(ids: Ragged, name: str, other: Ragged) -> None:
    if len(other) != len(ids):
        raise ValueError(f"{name} has {counted(len(other), 'row')}, but input_ids has {len(ids)}")
    differ = other.lengths != ids.lengths
    if differ.any():
        row = int(differ.argmax())
        raise ValueError(
            f"{name}[{row}] has {other.lengths[row]} items, but input_ids[{row}] has "
            f"{ids.lengths[row]}"
        )


def _place(offsets: np.ndarray, index: int) -> tuple[int, int]:
    """Return the row and the position in it of one of all values."""
    row = int(np.searchsorted(offsets, index, side="right")) - 1
    return row, index - int(offsets[row])


def _check_no_padding(ids: Ragged, mask: Ragged) -> None:
    _check_same_lengths(ids, "attention_mask", mask)
    values = to_numpy(mask.values)
    if (values != 1).any():
        index = int((values != 1).argmax())
        row, position = _place(ids.offsets, index)
        raise ValueError(
            f"attention_mask[{row}][{position}] is {values[index]}, so the row is padded "
            "already; pass rows without padding"
        )


def _trained(ids: Ragged, labels: Ragged) -> np.ndarray:
    """Return which tokens have a label: bool (tokens,)."""
    _check_same_lengths(ids, "labels", labels)
    targets, tokens = to_numpy(labels.values), to_numpy(ids.values)
    trained: np.ndarray = targets != IGNORED
    wrong = targets != tokens
    wrong &= trained
    if wrong.any():
        index = int(wrong.argmax())
        row, position = _place(ids.offsets, index)
        raise ValueError(
            f"labels[{row}][{position}] is {targets[index]}, but "
            f"input_ids[{row}][{position}] is {tokens[index]}; a label is {IGNORED} or the id "
            "of its own position (models shift them inside)"
        )
    return trained


def _first(trained: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Count the tokens of each row in front of the first that is trained: int64 (rows,)."""
    places = np.append(np.flatnonzero(trained), len(trained))
    first = places[np.searchsorted(places, offsets[:-1])]
    found: np.ndarray = np.minimum(first, offsets[1:]) - offsets[:-1]
    return found


def _prompt_lens(column: Any, lengths: np.ndarray) -> np.ndarray:
    items = id_list("prompt_len", column)
    if len(items) != len(lengths):
        raise ValueError(
            f"prompt_len has {counted(len(items), 'row')}, but input_ids has {len(lengths)}"
        )
    prompt_lens = np.empty(len(items), np.int64)
    for row, item in enumerate(items):
        try:
            count = operator.index(item)
        except TypeError as error:
            raise TypeError(f"prompt_len[{row}] is {describe(item)}; pass an integer") from error
        if not 0 <= count <= lengths[row]:
            raise ValueError(
                f"prompt_len[{row}] is {count}, but input_ids[{row}] has {lengths[row]} tokens"
            )
        prompt_lens[row] = count
    return prompt_lens
