"""Calls from Arrow tables, by a schema; and calls as Arrow tables. Needs PyArrow."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fastcollate.rollouts.calls import Calls
from fastcollate.rollouts.making import Options, Place
from fastcollate.rollouts.schema import (
    FLAGS,
    IDS,
    LENGTHS,
    NUMBERS,
    RESPONSES,
    Path,
    Schema,
    Steps,
    steps_of,
)
from fastcollate.rollouts.walking import Fits, calls_of_rows, fits_of
from fastcollate.rows.column_input import ragged
from fastcollate.rows.columns import Ragged

KEY = b"fastcollate.calls"
"""The key of metadata about all calls."""


def to_arrow(calls: Calls) -> pa.Table:
    """Return calls as a table."""
    columns = {name: pa.array(_plain(getattr(calls, name))) for name in calls._names()}
    columns["bad_logprobs"] = pa.array(calls.bad_logprobs.tolist(), pa.list_(pa.int64()))
    known = {"logprobs_are": calls.logprobs_are, "skipped": calls.skipped}
    return pa.table(columns).replace_schema_metadata({KEY: json.dumps(known)})


def from_arrow(table: Any) -> Calls:
    """Return the calls of a table that :func:`to_arrow` made."""
    table = pa.table(table)
    known = (table.schema.metadata or {}).get(KEY)
    if known is None:
        raise ValueError(
            "the table is not one of Calls.to_arrow; pass tables of other sources to "
            "fc.rollouts.read"
        )
    rows = ("prompts", "responses", "logprobs", "loss_mask")
    columns: dict[str, Any] = {
        name: ragged(table[name]) if name in rows else _objects(table[name])
        for name in table.column_names
        if name != "bad_logprobs"
    }
    bad = table["bad_logprobs"].to_pylist()
    return Calls(**columns, bad_logprobs=bad, **json.loads(known))


def _plain(column: Any) -> Any:
    """Return a column as Arrow takes it."""
    if isinstance(column, (Ragged, np.ndarray)):
        return column
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
    columns: dict[str, Any] = {}
    bits: dict[str, int | None] = {}
    items, index, trees = _calls_in(table, schema)
    positions = _numbers_in(trees)
    if any(path.endswith("?") for path in schema.calls):
        # Items without a response are not calls.
        paths = schema.paths(path for name in RESPONSES for path in schema.columns.get(name, ()))
        found = _value(items, index, paths)
        have = np.zeros(len(trees), bool) if found is None else _are_valid(found)
        if have.any():
            index = {base: one[have] for base, one in index.items()}
            trees, positions = trees[have], positions[have]
    for name, given in schema.columns.items():
        paths = schema.paths(given)
        if (values := _value(items, index, paths)) is not None:
            is_read = name in (*IDS, *LENGTHS, *NUMBERS)
            columns[name] = _rows(name, values) if is_read else values.to_pylist()
            bits[name] = paths[0].bits
    bodies = index[""]
    numbers = bodies, trees, positions if schema.are_nodes else _numbers_in(bodies)
    return calls_of_rows(columns, bits, numbers, len(table), schema, options, place)


def _numbers_in(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of each item in its group; those of a group are adjacent."""
    numbers = np.arange(len(groups))
    is_first = np.diff(groups, prepend=-1) != 0
    return numbers - np.maximum.accumulate(np.where(is_first, numbers, 0))


def _value(
    items: dict[str, pa.Array], index: dict[str, NDArray[np.int64]], paths: list[Path]
) -> pa.Array | None:
    """Return the value of each call at the first of paths where it has one; None if it has none."""
    best = None
    for base, steps, _ in paths:
        found = _at(items[base], steps) if base in index else None
        if found is None:
            continue
        values = found.take(pa.array(index[base]))
        if best is None or best.null_count == len(best):
            best = values
        elif best.null_count and values.null_count < len(values):
            best = pc.if_else(best.is_valid(), best, values)
    return best


def _are_valid(values: pa.Array) -> NDArray[np.bool_]:
    valid: NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


def fits_of_table(table: pa.Table) -> Fits:
    """Return the values of a table, for :func:`fastcollate.rollouts.walking.recognised`."""
    return fits_of(_example(pa.struct(table.schema)))


