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
from fastcollate.rollouts.schema import IDS, LENGTHS, NUMBERS, RESPONSES, Schema, Steps, steps_of
from fastcollate.rollouts.walking import KINDS, Fits, calls_of_rows
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
    columns, bits = {}, {}
    items, index = _calls_in(table, schema)
    if any(path.endswith("?") for path in schema.calls):
        index = _with_responses(items, index, schema)
    count = len(index[""])
    for name, paths in schema.columns.items():
        for path in sorted(map(schema.path, paths), key=lambda path: -len(path.base)):
            found = _at(items[path.base], path.steps) if path.base in index else None
            if found is None or found.null_count == len(found):
                continue
            values = found.take(pa.array(index[path.base]))
            read = _rows if name in (*IDS, *LENGTHS, *NUMBERS) else _list
            try:
                columns[name], bits[name] = read(name, values), path.bits
            except (pa.ArrowInvalid, TypeError, ValueError) as error:
                raise ValueError(f"{place.of(0)} and later ones: {name}: {error}") from error
            break
    bodies = index[""]
    is_new = np.diff(bodies, prepend=-1) != 0
    starts = np.maximum.accumulate(np.where(is_new, np.arange(count), 0))
    numbers = bodies, np.arange(count) - starts
    return calls_of_rows(columns, bits, numbers, len(table), schema, options, place)


def _with_responses(
    items: dict[str, pa.Array], index: dict[str, NDArray[np.int64]], schema: Schema
) -> dict[str, NDArray[np.int64]]:
    """Return the calls that have a response: other items of these arrays are not calls."""
    have = np.zeros(len(index[""]), bool)
    for path in (path for name in RESPONSES for path in schema.columns.get(name, ())):
        base, steps, _ = schema.path(path)
        found = _at(items[base], steps) if base in index else None
        if found is not None:
            valid = found.take(pa.array(index[base])).is_valid()
            have |= valid.to_numpy(zero_copy_only=False)
    return {base: one[have] for base, one in index.items()} if have.any() else index


def _list(_: str, values: pa.Array) -> list[Any]:
    found: list[Any] = values.to_pylist()
    return found


def fits_of_table(table: pa.Table) -> Fits:
    """Return the types of a table, for :func:`fastcollate.rollouts.walking.recognised`."""

    def fits(schema: Schema, column: str, path: str) -> bool | None:
        base, steps, _ = schema.path(path)
        kind: Any = pa.struct(table.schema)
        for step in (*steps_of(base), *steps):
            kind = _below(kind, step)
        if kind is None or pa.types.is_null(kind):
            return None
        if column not in KINDS:
            return True
        kinds, dims = KINDS[column]
        flat = kind.value_type if _is_list(kind) else kind
        is_one_of_many = None in steps
        dim = int(_is_list(kind) or is_one_of_many)
        return dim in dims and _letter(flat) in f"{kinds}n"

    return fits


def _below(kind: Any, step: str | int | None) -> Any:
    """Return the type one step below another; None if there is none."""
    if kind is None:
        return None
    if isinstance(step, str):
        is_there = pa.types.is_struct(kind) and kind.get_field_index(step) >= 0
        return kind.field(step).type if is_there else None
    return kind.value_type if _is_list(kind) else None


def _letter(kind: pa.DataType) -> str:
    """Return the kind of NumPy's dtype for a type, or n for nulls."""
    tests = {
        "b": pa.types.is_boolean,
        "i": pa.types.is_integer,
        "f": pa.types.is_floating,
        "U": pa.types.is_string,
        "n": pa.types.is_null,
    }
    return next((letter for letter, is_of in tests.items() if is_of(kind)), "?")


def _calls_in(
    table: pa.Table, schema: Schema
) -> tuple[dict[str, pa.Array], dict[str, NDArray[np.int64]]]:
    """Return the items of each array of calls, and the item of each call in these."""
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
        return items, {"": np.arange(len(rows))}
    # Arrays that lie in the same items have the values of the same calls.
    outer, of_calls = parents[last[0]]
    alike = [one for one in last if parents[one][0] == outer]
    for base in alike:
        if not np.array_equal(parents[base][1], of_calls):
            raise ValueError(f"{base} has other numbers of items than {alike[0]}")
    index = dict.fromkeys(alike, np.arange(len(of_calls)))
    while True:
        index[outer] = of_calls
        if outer == "":
            return items, index
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


def _rows(name: str, values: pa.Array) -> tuple[Ragged, NDArray[np.bool_]]:
    """Return rows of numbers, and True for those that are there."""
    have = values.is_valid().to_numpy(zero_copy_only=False)
    dtype = pa.int32() if name in (*IDS, *LENGTHS) else pa.float64()
    if not _is_list(values.type):
        flat, lengths = values.drop_null(), have.astype(np.int64)
    else:
        flat, lengths = (
            pc.list_flatten(values),
            pc.list_value_length(values).fill_null(0).to_numpy(),
        )
    if pa.types.is_boolean(flat.type):
        flat = flat.cast(pa.uint8())
    if name in IDS and flat.null_count:
        raise ValueError("a token id is null; leave such rows out")
    numbers = flat.cast(dtype).to_numpy(zero_copy_only=False)
    return Ragged(numbers, np.cumsum([0, *lengths])), have
