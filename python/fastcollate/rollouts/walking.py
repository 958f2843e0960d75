"""Calls from objects and dictionaries, by a schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np

from fastcollate._fastcollate import make_calls
from fastcollate.common.arrays import is_tensor
from fastcollate.rollouts.calls import Calls
from fastcollate.rollouts.making import Options, Place, calls_of
from fastcollate.rollouts.schema import (
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
    **dict.fromkeys(("trains", "masked"), ("biuf", (0,))),
    **dict.fromkeys(("rewards", "advantages"), ("biuf", (0, 1))),
}
"""Kinds of NumPy dtypes, and numbers of dimensions, of the values of one call."""

Fits = Callable[[Schema, str, str], "bool | None"]
"""Returns True if a source has values of a column of a schema at a path; None if it has none there,
and False for other values."""

Call = dict[str, Any]
"""The objects that hold the values of a call, by their arrays of calls."""


def walk(bodies: Sequence[Any], schema: Schema, options: Options, place: Place) -> Calls:
    """Read calls from objects or dictionaries.

    Raises
    ------
    TypeError, ValueError
        As :func:`fastcollate.rollouts.parse`.
    """
    found = [
        (body, index, call)
        for body, one in enumerate(bodies)
        for index, call in enumerate(_calls(one, schema))
    ]
    paths = {name: list(map(schema.path, given)) for name, given in schema.columns.items()}
    columns = {
        name: [next(_values(call, given), None) for _, _, call in found]
        for name, given in paths.items()
    }
    bits = {name: given[0].bits for name, given in paths.items()}
    numbers = np.array([one[:2] for one in found], np.int64).reshape(-1, 2)
    return calls_of_rows(
        columns, bits, (numbers[:, 0], numbers[:, 1]), len(bodies), schema, options, place
    )


def calls_of_rows(
    columns: dict[str, Any],
    bits: Mapping[str, int | None],
    numbers: tuple[Any, Any],
    num_bodies: int,
    schema: Schema,
    options: Options,
    place: Place,
) -> Calls:
    """Return the calls of columns with one row or None for each."""
    ids = {
        name: _rows(name, columns.pop(name), np.int32)
        for name in (*IDS, *LENGTHS)
        if name in columns
    }
    floats = {}
    for name in NUMBERS:
        if name not in columns:
            continue
        (values, offsets), have = _rows(name, columns.pop(name), np.float64)
        if mask := bits.get(name):
            values = (values.astype(np.int64) & mask) != 0
        floats[name] = (values.astype(np.float32), offsets), have
    made = make_calls(
        list(ids.items()),
        list(floats.items()),
        *numbers,
        num_bodies,
        options.bad_logprobs,
        schema.are_nodes,
        place.text,
        place.first,
    )
    columns = {
        name: column for name, column in columns.items() if any(one is not None for one in column)
    }
    return calls_of(made, columns, schema, options, place)


def _fits(body: Any, schema: Schema, column: str, path: str) -> bool | None:
    """Return True if a body has values of a column at a path, None if it has none there.

    False stands for other values than the column's.
    """
    calls = list(_calls(body, schema))
    given = [schema.path(path)]
    value = next((one for call in calls for one in _values(call, given)), None)
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


def _calls(body: Any, schema: Schema) -> Iterator[Call]:
    """Yield the calls of a body."""
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
    calls = list(found.values()) or [{"": body}]
    if any(path.endswith("?") for path in schema.calls):
        tokens = [schema.path(path) for name in RESPONSES for path in schema.columns.get(name, ())]
        calls = [call for call in calls if next(_values(call, tokens), None) is not None]
    return iter(calls or [{"": body}])


def _items(values: Any) -> Iterable[Any]:
    """Return the items of an array; none for other values."""
    is_array = isinstance(values, (Sequence, np.ndarray)) or is_tensor(values)
    return values if is_array and not isinstance(values, (str, bytes)) else ()


def _values(call: Call, paths: Sequence[Path]) -> Iterator[Any]:
    """Yield the values of a call at paths where it has any, the nearest first."""
    for base, steps, _ in sorted(paths, key=lambda path: -len(path.base)):
        if base in call and (value := get(call[base], steps)) is not None:
            yield value


def get(value: Any, steps: Steps) -> Any:
    """Return the value at a path, or None."""
    for at, step in enumerate(steps):
        if value is None:
            return None
        if step is None:
            found = [get(item, steps[at + 1 :]) for item in _items(value)]
            are_lists = found and all(isinstance(one, (list, tuple, np.ndarray)) for one in found)
            return list(chain.from_iterable(found)) if are_lists else found
        if isinstance(step, int):
            value = value[step] if step < len(value) else None
        elif isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, (list, tuple, str, int, float)):
            value = None  # a method is none of its values
        else:
            value = getattr(value, step, None)
            value = value() if callable(value) else value
    return value


def _rows(name: str, rows: Any, dtype: Any) -> tuple[Any, Any]:
    """Return values and offsets of rows, and True for those that are there."""
    if isinstance(rows, tuple):
        rows, have = rows
    else:
        have = np.array([row is not None for row in rows], bool)
        rows = list(map(_row, rows))
    try:
        found = ragged(rows, np.dtype(dtype).name)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}{str(error).removeprefix('x')}") from error
    return (found.values, found.offsets), have


def _row(row: Any) -> Any:
    """Return a row of numbers; None among them is NaN."""
    if row is None:
        return []
    if isinstance(row, (int, float)):
        return [row]
    if is_tensor(row):
        return row.tolist()
    if isinstance(row, (list, tuple)) and any(one is None or isinstance(one, str) for one in row):
        return np.array(row, np.float64)
    return row


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
