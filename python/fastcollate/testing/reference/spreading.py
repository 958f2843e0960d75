"""Numbers of whole rows on tokens, and rows that are None, as values per token."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fastcollate.rows.fields import Field
from fastcollate.testing.reference.ragged import as_lists, is_ragged
from fastcollate.testing.reference.reading import is_number, readable, rows_of


class Spread(list[Any]):
    """Values per token of rows that had one number each."""


def numbers_as_field(
    advantages: Any, fields: Mapping[str, Any] | None
) -> tuple[Any, Mapping[str, Any] | None]:
    """Return advantages per token and fields: numbers per row become a field of the same key."""
    if advantages is None or not is_number(rows_of(advantages)[0]):
        return advantages, fields
    return None, {"advantages": Field(advantages, spread="trained"), **(fields or {})}


def hold(field: Any, number: Any) -> Any:
    """Return a number in the output's type: floats would round large integers beside them."""
    is_float = field.dtype is None or "float" in str(field.dtype)
    return number if is_float else int(number)


def numbers_of(field: Any) -> tuple[list[Any], list[bool]]:
    """Return the number of each row, the default for None, and flags of rows that have one."""
    values = [value.item() if hasattr(value, "item") else value for value in rows_of(field.rows)]
    given = [value is not None for value in values]
    return [hold(field, field.default) if value is None else value for value in values], given


def values_per_token(
    field: Any,
    prompt_lens: Sequence[int],
    response_lens: Sequence[int],
    *,
    rows: Collection[int] | None = None,
) -> Any:
    """Return a `fastcollate.Field` with a value for each of its tokens.

    Numbers that are spread onto trained tokens are on all tokens of the response, as `Spread`. A
    number for the last token of an empty response is an error in some rows, or in all.
    """
    if type(field).__name__ != "Field" or isinstance(field.rows, Spread):
        return field
    if field.spread is None:
        lens = list(response_lens)
        if field.align == "sequence":
            lens = [p + r for p, r in zip(prompt_lens, response_lens, strict=True)]
        return fill(field, lens)
    numbers, given = numbers_of(field)
    values: list[list[Any]] = []
    for index, (number, count) in enumerate(zip(numbers, response_lens, strict=True)):
        if field.spread == "last":
            is_wanted = rows is None or index in rows
            if is_wanted and given[index] and count == 0:
                raise ValueError(f"row {index} has no token to put {number} on")
            values.append([*[hold(field, field.fill)] * (count - 1), number] if count else [])
        else:
            values.append([number] * count)
    if field.spread == "trained":
        return dataclasses.replace(field, rows=Spread(values), default=None)
    return dataclasses.replace(field, rows=values, spread=None, default=None)


def fill(field: Any, lens: Sequence[int]) -> Any:
    """Return a field whose None rows hold the default for each of `lens` tokens."""
    if is_ragged(field):
        return as_lists(field)
    rows = rows_of(field.rows)
    if isinstance(rows, np.ndarray) or all(row is not None for row in rows):
        return field
    shapes = (np.shape(readable(row)) for row in rows if row is not None)
    trailing: tuple[int, ...] = next((shape[1:] for shape in shapes if shape != (0,)), ())
    rows = [
        (
            [hold(field, field.default)] * count
            if trailing == ()
            else np.full((count, *trailing), hold(field, field.default))
        )
        if row is None
        else row
        for row, count in zip(rows, lens, strict=True)
    ]
    return dataclasses.replace(field, rows=rows, default=None)


def on_trained(key: str, field: Any, weights: Sequence[Sequence[Any]]) -> Any:
    """Return a field of numbers on tokens of nonzero weight only, where NaN is an error."""
    if type(field).__name__ != "Field" or field.spread != "trained":
        return field
    rows = []
    for index, (row, of_row) in enumerate(zip(field.rows, weights, strict=True)):
        trains = [np.float32(weight) != 0 for weight in of_row]
        if any(one and value != value for value, one in zip(row, trains, strict=True)):
            raise ValueError(f"a number of {key} in row {index} is NaN")
        rows.append(
            [
                value if one else hold(field, field.fill)
                for value, one in zip(row, trains, strict=True)
            ]
        )
    return dataclasses.replace(field, rows=rows, spread=None)


def spread_merged(field: Any, rows: Sequence[Any]) -> Any:
    """Return a field of numbers per turn as one of merged rows.

    Parameters
    ----------
    rows
        As in `MergedTurns`.
    """
    numbers, given = numbers_of(field)
    columns: list[list[Any]] = []
    for row in rows:
        values = [hold(field, field.fill)] * len(row.origins)
        last: dict[int, int] = {}
        for place, origin in enumerate(row.origins):
            if origin is not None:
                last[origin[0]] = place
                if field.spread != "last":
                    values[place] = numbers[origin[0]]
        if field.spread == "last":
            if not last and given[row.source]:
                raise ValueError(f"the row of turn {row.source} has no token to put a number on")
            for turn, place in last.items():
                values[place] = numbers[turn]
        columns.append(values)
    if field.spread == "trained":
        return dataclasses.replace(field, rows=Spread(columns), default=None)
    return dataclasses.replace(field, rows=columns, spread=None, default=None)


def is_spread(field: Any) -> bool:
    """Return True for a field of one number per row, of turns that are not merged yet."""
    return (
        type(field).__name__ == "Field"
        and field.spread is not None
        and all(value is None or is_number(value) for value in rows_of(field.rows))
    )
