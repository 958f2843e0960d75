"""Calls from objects and dictionaries, by a schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcollate._fastcollate import make_calls
from fastcollate.common.arrays import is_tensor, to_numpy
from fastcollate.common.text import show
from fastcollate.rollouts.calls import Calls, ids_of
from fastcollate.rollouts.making import Options, Place, calls_of
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
from fastcollate.rollouts.sources import COLUMNS, ENGINES, SOURCES
from fastcollate.rows.column_input import ragged

KINDS: dict[str, tuple[str, tuple[int, ...]]] = {
    **dict.fromkeys(IDS, ("iu", (1,))),
    "logprob_tokens": ("U", (1,)),
    **dict.fromkeys(LENGTHS, ("iu", (0,))),
    **dict.fromkeys(NUMBERS, ("biufOU", (1,))),
    **dict.fromkeys(FLAGS, ("biuf", (0,))),
    **dict.fromkeys(("rewards", "advantages"), ("biuf", (0, 1))),
}
"""Kinds of NumPy dtypes, and numbers of dimensions, of the values of one call."""

Fits = Callable[[Schema, str, str], "bool | None"]
"""Returns True if a source has values of a column of a schema at a path; None if it has none there,
and False for other values."""

Call = dict[str, Any]
"""The objects that hold the values of a call, by their arrays of calls."""


ABSENT = object()
"""The value of a key that is not there."""


def walk(bodies: Sequence[Any], schema: Schema, options: Options, place: Place) -> Calls:
    """Read calls from objects or dictionaries.

    Raises
    ------
    TypeError, ValueError
        As :func:`fastcollate.rollouts.parse`.
    """
    calls: list[Call] = []
    places: list[tuple[int, int, int]] = []
    trees: dict[Any, int] = {}
    for body, one in enumerate(bodies):
        for index, (key, call) in enumerate(_calls(one, schema)):
            tree = trees.setdefault((body, key[:-1]), len(trees))
            places.append((body, tree, key[-1] if schema.are_nodes and key else index))
            calls.append(call)
    columns, bits = {}, {}
    for name, given in schema.columns.items():
        paths = schema.paths(given)
        values = [_value(call, paths) for call in calls]
        if any(one is not ABSENT for one in values):
            columns[name] = [None if one is ABSENT else one for one in values]
            bits[name] = paths[0].bits
    numbers = list(np.array(places, np.int64).reshape(-1, 3).T)
    return calls_of_rows(columns, bits, numbers, len(bodies), schema, options, place)


def calls_of_rows(
    columns: dict[str, Any],
    bits: Mapping[str, int | None],
    numbers: Sequence[Any],
    num_bodies: int,
    schema: Schema,
    options: Options,
    place: Place,
) -> Calls:
    """Return the calls of columns with one row or None for each.

    `numbers` are the bodies of calls, their arrays, and their own numbers.
    """

    def name_of(call: int) -> str:
        return f"{place.of(int(numbers[0][call]))}: call {numbers[2][call]}"

    given = {
        name: _rows(name, columns.pop(name), name_of)
        for name in (*IDS, *LENGTHS, *NUMBERS)
        if name in columns
    }
    for name in {*NUMBERS} & {*given}:
        (values, offsets), have = given[name]
        if mask := bits.get(name):
            flags = (np.nan_to_num(values).astype(np.int64) & mask) != 0
            values = np.where(np.isfinite(values), flags, values)
        given[name] = (values.astype(np.float32), offsets), have
    made = make_calls(
        [(name, rows) for name, rows in given.items() if name not in NUMBERS],
        [(name, rows) for name, rows in given.items() if name in NUMBERS],
        list(map(np.ascontiguousarray, numbers)),
        num_bodies,
        options.bad_logprobs,
        schema.are_nodes,
        place.text,
        place.first,
    )
    return calls_of(made, columns, schema, options, place)


def _fits(body: Any, schema: Schema, column: str, path: str) -> bool | None:
    """Return True if a body has values of a column at a path, None if it has none there.

    False stands for other values than the column's.
    """
    paths = schema.paths((path,))
    values = (_value(call, paths) for _, call in _calls(body, schema))
    value = next(filter(_is_there, values), None)
    if value is None:
        return None
    if column not in KINDS:
        return True
    kinds, dims = KINDS[column]
    try:
        read = np.asarray(value[:16] if isinstance(value, (list, tuple, np.ndarray)) else value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return read.ndim in dims and (read.size == 0 or read.dtype.kind in kinds)


def _calls(body: Any, schema: Schema) -> list[tuple[tuple[int, ...], Call]]:
    """Return the calls of a body, each with its position in every array around it."""
    found: dict[tuple[int, ...], Call] = {}
    for bases in schema.arrays:
        level: dict[tuple[int, ...], Call] = {(): {"": body}}
        for outer, base in pairwise(["", *bases]):
            steps = steps_of(base[len(outer) :].removesuffix("[]"))
            level = {
                (*key, index): {**call, base: item}
                for key, call in level.items()
                for index, item in enumerate(_items(get(call[outer], steps)))
            }
        for key, call in level.items():
            found[key] = found.get(key, {}) | call
    calls = list(found.items())
    if any(path.endswith("?") for path in schema.calls):
        tokens = schema.paths(path for name in RESPONSES for path in schema.columns.get(name, ()))
        calls = [one for one in calls if _is_there(_value(one[1], tokens))]
    return calls or [((), {"": body})]


def _items(values: Any) -> Iterable[Any]:
    """Return the items of an array; none for other values."""
    is_array = isinstance(values, (Sequence, np.ndarray)) or is_tensor(values)
    return values if is_array and not isinstance(values, (str, bytes)) else ()


def _value(call: Call, paths: Sequence[Path]) -> Any:
    """Return the value of a call at the first of paths where it has any."""
    best = ABSENT
    for base, steps, _ in paths:
        if base in call and (value := get(call[base], steps)) is not ABSENT:
            if value is not None:
                return value
            best = None
    return best


def _is_there(value: Any) -> bool:
    return value is not None and value is not ABSENT


def get(value: Any, steps: Steps) -> Any:
    """Return the value at a path, which may be None, or ``ABSENT``."""
    for at, step in enumerate(steps):
        if isinstance(step, str):
            if isinstance(value, Mapping):
                value = value.get(step, ABSENT)
            elif isinstance(value, (list, tuple, str, int, float)):
                return ABSENT  # a method is none of its values
            else:
                value = getattr(value, step, ABSENT)
                value = value() if callable(value) else value
            continue
        items = _items(value)
        if items is not value:
            return ABSENT
        if step is None:
            found = [get(item, steps[at + 1 :]) for item in items]
            are_lists = found and all(isinstance(one, (list, tuple, np.ndarray)) for one in found)
            flat = chain.from_iterable(found) if are_lists else found
            return [None if one is ABSENT else one for one in flat]
        value = items[step] if step < len(items) else ABSENT
    return value


def _rows(name: str, rows: Any, name_of: Callable[[int], str]) -> tuple[Any, Any]:
    """Return values and offsets of rows, and True for those that are there."""
    rows, have = rows if isinstance(rows, tuple) else (rows, None)
    if have is None:
        have = np.array([row is not None for row in rows], bool)
        is_number = name in (*LENGTHS, *FLAGS)
        rows = [[] if row is None else [row] if is_number else row for row in rows]
    if name in (*IDS, *LENGTHS):
        found = ids_of(name, rows, name_of)
        return (found.values, found.offsets), have
    try:
        found = ragged(rows, "float64")
        is_flat = found.values.ndim == 1
    except (TypeError, ValueError):
        is_flat = False
    if not is_flat:
        rows = [_numbers(f"{name_of(call)}: {name}", row) for call, row in enumerate(rows)]
        found = ragged(rows, "float64")
    return (to_numpy(found.values), found.offsets), have


def _numbers(name: str, row: Any) -> NDArray[np.float64]:
    """Return a row of numbers; None among them is NaN, as are texts that say so."""
    try:
        found = np.array(row.tolist() if is_tensor(row) else row, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {show(row)}; pass a number per token") from None
    if found.ndim != 1:
        raise ValueError(f"{name} has shape {found.shape}; pass a number per token")
    return found


def recognised(fits: Fits) -> Schema | None:
    """Return the schema of which a source has most columns, with the paths that it has.

    Returns None if it has no schema's responses.
    """
    best, most = None, 0
    # Rows of plain columns are read as such, unless another schema has more of them.
    for schema in (COLUMNS, *SOURCES.values()):
        found = schema.narrowed(partial(fits, schema))
        there = {name for name, paths in found.columns.items() if fits(found, name, paths[0])}
        if there & {*RESPONSES} and len(there) > most:
            best, most = found if schema is not ENGINES else schema, len(there)
    return best


def fits_of(body: Any) -> Fits:
    """Return the values of a body, for :func:`recognised`."""
    return partial(_fits, body)
