"""`build_batch` token by token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fastcollate.testing.reference.fields import field_outputs
from fastcollate.testing.reference.grids import Grid, grids_of, place
from fastcollate.testing.reference.reading import (
    Array,
    Field,
    Rows,
    given_fields,
    is_number,
    readable,
    rows_of,
)

IGNORED = -100
"""The label that losses leave out."""


@np.errstate(over="ignore")  # beyond float32 is infinity, as it should be
def build_batch_loops(
    prompts: Rows,
    responses: Rows,
    *,
    pad_token_id: int,
    rewards: Field | None = None,
    loss_masks: Rows | None = None,
    logprobs: Rows | None = None,
    fields: Mapping[str, Any] | None = None,
    uids: Any | None = None,
    trajectory_ids: Any | None = None,
    position_ids: str | None = None,
    labels: str | None = None,
    layout: str = "left",
    **widths: int | None,
) -> dict[str, Any]:
    """Build a batch token by token, in Python loops.

    Every padded row is a Python list that is filled by position and converted at the end, as
    training frameworks do it. This is the baseline that users have today.

    Parameters
    ----------
    prompts, responses
        B rows of token ids each. A row is a sequence of numbers, an array or a CPU tensor.
    pad_token_id
        The id around the shorter rows.
    rewards, loss_masks, logprobs
        B rows with one value per response token; for ``rewards`` also B numbers, of which each
        lands on the last response token of its row.
    fields, position_ids, labels, layout
        As `fastcollate.build_batch`. Labels go by the loss masks as they are in the output.
    uids, trajectory_ids
        Ignored: they make no output.
    **widths
        ``pad_to``, ``pad_to_multiple_of``, ``max_prompt_len`` and ``max_response_len``, as there.

    Returns
    -------
    dict[str, object]
        ``input_ids`` and ``attention_mask``, int64 ``(B, W)``; ``response_mask``, int64
        ``(B, R)``; of those asked for ``position_ids`` and ``labels``, int64 ``(B, W)``; of those
        given ``loss_mask``, ``rewards`` and ``logprobs``, float32 ``(B, R)``, and `fields`. W is
        the longest prompt + response, R the longest response, unless fixed. In the jagged layout
        there are no masks, but offsets, and T tokens take the place of ``(B, W)``, the response
        tokens that of ``(B, R)``. All are NumPy arrays, but for bfloat16, which are tensors, for
        ``max_seqlen``, an int, and for arrays per row that are not joined, a list.
    """
    prompt_rows = [readable(row) for row in rows_of(prompts)]
    response_rows = [readable(row) for row in rows_of(responses)]
    prompt_lens, response_lens = list(map(len, prompt_rows)), list(map(len, response_rows))
    rows = [[*p, *r] for p, r in zip(prompt_rows, response_rows, strict=True)]
    tokens, answers = grids_of(prompt_lens, response_lens, layout, **widths)

    batch: dict[str, Any] = {"input_ids": np.array(place(tokens, rows, pad_token_id), np.int64)}
    if layout == "jagged":
        batch |= _offsets(tokens, answers)
    else:
        batch |= {"attention_mask": _mask(tokens), "response_mask": _mask(answers)}
    if position_ids is not None:
        batch["position_ids"] = _position_ids(tokens, position_ids)

    per_token = {
        key: [_per_token(row, count) for row, count in zip(column, response_lens, strict=True)]
        for key, column in given_fields(rewards=rewards, loss_masks=loss_masks, logprobs=logprobs)
    }
    if labels is not None:
        weights = per_token.get("loss_mask", [[1] * count for count in response_lens])
        batch["labels"] = _labels(tokens, rows, weights, shifted=labels == "shifted")
    for key, column in per_token.items():
        batch[key] = np.array(place(answers, column, 0.0), np.float32)
    for key, field in (fields or {}).items():
        batch |= field_outputs(key, field, tokens, answers)
    return batch


def _offsets(tokens: Grid, answers: Grid) -> dict[str, Any]:
    offsets, response_offsets = [0], [0]
    for count, response_count in zip(tokens.lens, answers.lens, strict=True):
        offsets.append(offsets[-1] + count)
        response_offsets.append(response_offsets[-1] + response_count)
    return {
        "cu_seqlens": np.array(offsets, np.int32),
        "offsets": np.array(offsets, np.int64),
        "max_seqlen": max(tokens.lens),
        "response_offsets": np.array(response_offsets, np.int64),
    }


def _mask(grid: Grid) -> Array:
    return np.array(place(grid, [[1] * count for count in grid.lens], 0), np.int64)


def _position_ids(tokens: Grid, padding: str) -> Array:
    positions = place(tokens, [range(count) for count in tokens.lens], 1 if padding == "one" else 0)
    if padding == "repeat_last" and tokens.width is not None:
        for row, start, count in zip(positions, tokens.starts, tokens.lens, strict=True):
            for column in range(start + count, tokens.width):
                row[column] = max(count - 1, 0)
    return np.array(positions, np.int64)


def _labels(tokens: Grid, rows: list[Any], weights: list[Any], *, shifted: bool) -> Array:
    labels = []
    for row, row_weights in zip(rows, weights, strict=True):
        first = len(row) - len(row_weights)
        of_row = [IGNORED] * len(row)
        for position, weight in enumerate(row_weights):
            if np.float32(weight) != 0:
                of_row[first + position] = row[first + position]
        labels.append([*of_row[1:], IGNORED][: len(row)] if shifted else of_row)
    return np.array(place(tokens, labels, IGNORED), np.int64)


def _per_token(values: Any, count: int) -> Any:
    """Give a value for each response token: a number per row lands on the last."""
    return [*[0.0] * (count - 1), values] if is_number(values) else readable(values)
