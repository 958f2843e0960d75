"""Calls from objects and dictionaries, by a schema."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial, reduce
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np

from fastcollate._fastcollate import make_calls
from fastcollate.common.arrays import is_tensor, to_numpy
from fastcollate.common.text import show
from fastcollate.rollouts.calls import Calls, ids_of, prompt_ids
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
    key_of,
)
from fastcollate.rollouts.sources import COLUMNS, ENGINES, OUTPUTS, ROW_PATHS, SOURCES
from fastcollate.rows.columns import Ragged

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


def walk(
    bodies: Sequence[Any], schema: Schema, options: Options, place: Place, *, are_rows: bool = False
) -> Calls:
    """Read calls from objects or dictionaries.

    Those that `are_rows` of a table have no call if their arrays of calls are empty.

    Raises
    ------
    TypeError, ValueError
        As :func:`fastcollate.rollouts.parse`.
    """
    places: list[tuple[int, int, int]] = []
    trees: dict[Any, int] = {}
    calls: list[Call] = []
    body = 0
    try:
        for body, one in enumerate(bodies):
            of_body = _calls(one, schema)
            if are_rows and "" not in schema.calls and not of_body[0][0]:
                continue
            for index, (key, call) in enumerate(of_body):
                tree = trees.setdefault((body, key[:-1]), len(trees))
                places.append((body, tree, key[-1] if schema.are_nodes and key else index))
                calls.append(call)
        found: dict[str, list[Any]] = {}
        for name, given in schema.columns.items():
            paths = schema.paths(given)
            try:
                found[name] = _values(calls, paths)
            except _OtherValueError:  # of which body?
                for at, call in zip(places, calls, strict=True):
                    body = at[0]
                    _values([call], paths)
                raise
    except _OtherValueError as error:
        raise ValueError(f"{place.of(body)}: {error}") from None
    return calls_from(found, places, len(bodies), schema, options, place)


def calls_from(
    found: Mapping[str, list[Any] | Ragged],
    places: list[tuple[int, int, int]],
    bodies: int,
    schema: Schema,
    options: Options,
    place: Place,
) -> Calls:
    """Return calls from the values of each column, or its rows of numbers.

    `places` are the body of each call, its tree and its number in the body.
    """
    masks = schema.paths(schema.columns.get("loss_mask", ())[:1])
    bits = masks[0].bits if masks else None
    columns: dict[str, Any] = {}
    for name, column in found.items():
        if isinstance(column, Ragged):
            columns[name] = _rows(name, column, are_flags=bits is not None and name == "loss_mask")
        elif any(one is not ABSENT for one in column):
            columns[name] = [None if one is ABSENT else one for one in column]
    numbers = (*IDS, *LENGTHS, *NUMBERS, *FLAGS)
    given = [(name, columns.pop(name)) for name in found if name in columns and name in numbers]
    made = make_calls(
        given,
        bits,
        schema is OUTPUTS,
        places,
        bodies,
        options.bad_logprobs,
        schema.are_nodes,
        place,
    )
    if schema is OUTPUTS:
        columns["uids"] = prompt_ids(made["bodies"])
    return calls_of(made, columns, schema, options, place)


def _rows(name: str, column: Ragged, *, are_flags: bool) -> Any:
    """Return rows of numbers for the core: one by one if an error has to name a call."""
    if name in NUMBERS and not are_flags:
        values: Any = to_numpy(column.values).astype(np.float32)
        return values.view(np.int32), column.offsets
    with contextlib.suppress(TypeError, ValueError):
        if name in IDS and name != "logprob_tokens":
            return to_numpy(ids_of(name, column).values), column.offsets
    return [column[row] for row in range(len(column))]


def _fits(body: Any, schema: Schema, column: str, path: str) -> bool | None:
    """Return True if a body has values of a column at a path, None if it has none there.

    False stands for other values than the column's.
    """
    paths = schema.paths((path,))
    try:
        values = (_values([call], paths)[0] for _, call in _calls(body, schema))
        value = next(filter(_is_there, values), None)
    except _OtherValueError:
        value = None
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
    if isinstance(body, (list, tuple)):
        return [
            ((number, *key), call)
            for number, one in enumerate(body)
            for key, call in _calls(one, schema)
        ]
    found: dict[tuple[int, ...], Call] = {}
    for bases in schema.arrays:
        level: dict[tuple[int, ...], Call] = {(): {"": body}}
        outer = ""
        for base, steps in bases:
            level = {
                (*key, index): {**call, base: item}
                for key, call in level.items()
                if outer not in schema.optional or _is_object(call[outer])
                for index, item in enumerate(_items(reduce(_below, steps, call[outer])))
            }
            outer = base
        for key, call in level.items():
            found[key] = {**found[key], **call} if key in found else call
    calls = sorted(found.items(), key=itemgetter(0))
    if schema.optional:
        tokens = schema.paths(
            tuple(path for name in RESPONSES for path in schema.columns.get(name, ()))
        )
        calls = [
            (key, call)
            for key, call in calls
            if (base := [*call][-1]) not in schema.optional
            or (_is_object(call[base]) and _is_there(_values([call], tokens)[0]))
        ]
    return calls or [((), {"": body})]


_PLAIN = (str, bytes, int, float)


def _is_object(value: Any) -> bool:
    cls: Any = type(value)
    return value is not None and _kind(cls) is not str and _kind(cls) is not list


class _OtherValueError(ValueError):
    """A value that is not the object or the array that a path goes through."""


def _items(values: Any) -> Iterable[Any]:
    """Return the items of an array; none for other values."""
    if isinstance(values, (list, tuple)):  # seen at once, as are missing ones
        return values
    if values is None or values is ABSENT:
        return ()
    is_text = isinstance(values, _PLAIN)
    if not is_text and (isinstance(values, (Sequence, np.ndarray)) or is_tensor(values)):
        items: Iterable[Any] = values
        return items
    raise _OtherValueError(f"found {show(values)} where a list is expected")


def _values(calls: Sequence[Call], paths: Sequence[Path]) -> list[Any]:
    """Return the value of each call at the first of paths where it has any."""
    found: list[Any] = [ABSENT] * len(calls)
    left: Sequence[int] = range(len(calls))
    for base, steps, _ in paths:
        at = [call for call in left if base in calls[call]]
        if not at:
            continue
        values = _all_at([calls[call][base] for call in at], steps)
        for call, value in zip(at, values, strict=True):
            if value is not ABSENT:
                found[call] = value
        left = [call for call in left if found[call] is None or found[call] is ABSENT]
    return found


def _all_at(values: list[Any], steps: Steps) -> list[Any]:
    """Return the value at a path in each of values, which may be None, or ``ABSENT``."""
    for at, step in enumerate(steps):
        if isinstance(step, str):
            kinds = {_kind(cls) for cls in {*map(type, values)}}
            if kinds == {Mapping}:
                values = [value.get(step, ABSENT) for value in values]
            elif kinds == {object}:
                values = [getattr(value, step, ABSENT) for value in values]
                values = [value() if callable(value) else value for value in values]
            else:
                values = [_below(value, step) for value in values]
            continue
        rows = [items if (items := _items(value)) is value else None for value in values]
        if step is None:
            rest = steps[at + 1 :]
            return [ABSENT if row is None else _flat(_all_at(list(row), rest)) for row in rows]
        values = [ABSENT if row is None or step >= len(row) else row[step] for row in rows]
    return values


def _below(value: Any, key: Any) -> Any:
    """Return the value of a key or an attribute."""
    given: Any = type(value)
    kind = _kind(given)
    if kind is Mapping:
        return value.get(key, ABSENT)
    if kind is not object:
        raise _OtherValueError(f"found {show(value)} where an object is expected")
    value = getattr(value, key, ABSENT)
    return value() if callable(value) else value


def _flat(values: list[Any]) -> Any:
    """Return values, or the items of arrays, in one list; ``ABSENT`` if no item has a value."""
    if values and all(one is ABSENT for one in values):
        return ABSENT
    are_lists = {isinstance(one, (list, tuple, np.ndarray)) for one in values}
    if len(are_lists) > 1:
        raise _OtherValueError(f"found {show(values)} where items have a list each, or a value")
    if are_lists == {True}:
        return list(chain.from_iterable(values))
    return [None if one is ABSENT else one for one in values]


def _is_there(value: Any) -> bool:
    return value is not None and value is not ABSENT


@lru_cache(maxsize=256)
def _kind(cls: type) -> type:
    """Return what objects of a class are read as: mappings, arrays, plain values or objects.

    Checks of abstract classes take longer than reading an attribute.
    """
    if issubclass(cls, _PLAIN):
        return str
    if issubclass(cls, (list, tuple)):
        return list
    return Mapping if issubclass(cls, Mapping) else object


_NUMBERING = ("request_ids", "event.index")
"""What responses of engines have, but rows may have as well."""


def recognised(fits: Fits) -> Schema | None:
    """Return the schema of which a source has most columns, with the paths that it has.

    Returns None if it has no schema's responses. What other schemas know of a row is read, too.
    """
    best: Schema | None = None
    own: dict[str, str] = {}
    # Rows of plain columns are read as such, unless another schema has more of them.
    for schema in (COLUMNS, *SOURCES.values()):
        found = schema.narrowed(partial(fits, schema))
        paths = {name: one[0] for name, one in found.columns.items() if fits(found, name, one[0])}
        there = {name: path for name, path in paths.items() if name not in _NUMBERING}
        if {*there} & {*RESPONSES} and len(there) > len(own):
            best, own = found if schema is not ENGINES else schema, there
    if best is None or "" not in best.calls or all("[" in own.get(name, "[") for name in RESPONSES):
        return best
    columns, used = {**best.columns}, {*map(key_of, own.values())}
    for path, name in ROW_PATHS.items():
        if name not in own and key_of(path) not in used and fits(COLUMNS, name, path):
            used.add(key_of(path))
            own[name] = path
            columns[name] = (path,)
    return best.with_columns(columns)


def fits_of(body: Any) -> Fits:
    """Return the values of a body, for :func:`recognised`."""
    return partial(_fits, body)
