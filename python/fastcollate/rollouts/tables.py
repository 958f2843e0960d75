"""Calls from Arrow tables, by a schema; and calls as Arrow tables. Needs PyArrow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fastcollate.common.arguments import check_arrow
from fastcollate.common.arrays import offsets_of
from fastcollate.rollouts.calls import Calls
from fastcollate.rollouts.making import Options, Place
from fastcollate.rollouts.schema import IDS, NUMBERS, Schema, key_of
from fastcollate.rollouts.walking import calls_from, walk
from fastcollate.rows.column_input import ragged
from fastcollate.rows.columns import Ragged

KEY = b"fastcollate.calls"
"""The key of metadata about all calls."""


_ROWS = (*IDS, *NUMBERS)
"""Columns that are read as rows of numbers."""


def to_arrow(calls: Calls) -> pa.Table:
    """Return calls as a table."""
    columns = {name: pa.array(_plain(column)) for name, column in calls._all().items()}
    columns["bad_logprobs"] = columns["bad_logprobs"].cast(pa.list_(pa.int64()))
    known = {"logprobs_are": calls.logprobs_are, "skipped": calls.skipped}
    return pa.table(columns).replace_schema_metadata({KEY: json.dumps(known)})


def from_arrow(table: Any) -> Calls:
    """Return the calls of a table that :func:`to_arrow` made."""
    table = pa.table(table)
    check_arrow(table)
    try:
        known = json.loads((table.schema.metadata or {}).get(KEY, b""))
    except ValueError:
        known = None
    if not isinstance(known, dict) or {*known} != {"logprobs_are", "skipped"}:
        raise ValueError(
            "the table is not one of Calls.to_arrow; pass tables of other sources to "
            "fc.rollouts.read"
        )
    rows = ("prompts", "responses", "logprobs", "loss_mask")
    columns: dict[str, Any] = {
        name: ragged(table[name]) if name in rows else _objects(table[name])
        for name in table.column_names
    }
    return Calls(**columns, **known)


def _plain(column: Any) -> Any:
    """Return a column as Arrow takes it."""
    if isinstance(column, (Ragged, np.ndarray)):
        return column.tolist() if isinstance(column, np.ndarray) and column.ndim > 1 else column
    arrays = [one for one in column if isinstance(one, np.ndarray)]
    if arrays and len(arrays) == len(column) and len({one.shape[1:] for one in arrays}) == 1:
        return ragged(list(column))
    return [one.tolist() if isinstance(one, np.ndarray) else one for one in column]


def _objects(column: pa.ChunkedArray) -> Any:
    """Return a column as the reader of its source did: rows of numbers, or objects."""
    kind = column.type
    if pa.types.is_integer(kind) and not column.null_count:
        return column.to_numpy()
    if _is_list(kind) and not column.null_count:
        if pa.types.is_floating(kind.value_type):
            return ragged(column)
        if pa.types.is_fixed_size_list(kind.value_type):
            rows = ragged(column)
            return [rows[row] for row in range(len(rows))]
    return column.to_pylist()


def _is_list(kind: pa.DataType) -> bool:
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_of(kind) for is_of in kinds)


# Tables of sources


def read_table(table: pa.Table, schema: Schema, options: Options, place: Place) -> Calls:
    """Read the calls of a table whose rows are bodies.

    Raises
    ------
    ValueError
        As :func:`fastcollate.rollouts.parse`.
    """
    check_arrow(table)
    for index, field in enumerate(table.schema):
        if (kind := _decoded(field.type)) != field.type:
            column = table.column(index)
            column = pc.run_end_decode(column) if _is_run_end(field.type) else column
            table = table.set_column(index, field.name, column.cast(kind))
    # Looking for columns that the table lacks would take most of the time.
    known = {*table.column_names}
    columns = {
        name: tuple(path for path in given if key_of(path) in known)
        for name, given in schema.columns.items()
    }
    there = {name: given for name, given in columns.items() if given}
    schema = schema.with_columns(there)
    numbers = {path for name in _ROWS for path in schema.columns.get(name, ())}
    plain = [path for paths in there.values() for path in paths]
    is_plain = len(plain) == len(there) and {*plain} <= known
    if is_plain and schema.calls == ("",) and not schema.are_nodes:
        found = {
            name: [
                row for chunk in table[path].chunks for row in _items(chunk, path, [path], numbers)
            ]
            for name, (path,) in there.items()
        }
        places = [(row, row, 0) for row in range(len(table))]
        return calls_from(found, places, len(table), schema, options, place)
    paths = [path.removesuffix("?") for path in schema.calls if path]
    paths += [path for one in schema.columns.values() for path in one]
    rows = table.to_struct_array()
    rows = rows.combine_chunks() if isinstance(rows, pa.ChunkedArray) else rows
    return walk(_items(rows, "", paths, numbers), schema, options, place, are_rows=True)


def _is_number(kind: pa.DataType) -> bool:
    return any(is_of(kind) for is_of in (pa.types.is_integer, pa.types.is_floating))


def _items(array: pa.Array, path: str, paths: Sequence[str], numbers: set[str]) -> list[Any]:
    """Return the items of an array: dictionaries of what lies on paths, and rows of numbers."""
    kind = array.type
    below = [one for one in paths if one.startswith(path)]
    if pa.types.is_struct(kind) and path not in below:
        keys = {key_of(one[len(path) :].removeprefix(".")) for one in below}
        fields = zip(kind, array.flatten(), strict=True)
        parts = {
            field.name: _items(part, f"{path}.{field.name}".removeprefix("."), below, numbers)
            for field, part in fields
            if field.name in keys
        }
        columns = zip(*parts.values(), strict=True) if parts else repeat((), len(array))
        found: list[Any] = [dict(zip(parts, row, strict=True)) for row in columns]
    elif _is_list(kind) and (path in numbers or any(one.startswith(f"{path}[]") for one in below)):
        flat = pc.list_flatten(array)
        has_gaps = pa.types.is_integer(flat.type) and flat.null_count
        if path in numbers and _is_number(flat.type) and not has_gaps:
            values: Any = _numpy(flat)
        else:
            values = _items(flat, f"{path}[]", below, numbers)
        lengths = pc.list_value_length(array)
        lengths = lengths.fill_null(0) if lengths.null_count else lengths
        offsets = offsets_of(_numpy(lengths)).tolist()
        found = [values[start:end] for start, end in pairwise(offsets)]
    else:
        found = array.to_pylist()
    if array.null_count and found:
        have = array.is_valid().to_numpy(zero_copy_only=False).tolist()
        found = [row if is_there else None for row, is_there in zip(found, have, strict=True)]
    return found


def _numpy(array: pa.Array) -> np.ndarray:
    """Return numbers as NumPy's. PyArrow's own way imports pandas, which takes a second."""
    has_nulls = array.null_count > 0
    found: np.ndarray = array.to_numpy(zero_copy_only=False) if has_nulls else np.from_dlpack(array)
    return found


_is_run_end = pa.types.is_run_end_encoded


def _decoded(kind: pa.DataType) -> pa.DataType:
    """Return the type of values without their encoding; floats for decimals."""
    if pa.types.is_dictionary(kind) or _is_run_end(kind):
        return _decoded(kind.value_type)
    if _is_list(kind) and (inner := _decoded(kind.value_type)) != kind.value_type:
        return pa.large_list(inner)
    return pa.float64() if pa.types.is_decimal(kind) else kind


def example_of(kind: pa.DataType | pa.Schema) -> Any:
    """Return a value of a type, or a row of a table."""
    kind = kind if isinstance(kind, pa.Schema) else _decoded(kind)
    if isinstance(kind, pa.Schema) or pa.types.is_struct(kind):
        return {field.name: example_of(field.type) for field in kind}
    if _is_list(kind):
        inner = example_of(kind.value_type)
        return [] if inner is None else [inner]
    tests = {
        None: pa.types.is_null,
        True: pa.types.is_boolean,
        2: pa.types.is_integer,
        0.5: pa.types.is_floating,
        "": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    }
    return next((value for value, is_of in tests.items() if is_of(kind)), b"")
