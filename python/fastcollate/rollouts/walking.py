"""Calls from objects and dictionaries, by a schema."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, compress
from typing import Any, TypeAlias

import numpy as np

from fastcollate._fastcollate import BODY_ADVICE, make_calls
from fastcollate.common.arrays import is_tensor, to_numpy
from fastcollate.common.text import show
from fastcollate.rollouts.calls import Calls, prompt_ids
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

KINDS: dict[str, tuple[str, tuple[int, ...]]] = {
    **dict.fromkeys((*IDS, "labels"), ("iu", (1,))),
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

Key: TypeAlias = tuple[int, ...]
"""The number of a body, and of items in the arrays around a call and its own, the outermost first.
"""

Calling: TypeAlias = tuple[list[Key], dict[str, list[Any]]]
"""The keys of calls, and the objects that hold their values, by array of calls: the items of each
call, or ``ABSENT``."""

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
    try:
        keys, found = _columns(bodies, schema, are_rows=are_rows)
    except _OtherValueError as error:
        for body, one in enumerate(bodies):
            try:
                _columns([one], schema, are_rows=are_rows)
            except _OtherValueError as own:
                raise ValueError(f"{place.of(body)}: {own}; {BODY_ADVICE}") from None
        raise ValueError(f"{error}; {BODY_ADVICE}") from None
    places: list[tuple[int, int, int]] = []
    body, index, trees = -1, 0, dict[Any, int]()
    for key in keys:
        body, index = key[0], index + 1 if key[0] == body else 0
        tree = trees.setdefault(key[:-1] or key, len(trees))
        places.append((body, tree, key[-1] if schema.are_nodes and len(key) > 1 else index))
    return calls_from(found, places, len(bodies), schema, options, place)


def calls_from(
    found: Mapping[str, list[Any]],
    places: list[tuple[int, int, int]],
    bodies: int,
    schema: Schema,
    options: Options,
    place: Place,
) -> Calls:
    """Return calls from the values of each column.

    `places` are the body of each call, its tree and its number in the body.
    """
    masks = schema.paths(schema.columns.get("loss_mask", ())[:1])
    bits = masks[0].bits if masks else None
    columns: dict[str, Any] = {
        name: [None if one is ABSENT else one for one in column]
        for name, column in found.items()
        if any(one is not ABSENT for one in column)
    }
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


def _fits(body: Any, schema: Schema, column: str, path: str) -> bool | None:
    """Return True if a body has values of a column at a path, None if it has none there.

    False stands for other values than the column's.
    """
    if isinstance(body, dict) and key_of(path) not in body:
        return None
    paths = schema.paths((path,))
    try:
        keys, objects = _calls([body], schema)
        value = _first_value(objects, paths, len(keys))
    except _OtherValueError:
        value = None
    if value is None:
        return None
    if column not in KINDS:
        return True
    kinds, dims = KINDS[column]
    try:
        if is_tensor(value):  # NumPy lacks bfloat16
            value = to_numpy(value.float() if value.is_floating_point() else value)
        read = np.asarray(value[:16] if isinstance(value, (list, tuple)) else value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return read.ndim in dims and (read.size == 0 or read.dtype.kind in kinds)


def _first_value(objects: Mapping[str, list[Any]], paths: Sequence[Path], count: int) -> Any:
    """Return the first value of calls at paths; calls behind it may have others than a column."""
    with contextlib.suppress(_OtherValueError):
        return next(filter(_is_there, _values(objects, paths)), None)
    calls = ({base: [own[call]] for base, own in objects.items()} for call in range(count))
    return next(filter(_is_there, (_values(call, paths)[0] for call in calls)), None)


def _columns(
    bodies: Sequence[Any], schema: Schema, *, are_rows: bool
) -> tuple[list[Key], dict[str, list[Any]]]:
    """Return the keys of calls, and the values of each column."""
    keys, objects = _calls(bodies, schema, are_rows=are_rows)
    own = objects.get("", [])
    there = set[Any]().union(*own) if {*map(type, own)} == {dict} else None

    def may_have(path: Path) -> bool:
        key = path.steps[0] if path.steps else None
        return path.base != "" or there is None or not isinstance(key, str) or key in there

    return keys, {
        name: _values(objects, [*filter(may_have, schema.paths(paths))])
        for name, paths in schema.columns.items()
    }


def _calls(bodies: Sequence[Any], schema: Schema, *, are_rows: bool = False) -> Calling:
    """Return the calls of bodies; a list is several bodies.

    A body without calls is one call, unless bodies `are_rows` of a table.
    """
    each = _unnested(bodies)
    found = [_calls_at(each, arrays, schema) for arrays in schema.arrays]
    if not are_rows or "" in schema.calls:
        arrays = zip(schema.arrays, found, strict=True)
        have = {key[: -len(bases)] for bases, (keys, _) in arrays for key in keys}
        alone = [key for key in each if key not in have]
        found.append((alone, {"": [each[key] for key in alone]}))
    found = [one for one in found if one[0]]
    if len(found) == 1:
        return found[0]
    keys = sorted({key for keys, _ in found for key in keys})
    at = {key: call for call, key in enumerate(keys)}
    objects: dict[str, list[Any]] = {}
    for own, columns in found:
        for base, column in columns.items():
            joined = objects.setdefault(base, [ABSENT] * len(keys))
            for key, value in zip(own, column, strict=True):
                joined[at[key]] = value
    return keys, objects


def _unnested(bodies: Sequence[Any], key: Key = ()) -> dict[Key, Any]:
    """Return bodies by their numbers, and the items of those that are lists."""
    found: dict[Key, Any] = {}
    for number, body in enumerate(bodies):
        is_list = isinstance(body, (list, tuple))
        found |= _unnested(body, (*key, number)) if is_list else {(*key, number): body}
    return found


def _calls_at(
    bodies: Mapping[Key, Any], arrays: Sequence[tuple[str, Steps]], schema: Schema
) -> Calling:
    """Return the items of the last of arrays, each inside the one before."""
    calls: Calling = [*bodies], {"": [*bodies.values()]}
    outer = ""
    for base, steps in arrays:
        keys, objects = _objects_of(calls, outer, schema)
        rows = [[*_items(value)] for value in _all_at(objects[outer], steps)]
        around = [row for row, items in enumerate(rows) for _ in items]
        positions = chain.from_iterable(range(len(items)) for items in rows)
        calls = (
            [(*keys[row], index) for row, index in zip(around, positions, strict=True)],
            {name: [own[row] for row in around] for name, own in objects.items()}
            | {base: [*chain.from_iterable(rows)]},
        )
        outer = base
    keys, objects = _objects_of(calls, outer, schema)
    if outer in schema.optional:
        paths = [path for name in RESPONSES for path in schema.columns.get(name, ())]
        tokens = _values(objects, schema.paths((*paths,)))
        return _taken((keys, objects), map(_is_there, tokens))
    return keys, objects


def _objects_of(calls: Calling, base: str, schema: Schema) -> Calling:
    """Return the calls whose item is an object, where others may stand."""
    return _taken(calls, map(_is_object, calls[1][base])) if base in schema.optional else calls


def _taken(calls: Calling, are_taken: Iterable[bool]) -> Calling:
    """Return some of calls."""
    keys, objects = calls
    kept = [*are_taken]
    return [*compress(keys, kept)], {base: [*compress(own, kept)] for base, own in objects.items()}


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


def _values(objects: Mapping[str, list[Any]], paths: Sequence[Path]) -> list[Any]:
    """Return the value of each call at the first of paths where it has any."""
    found: list[Any] = []
    for base, steps, _ in paths:
        own = objects.get(base, ())
        if own and not found:
            found = [*_all_at(own, steps)]
            continue
        left = [call for call, value in enumerate(found) if value is None or value is ABSENT]
        if own and left:
            values = _all_at([own[call] for call in left], steps)
            for call, value in zip(left, values, strict=True):
                found[call] = found[call] if value is ABSENT else value
    return found or [ABSENT] * len(objects.get("", ()))


def _all_at(values: list[Any], steps: Steps) -> list[Any]:
    """Return the value at a path in each of values, which may be None, or ``ABSENT``."""
    for at, step in enumerate(steps):
        if isinstance(step, str):
            kinds = {_kind(cls) for cls in {*map(type, values)}}
            if kinds == {Mapping}:
                values = [value.get(step, ABSENT) for value in values]
            elif kinds == {object}:
                values = [getattr(value, step, ABSENT) for value in values]
                if any(map(callable, values)):
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


def recognised(fits: Fits, named: Container[str] = ()) -> Schema | None:
    """Return the schema of which a source has most columns, with the paths that it has.

    Returns None if it has no schema's responses. What other schemas know of a row is read, too.

    Raises
    ------
    ValueError
        If a row has several masks, none of them ``loss_mask``, or one without numbers of tokens,
        unless it is among columns that are `named`.
    """
    best: Schema | None = None
    own: dict[str, str] = {}
    # Rows of plain columns are read as such, unless another schema has more of them.
    for schema in (COLUMNS, *SOURCES.values()):
        responses = ((name, path) for name in RESPONSES for path in schema.columns.get(name, ()))
        if not any(fits(schema, *one) for one in responses):
            continue
        paths = found_paths(schema, fits)
        there = {name: path for name, path in paths.items() if name not in _NUMBERING}
        if len(there) > len(own):
            best, own = schema, there
    if best is not None and best is not ENGINES:
        best = best.narrowed(partial(fits, best))
    if best is None or "" not in best.calls or all("[" in own.get(name, "[") for name in RESPONSES):
        return best
    fit = {path: fits(COLUMNS, "loss_mask", path) for path in COLUMNS.columns["loss_mask"]}
    masks = [path for path, is_mask in fit.items() if is_mask]
    wrong = [path for path, is_mask in fit.items() if is_mask is False and path != "mask"]
    if "loss_mask" not in named and wrong and not masks:
        raise ValueError(
            f"{wrong[0]!r} of rows is not a list of numbers; pass one number per token as a loss "
            "mask, or rename it"
        )
    if "loss_mask" not in named and len(masks) > 1 and masks[0] not in ("loss_mask", "loss_masks"):
        raise ValueError(
            f"rows have the masks {masks[0]!r} and {masks[1]!r}; multiply them into a column "
            "'loss_mask', or name one: Schema(loss_mask=...), or --loss-mask of a command"
        )
    columns, used = {**best.columns}, {*map(key_of, own.values())}
    for path, name in ROW_PATHS.items():
        if name not in own and key_of(path) not in used and fits(COLUMNS, name, path):
            used.add(key_of(path))
            own[name] = path
            columns[name] = (path,)
    # Rows may leave out what is null or the default, so others may have more than this one.
    used |= {key_of(path) for paths in columns.values() for path in paths}
    for path, name in ROW_PATHS.items():
        if path == key_of(path) and path not in used and fits(COLUMNS, name, path) is None:
            columns[name] = (*columns.get(name, ()), path)
    return best.with_columns(columns)


def found_paths(schema: Schema, fits: Fits) -> dict[str, str]:
    """Return the path of each column that a source has, the first of several."""
    return {
        name: path
        for name, paths in schema.columns.items()
        for path in reversed(paths)
        if fits(schema, name, path)
    }


def fits_of(body: Any) -> Fits:
    """Return the values of a body, for :func:`recognised`."""
    return partial(_fits, body)
