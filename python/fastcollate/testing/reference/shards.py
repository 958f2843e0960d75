"""Shards of a step: the rows of one rank, token by token."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from operator import add
from typing import Any, NamedTuple

import numpy as np

from fastcollate.common.row_columns import VALUES
from fastcollate.testing.reference.fields import dtype_of_indices
from fastcollate.testing.reference.grids import layout_options
from fastcollate.testing.reference.loops import build_batch_loops
from fastcollate.testing.reference.moving import Origin, move_field, move_values
from fastcollate.testing.reference.reading import Rows, is_number, readable, rows_of
from fastcollate.testing.reference.spreading import numbers_as_field, values_per_token


class _Slot(NamedTuple):
    """A row of the shard."""

    source: int
    """The row of the step; -1 for a synthetic one."""
    origins: list[Origin]
    """One for each response token; all None for padding rows."""


def build_shard_loops(
    prompts: Rows,
    responses: Rows,
    *,
    shard: Any,
    pad_token_id: int,
    labels: str | None = None,
    layout: Any = "left",
    sampled: Any | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Build the batch of a shard: pick the rows of every column as lists, then write these.

    Parameters
    ----------
    prompts, responses, pad_token_id, labels, layout
        As in `fastcollate.build_batch`, for all rows of the step.
    shard
        The rows, as in `fastcollate.planning.Shard`. Padding rows train nothing, and have no routes
        and no values of response tokens; synthetic ones are one padding token of prompt and one of
        response.
    sampled
        For merged rows, True for each response token that was sampled; by default all were.
    **options
        ``rewards``, ``loss_mask``, ``logprobs``, ``advantages`` and ``fields`` of all rows, and
        more arguments of `build_batch_loops`.

    Returns
    -------
    dict[str, object]
        As `build_batch_loops`, as wide as the whole step.
    """
    given = {name: options.pop(name, None) for name in VALUES}
    given["advantages"], fields = numbers_as_field(given["advantages"], options.pop("fields", None))
    layout, own = layout_options(layout)
    options = own | options
    prompt_rows = [list(readable(row)) for row in rows_of(prompts)]
    response_rows = [list(readable(row)) for row in rows_of(responses)]
    is_padding, slots = shard.is_padding.tolist(), []
    for row, pads in zip(shard.rows.tolist(), is_padding, strict=True):
        count = 1 if row < 0 else len(response_rows[row])
        origins = [None if pads else (row, position) for position in range(count)]
        slots.append(_Slot(row, origins))

    def pick(rows: list[Any]) -> list[Any]:
        return [[pad_token_id] if slot.source < 0 else rows[slot.source] for slot in slots]

    columns: dict[str, Any] = {}
    for name, column in given.items():
        if column is None:
            continue
        rows = rows_of(column)
        if name == "rewards" and is_number(rows[0]):
            columns[name] = [
                0.0 if pads else rows[slot.source]
                for slot, pads in zip(slots, is_padding, strict=True)
            ]
        else:
            columns[name] = move_values(slots, rows, 0)
    if fields is not None:
        lens = list(map(len, prompt_rows)), list(map(len, response_rows))
        real = np.where(is_padding, -1, shard.rows).tolist()
        columns["fields"] = {
            key: move_field(_with_dtype(values_per_token(field, *lens, rows=real)), slots, real)
            for key, field in fields.items()
        }
    columns |= {"prompts": pick(prompt_rows), "responses": pick(response_rows)}
    totals = map(len, map(add, columns["prompts"], columns["responses"]))
    if sampled is None:
        sampled = [[1] * len(row) for row in response_rows]
    return build_batch_loops(
        pad_token_id=pad_token_id,
        layout=layout,
        **_widths(shard, list(totals), layout, options),
        **columns,
        labels=labels,
        sampled=move_values(slots, sampled, 0),
        is_padding=is_padding,
    )


def _widths(shard: Any, lens: list[int], layout: str, options: dict[str, Any]) -> dict[str, Any]:
    """Fix the widths of the whole step, and the bins of packed rows."""
    if layout == "jagged":
        return options
    if layout == "packed":
        if getattr(shard, "bin_offsets", None) is None:
            return options
        parts = [(row, 0, count) for row, count in enumerate(lens)]
        bins = [parts[begin:end] for begin, end in pairwise(shard.bin_offsets.tolist())]
        given = {name: value for name, value in options.items() if value is not None}
        return {"bins": bins, "pad_to": shard.bin_width, **given}
    multiple = options.get("multiple_of") or 1
    prompt, response, longest = shard.widths
    fixed = {"pad_response_to": response}
    if layout == "two_segment":
        fixed["pad_prompt_to"] = prompt
    else:
        fixed["pad_to"] = longest
    given = {name: value for name, value in options.items() if value is not None}
    return fixed | {"multiple_of": multiple} | given


def _with_dtype(field: Any) -> Any:
    """Return routes in the dtype that all ranks have; other fields as they are."""
    is_routes = type(field).__name__ == "RoutedExperts"
    if not is_routes or field.dtype is not None or field.num_experts is not None:
        return field
    rows = [readable(row) for row in rows_of(field.rows)]
    return dataclasses.replace(field, dtype=dtype_of_indices(rows))
