"""Shards of a step: the rows of one rank, token by token."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from fastcollate.testing.reference.fields import is_of_objects, smallest_dtype
from fastcollate.testing.reference.grids import layout_options
from fastcollate.testing.reference.loops import build_batch_loops
from fastcollate.testing.reference.packed import Part
from fastcollate.testing.reference.reading import Field, Rows, is_number, readable, rows_of
from fastcollate.testing.reference.spreading import Spread, numbers_as_field, values_per_token


def build_shard_loops(
    prompts: Rows,
    responses: Rows,
    *,
    shard: Any,
    pad_token_id: int,
    rewards: Field | None = None,
    loss_mask: Rows | None = None,
    logprobs: Rows | None = None,
    advantages: Field | None = None,
    fields: Mapping[str, Any] | None = None,
    labels: str | None = None,
    layout: Any = "left",
    sampled: Any | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Build the batch of a shard: pick the rows of every column as lists, then write these.

    Parameters
    ----------
    prompts, responses, pad_token_id, rewards, loss_mask, logprobs, advantages, fields, labels, \
    layout
        As in `fastcollate.build_batch`, for all rows of the step.
    shard
        The rows, as in `fastcollate.planning.Shard`. Padding rows train nothing, and have no routes
        and no values of response tokens; synthetic ones are one padding token of prompt and one of
        response.
    sampled
        For merged rows, True for each response token that was sampled; by default all were.
    **options
        More arguments of `build_batch_loops`.

    Returns
    -------
    dict[str, object]
        As `build_batch_loops`, as wide as the whole step.
    """
    advantages, fields = numbers_as_field(advantages, fields)
    layout, own = layout_options(layout)
    options = own | options
    prompt_rows = [list(readable(row)) for row in rows_of(prompts)]
    response_rows = [list(readable(row)) for row in rows_of(responses)]
    picks = list(zip(shard.rows.tolist(), shard.is_padding.tolist(), strict=True))

    def pick(column: Any, synthetic: Any, of_padding: Any = None) -> list[Any]:
        values = []
        for row, is_padding in picks:
            if row < 0:
                values.append(synthetic)
            else:
                is_masked = is_padding and of_padding is not None
                values.append(of_padding(column[row]) if is_masked else column[row])
        return values

    def zeros(row: Any) -> list[int]:
        return [0] * len(row)

    def no_reward(row: Any) -> Any:
        return 0.0 if is_number(row) else zeros(row)

    columns: dict[str, Any] = {}
    if rewards is not None:
        rows = rows_of(rewards)
        columns["rewards"] = pick(rows, no_reward([0] if not is_number(rows[0]) else 0), no_reward)
    if loss_mask is not None:
        columns["loss_mask"] = pick([readable(r) for r in rows_of(loss_mask)], [0], zeros)
    for name, values in (("logprobs", logprobs), ("advantages", advantages)):
        if values is not None:
            columns[name] = pick([readable(row) for row in rows_of(values)], [0], zeros)
    if fields is not None:
        of_rows = list(map(len, prompt_rows)), list(map(len, response_rows))
        real = [row for row, is_padding in picks if not is_padding]
        columns["fields"] = {
            key: _pick_field(values_per_token(field, *of_rows, rows=real), picks)
            for key, field in fields.items()
        }
    chosen_prompts = pick(prompt_rows, [pad_token_id])
    chosen_responses = pick(response_rows, [pad_token_id])
    lens = [len(p) + len(r) for p, r in zip(chosen_prompts, chosen_responses, strict=True)]
    arguments = {
        "prompts": chosen_prompts,
        "responses": chosen_responses,
        "pad_token_id": pad_token_id,
        "layout": layout,
        **_widths(shard, lens, layout, options),
    }
    if sampled is None:
        sampled = [[1] * len(row) for row in response_rows]
    return build_batch_loops(
        **arguments,
        **columns,
        labels=labels,
        sampled=pick(sampled, [0], zeros),
        is_padding=shard.is_padding.tolist(),
    )


def _widths(shard: Any, lens: list[int], layout: str, options: dict[str, Any]) -> dict[str, Any]:
    """Fix the widths of the whole step, and the bins of packed rows."""
    if layout == "jagged":
        return options
    if layout == "packed":
        if getattr(shard, "bin_offsets", None) is None:
            return options
        parts = [Part(row, 0, count) for row, count in enumerate(lens)]
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


def _pick_field(field: Any, picks: Any) -> Any:
    if type(field).__name__ == "PerRow":
        return _pick_values(field, [row for row, _ in picks])
    rows = [readable(row) for row in rows_of(field.rows)]
    shapes = (np.shape(row) for row in rows)
    trailing: tuple[int, ...] = next((shape[1:] for shape in shapes if shape != (0,)), ())
    if trailing:
        rows = [np.asarray(row).reshape(len(row), *trailing) for row in rows]
    if type(field).__name__ == "RoutedExperts":
        none = np.zeros((0, *trailing), np.int64)
        largest = [trailing[-1] - 1, *(int(np.max(row)) for row in rows if np.size(row))]
        dtype = field.dtype
        if dtype is None and field.num_experts is None:
            dtype = smallest_dtype(max(largest))  # that all ranks have
        chosen = [none if is_padding else rows[row] for row, is_padding in picks]
        return dataclasses.replace(field, rows=chosen, dtype=dtype)
    gap = field.fill if field.gap_fill is None else field.gap_fill
    tokens = 2 if field.align == "sequence" else 1
    synthetic = np.full((tokens, *trailing), gap) if trailing else [gap] * tokens
    chosen = [synthetic if row < 0 else rows[row] for row, _ in picks]
    if field.align == "response":
        for index, (row, is_padding) in enumerate(picks):
            if is_padding and row >= 0:
                chosen[index] = np.full((len(rows[row]), *trailing), gap)
    if isinstance(field.rows, Spread):
        chosen = Spread(chosen)
    return dataclasses.replace(field, rows=chosen)


def _pick_values(field: Any, picks: list[int]) -> Any:
    values = readable(field.values)
    if is_of_objects(field):
        return dataclasses.replace(
            field, values=[None if row < 0 else values[row] for row in picks], dtype=object
        )
    if isinstance(values, np.ndarray):
        rows = [np.zeros_like(values[0]) if row < 0 else values[row] for row in picks]
        return dataclasses.replace(field, values=np.stack(rows))
    values = [readable(value) for value in values]
    if all(map(is_number, values)):
        whole = all(np.asarray(value).dtype.kind in "biu" for value in values)
        dtype = ("int64" if whole else "float32") if field.dtype is None else field.dtype
        rows = [0 if row < 0 else values[row] for row in picks]
        return dataclasses.replace(field, values=rows, dtype=dtype)
    rows = [np.asarray(values[0])[:0] if row < 0 else values[row] for row in picks]
    return dataclasses.replace(field, values=rows)