def _example(kind: pa.DataType) -> Any:
    """Return a value of a type."""
    if pa.types.is_struct(kind):
        return {field.name: _example(field.type) for field in kind}
    if _is_list(kind):
        inner = _example(kind.value_type)
        return [] if inner is None else [inner]
    tests = {
        None: pa.types.is_null,
        True: pa.types.is_boolean,
        2: pa.types.is_integer,
        0.5: pa.types.is_floating,
        "": pa.types.is_string,
    }
    return next((value for value, is_of in tests.items() if is_of(kind)), b"")


def _calls_in(
    table: pa.Table, schema: Schema
) -> tuple[dict[str, pa.Array], dict[str, NDArray[np.int64]], NDArray[np.int64]]:
    """Return the items of each array of calls, the item of each call in these, and its array."""
    rows = table.to_struct_array()
    rows = rows.combine_chunks() if isinstance(rows, pa.ChunkedArray) else rows
    items: dict[str, pa.Array] = {"": rows}
    parents: dict[str, tuple[str, NDArray[np.int64]]] = {}
    last: list[str] = []
    for bases in schema.arrays:
        outer = ""
        for base in bases:
            if base not in items:
                found = _at(items[outer], steps_of(base[len(outer) :].removesuffix("[]")))
                if found is None or not _is_list(found.type):
                    break
                items[base] = pc.list_flatten(found)
                parents[base] = outer, pc.list_parent_indices(found).to_numpy()
            outer = base
        else:
            last.append(outer)
    if not last:
        numbers = np.arange(len(rows))
        return items, {"": numbers}, numbers
    # Arrays that lie in the same items have the values of the same calls.
    outer, trees = parents[last[0]]
    of_calls = trees
    alike = [one for one in last if parents[one][0] == outer]
    for base in alike:
        if not np.array_equal(parents[base][1], of_calls):
            raise ValueError(f"{base} has other numbers of items than {alike[0]}")
    index = dict.fromkeys(alike, np.arange(len(of_calls)))
    while True:
        index[outer] = of_calls
        if outer == "":
            return items, index, trees
        outer, above = parents[outer]
        of_calls = above[of_calls]


def _at(array: pa.Array, steps: Steps) -> pa.Array | None:
    """Return the values at a path; None if there are none."""
    for at, step in enumerate(steps):
        if isinstance(step, str):
            if not pa.types.is_struct(array.type) or array.type.get_field_index(step) < 0:
                return None
            array = pc.struct_field(array, step)
        elif not _is_list(array.type):
            return None
        elif step is not None:
            array = pc.list_element(array, step)
        else:
            below = _at(pc.list_flatten(array), steps[at + 1 :])
            if below is None:
                return None
            lengths = pc.list_value_length(array).fill_null(0).to_numpy()
            values, offsets = below, np.cumsum([0, *lengths])
            if _is_list(values.type):
                inner = np.cumsum([0, *pc.list_value_length(values).fill_null(0).to_numpy()])
                values, offsets = pc.list_flatten(values), inner[offsets]
            mask = array.is_null() if array.null_count else None
            return pa.LargeListArray.from_arrays(offsets, values, mask=mask)
    return array


def _rows(name: str, values: pa.Array) -> Any:
    """Return rows of numbers, and True for those that are there."""
    have, is_list = _are_valid(values), _is_list(values.type)
    flat, lengths = values.drop_null(), have.astype(np.int64)
    if is_list:
        flat = pc.list_flatten(values)
        lengths = pc.list_value_length(values).fill_null(0).to_numpy()
    is_int, is_float = pa.types.is_integer(flat.type), pa.types.is_floating(flat.type)
    is_bool = pa.types.is_boolean(flat.type)
    kinds = is_int or is_float or is_bool if name in NUMBERS else is_int and not flat.null_count
    if is_list == (name in (*LENGTHS, *FLAGS)) or not kinds:
        return values.to_pylist()  # read, or refused, one by one
    if name in NUMBERS:
        flat = (flat.cast(pa.uint8()) if is_bool else flat).cast(pa.float64())
    return Ragged(flat.to_numpy(zero_copy_only=False), np.cumsum([0, *lengths])), have
