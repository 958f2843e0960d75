"""`build_batch` token by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from fastcollate._fastcollate import IGNORE_INDEX
from fastcollate.testing.reference.fields import field_outputs, is_of_streams
from fastcollate.testing.reference.grids import Grid, grids_of, layout_options, place
from fastcollate.testing.reference.packed import packed_outputs, packed_rows, positions
from fastcollate.testing.reference.reading import (
    Array,
    Field,
    Rows,
    is_number,
    read_given_fields,
    readable,
    rows_of,
)
from fastcollate.testing.reference.sharing import prefix_tree_loops
from fastcollate.testing.reference.spreading import numbers_as_field, on_trained, values_per_token
from fastcollate.testing.reference.tree import (
    stream_offsets,
    tree_batch_of,
    tree_grids,
    tree_outputs,
)


@np.errstate(over="ignore")  # beyond float32 is infinity, as it should be
def build_batch_loops(
    prompts: Rows,
    responses: Rows,
    *,
    pad_token_id: int,
    rewards: Field | None = None,
    loss_mask: Rows | None = None,
    logprobs: Rows | None = None,
    advantages: Field | None = None,
    fields: Mapping[str, Any] | None = None,
    uids: Any | None = None,
    trajectory_ids: Any | None = None,
    position_ids: str | Literal[False] | None = None,
    labels: str | None = None,
    layout: Any = "left",
    bins: Any | None = None,
    sampled: Sequence[Sequence[Any]] | None = None,
    is_padding: Sequence[bool] | None = None,
    loss_mask_dtype: str = "float32",
    **options: Any,
) -> dict[str, Any]:
    """Build a batch token by token, in Python loops.

    Every padded row is a Python list that is filled by position and converted at the end, as in
    training frameworks. This is the baseline in use today.

    Parameters
    ----------
    prompts, responses
        B rows of token ids each. A row is a sequence of numbers, an array or a CPU tensor.
    pad_token_id
        The padding token.
    rewards, loss_mask, logprobs, advantages
        B rows with one value per response token. Rewards and advantages may be B numbers: a reward
        goes to the last response token of its row, an advantage to the tokens that train.
    fields, position_ids, labels, layout
        As in `fastcollate.build_batch`. Labels follow the loss masks as in the output.
    uids, trajectory_ids
        They have no output. Rows of a tree may share tokens by uids.
    bins
        For the packed layout, the sequences of each row; None for all sequences in one row, in
        order. For a tree, the rows of each bin.
    sampled
        For merged rows and rows of a shard: True for each sampled token of a real row's response.
        It is the loss mask if `loss_mask` is None.
    is_padding
        For rows of a shard: True for padding rows.
    loss_mask_dtype
        The dtype of the output ``loss_mask``.
    **options
        Options of the layout, which override its own.

    Returns
    -------
    dict[str, object]
        For rows padded to W tokens (the longest row, unless fixed) with responses padded to R:

        - ``input_ids`` and ``attention_mask``, int64 ``(B, W)``
        - ``position_ids`` and ``labels`` or ``shift_labels``, int64 ``(B, W)``, if asked for; left
          padding adds positions to labels, unless `position_ids` is False
        - ``response_mask``, int64 ``(B, R)``, and ``loss_mask``, float32 ``(B, R)``
        - ``rewards``, ``logprobs`` and ``advantages``, float32 ``(B, R)``, and `fields`, if given

        The jagged layout has offsets in place of masks, with all tokens in place of ``(B, W)`` and
        all response tokens in place of ``(B, R)``. The packed layout has N rows of W positions,
        ``(N, W)``, in place of both, with ``position_ids``, ``sequence_ids`` and the boundaries of
        segments in place of the attention mask. A tree has the outputs of `fastcollate.Tree`.

        All are NumPy arrays, except bfloat16 (tensors), ``max_seqlen`` (an int) and arrays per row
        that are not joined (a list).
    """
    advantages, fields = numbers_as_field(advantages, fields)
    if position_ids is None and "position_ids" in (fields or {}):
        position_ids = False  # they are the caller's
    layout, own = layout_options(layout)
    options = own | options
    prompt_rows = [readable(row) for row in rows_of(prompts)]
    response_rows = [readable(row) for row in rows_of(responses)]
    prompt_lens, response_lens = list(map(len, prompt_rows)), list(map(len, response_rows))
    rows = [[*p, *r] for p, r in zip(prompt_rows, response_rows, strict=True)]
    tree = None
    if layout == "packed":
        packed = packed_rows(prompt_lens, response_lens, bins, **options)
        tokens, answers, before = packed.grids
    elif layout == "tree":
        names = {name: options.pop(name) for name in ("share", "same_inputs")}
        trie = prefix_tree_loops(prompt_rows, response_rows, uids=uids, **names)
        tree = tree_batch_of(trie, response_lens, bins, **options)
        tokens, answers, before = tree_grids(tree)
    else:
        tokens, answers, before = grids_of(prompt_lens, response_lens, layout, **options)

    batch: dict[str, Any] = {"input_ids": _ints(tokens, rows, pad_token_id)}
    if layout == "packed":
        batch |= packed_outputs(packed, position_ids or None)
        batch["response_mask"] = _mask(answers, is_padding)
    elif tree is not None:
        batch |= tree_outputs(tree, rows, position_ids or None)
        if any(is_of_streams(field) for field in (fields or {}).values()):
            batch |= stream_offsets(tree)
    elif layout == "jagged":
        batch |= _offsets(tokens, answers)
    else:
        batch |= {"attention_mask": _mask(tokens), "response_mask": _mask(answers, is_padding)}
    if position_ids is None and labels is not None and layout in ("left", "two_segment"):
        position_ids = "zero"
    if position_ids is False:
        batch.pop("position_ids", None)
    elif position_ids and layout not in ("packed", "tree"):
        batch["position_ids"] = positions(tokens, list(map(range, tokens.lens)), position_ids)

    per_token = {
        key: [_per_token(row, count) for row, count in zip(column, response_lens, strict=True)]
        for key, column in read_given_fields(
            rewards=rewards, loss_mask=loss_mask, logprobs=logprobs, advantages=advantages
        )
    }
    if sampled is None:
        sampled = [[1] * count for count in response_lens]
    given = per_token.get("loss_mask", sampled)
    weights = _predicted(given, before, prompt_lens)
    if labels == "aligned":
        batch["labels"] = _ints(tokens, _labels(rows, weights), IGNORE_INDEX)
    elif labels == "shifted":
        batch["shift_labels"] = _ints(before, _labels(rows, weights), IGNORE_INDEX)
    per_token = {"loss_mask": weights} | per_token | {"loss_mask": weights}
    for key, column in per_token.items():
        dtype = loss_mask_dtype if key == "loss_mask" else "float32"
        batch[key] = np.array(place(answers, column, 0.0), dtype).reshape(answers.shape)
    for key, field in (fields or {}).items():
        of_tokens = on_trained(key, values_per_token(field, prompt_lens, response_lens), weights)
        batch |= field_outputs(key, of_tokens, tokens, answers, tree)
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


def _mask(grid: Grid, is_padding: Sequence[bool] | None = None) -> Array:
    flags = [False] * len(grid.lens) if is_padding is None else is_padding
    return _ints(grid, [[int(not f)] * n for f, n in zip(flags, grid.lens, strict=True)], 0)


def _ints(grid: Grid, rows: list[Any], pad: int) -> Array:
    return np.array(place(grid, rows, pad), np.int64).reshape(grid.shape)


def _predicted(weights: Any, before: Grid, prompt_lens: list[int]) -> list[Any]:
    """Remove the weights of tokens without a preceding token in their part of a sequence."""
    rows = []
    for row, places, count in zip(weights, before.places, prompt_lens, strict=True):
        in_front = places[count:]
        rows.append([0 if place is None else w for w, place in zip(row, in_front, strict=True)])
    return rows


def _labels(rows: list[Any], weights: list[Any]) -> list[list[int]]:
    """Return the ids of response tokens that train, and the ignored label for all others."""
    labels = []
    for row, row_weights in zip(rows, weights, strict=True):
        first = len(row) - len(row_weights)
        of_row = [IGNORE_INDEX] * len(row)
        for position, weight in enumerate(row_weights):
            if np.float32(weight) != 0:
                of_row[first + position] = row[first + position]
        labels.append(of_row)
    return labels


def _per_token(values: Any, count: int) -> Any:
    """Return a value for each response token: a number per row is put on the last.

    0 needs no token.
    """
    if is_number(values) and count == 0:
        if values != 0:
            raise ValueError(f"there is no token to put {values} on")
        return []
    return [*[0.0] * (count - 1), values] if is_number(values) else readable(values)
