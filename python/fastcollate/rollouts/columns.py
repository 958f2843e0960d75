"""Columns of calls as fields of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastcollate.common.arrays import is_array, to_numpy
from fastcollate.common.row_columns import IDS
from fastcollate.rows.captured import RoutedExperts
from fastcollate.rows.fields import Field
from fastcollate.rows.per_row import PerRow
from fastcollate.rows.versions import WeightVersions

if TYPE_CHECKING:
    from fastcollate.rows.fields import AnyField


def fields_of(columns: Mapping[str, Any], lengths: NDArray[np.int64]) -> dict[str, AnyField]:
    """Return the fields that columns become, of calls with responses of these lengths."""
    fields: dict[str, AnyField] = {
        name: PerRow(list(column), object)
        for name, column in columns.items()
        if name not in ("advantages", *IDS)
    }
    if (rows := _versions(columns.get("versions", ()), lengths)) is not None:
        fields["versions"] = WeightVersions(rows)
    if (routes := _routes(columns)) is not None:
        fields["routed_experts"] = routes
        fields.pop("routed_starts", None)
    if "support" in fields:
        sampled = zip(columns["support"], lengths.tolist(), strict=True)
        sets = [[[]] * count if one is None else one for one, count in sampled]
        fields["support"] = Field(sets, ragged=True)
    return fields


def _versions(column: Sequence[Any], lengths: NDArray[np.int64]) -> list[Any] | None:
    """Return what `WeightVersions` reads: integers of calls or of tokens, or spans; else None."""
    given = [one for one in column if one is not None]
    are_numbers = all(isinstance(one, (int, np.integer)) and type(one) is not bool for one in given)
    if not given or are_numbers or all(map(_is_of_spans, given)):
        return list(column) if given else None
    rows: list[Any] = []
    for one, count in zip(column, lengths.tolist(), strict=True):
        try:
            row = one if one is None or is_array(one) else np.array(one, None if one else np.int64)
        except (TypeError, ValueError):
            return None
        if row is not None and (row.shape != (count,) or to_numpy(row).dtype.kind not in "iu"):
            return None
        rows.append(row if row is None else to_numpy(row).astype(np.int64))
    return rows


def _is_of_spans(one: Any) -> bool:
    """Return True for spans of weight versions."""
    keys = {"start", "end"}
    is_list = isinstance(one, (list, tuple))
    return is_list and all(isinstance(span, Mapping) and {*span} >= keys for span in one)


def _routes(columns: Mapping[str, Any]) -> RoutedExperts | None:
    """Return the routed experts of calls as a field; None if there are none, or not as arrays."""
    rows = columns.get("routed_experts", ())
    first = next((row for row in rows if row is not None), None)
    if not isinstance(first, np.ndarray) or first.ndim != 3:
        return None
    rows = [first[:0] if row is None else row for row in rows]
    return RoutedExperts(rows, starts=columns.get("routed_starts"))
