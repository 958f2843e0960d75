"""Columns of rows that are made of others: of merged turns, or of the rows of a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from fastcollate.testing.reference.fields import (
    CAPTURED,
    NOTHING,
    dtype_of_indices,
    dtype_of_numbers,
    is_of_objects,
    shaped,
    trailing_shape,
)
from fastcollate.testing.reference.ragged import as_lists, is_ragged
from fastcollate.testing.reference.reading import is_number, readable, rows_of
from fastcollate.testing.reference.spreading import Spread

Origin: TypeAlias = tuple[int, int] | None
"""The origin of a response token: a row of the input, and the position in its response."""


def move_values(made: Sequence[Any], rows: Any, gap: Any) -> list[list[Any]]:
    """Return the value of each response token from its origin, and `gap` without one.

    Parameters
    ----------
    made
        Rows with their `origins`, one per response token.
    rows
        Values of the input's responses.
    """
    rows = [readable(row) for row in rows]
    return [
        [gap if origin is None else rows[origin[0]][origin[1]] for origin in one.origins]
        for one in made
    ]


def move_field(field: Any, made: Sequence[Any], routed: Sequence[int] | None = None) -> Any:
    """Return a field of the input as one of rows that are made of it.

    Parameters
    ----------
    field
        A field with values per token, or per row.
    made
        Rows with their `origins`, and their `source`, the row of the input whose sequence they
        have; -1 for synthetic rows, of two tokens.
    routed
        Sources of routes, -1 for padding rows, which have none.
    """
    kind, sources = type(field).__name__, [one.source for one in made]
    if kind == "PerRow":
        return _move_objects(field, sources)
    if is_ragged(field):
        lists = as_lists(field).rows
        moved = (
            move_values(made, lists, [])
            if field.align == "response"
            else [[[], []] if source < 0 else lists[source] for source in sources]
        )
        return dataclasses.replace(field, rows=moved)
    rows = [readable(row) for row in rows_of(field.rows)]
    trailing = trailing_shape(rows)
    rows = shaped(rows, trailing)
    if kind in CAPTURED:
        nothing: Any = np.zeros((0, *trailing), np.int64)
        sources = sources if routed is None else list(routed)
    else:
        gap = field.fill if field.gap_fill is None else field.gap_fill
        if field.dtype is not None and "float" not in str(field.dtype):
            gap = int(gap)  # a float would round large integers
        if field.align == "response":
            moved = move_values(made, rows, np.full(trailing, gap) if trailing else gap)
            moved = shaped(moved, trailing)
            moved = Spread(moved) if isinstance(field.rows, Spread) else moved
            return dataclasses.replace(field, rows=moved)
        nothing = np.full((2, *trailing), gap) if trailing else [gap] * 2
    chosen = [nothing if source < 0 else rows[source] for source in sources]
    if kind in CAPTURED and field.starts is not None:
        starts = [0 if source < 0 else int(field.starts[source]) for source in sources]
        return dataclasses.replace(field, rows=chosen, starts=starts)
    return dataclasses.replace(field, rows=chosen)


def join_captured(field: Any, merged: Sequence[Any]) -> Any:
    """Return a captured field of turns as one of merged rows, token by token.

    Parameters
    ----------
    field
        The field of the turns.
    merged
        Rows with their `turns`, each with its own tokens, and how many of them begin the row.
    """
    rows = [readable(row) for row in rows_of(field.rows)]
    trailing = trailing_shape(rows)
    rows = shaped(rows, trailing)
    starts = [0] * len(rows) if field.starts is None else [int(one) for one in field.starts]
    joined = []
    for one in merged:
        count = len(one.prompt) + len(one.response)
        values: list[Any] = [np.full(trailing, NOTHING)] * count
        for position in range(count):
            having = [
                (position == tokens - 1, order, turn)
                for order, (turn, tokens, common) in enumerate(one.begins)
                if position < common and 0 <= position - starts[turn] < len(rows[turn])
            ]
            if having:  # of the first that read the token; its own last token a turn does not read
                turn = min(having)[-1]
                values[position] = rows[turn][position - starts[turn]]
        joined.append(np.array(values).reshape(count, *trailing))
    is_chosen = type(field).__name__ == "RoutedExperts" and field.num_experts is None
    if is_chosen and field.dtype is None:  # of all that was captured
        given = [rows[turn] for one in merged for turn in one.turns]
        field = dataclasses.replace(field, dtype=dtype_of_indices(given))
    return dataclasses.replace(field, rows=joined, starts=None)


def _move_objects(field: Any, sources: list[int]) -> Any:
    values, dtype = readable(field.values), field.dtype
    if is_of_objects(field):
        nothing, dtype = None, object
    elif isinstance(values, np.ndarray):
        nothing = np.zeros_like(values[0])
    else:
        values = [readable(value) for value in values]
        nothing = 0 if all(map(is_number, values)) else np.asarray(values[0])[:0]
        if dtype is None and all(map(is_number, values)):
            dtype = dtype_of_numbers(values)
    chosen: Any = [nothing if source < 0 else values[source] for source in sources]
    if isinstance(values, np.ndarray) and dtype is not object:
        chosen = np.stack(chosen)
    return dataclasses.replace(field, values=chosen, dtype=dtype)
