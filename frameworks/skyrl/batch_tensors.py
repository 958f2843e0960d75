"""Ports of SkyRL's functions for batch tensors, as loops."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate.testing.reference.reading import Array

if TYPE_CHECKING:
    import torch


def convert_prompts_responses_to_batch_tensors(
    pad_token_id: Any,
    prompts: Sequence[list[int]],
    responses: Sequence[list[int]],
    rewards: Sequence[list[float] | torch.Tensor],
    loss_masks: Sequence[list[float]],
    logprobs: Sequence[list[float]] | None = None,
    rollout_expert_indices: Sequence[Array] | None = None,
    rollout_sample_support: Sequence[Array] | None = None,
) -> tuple[Any, ...]:
    """Return the results of SkyRL's function of this name, by loops.

    Parameters
    ----------
    pad_token_id
        The id in front of the shorter rows.
    prompts, responses
        B lists of token ids each.
    rewards, loss_masks, logprobs
        Up to R values for each row, right-aligned: their number need not be that of the
        response's tokens. ``logprobs`` may have fewer rows than the batch, or none.
    rollout_expert_indices
        For each row an array ``(captured, layers, topk)`` of uint8, int16 or int32: the experts of
        its first tokens.
    rollout_sample_support
        For each row an array ``(response tokens, k)`` of int32.

    Returns
    -------
    tuple
        sequences, attention_mask, response_mask, rewards, loss_masks, logprobs or None, experts or
        None, support or None: int64 and ``(B, W)``, ``(B, W)``, ``(B, R)``, then float32
        ``(B, R)``, and two with ``values`` of all rows' tokens and ``cu_seqlens``. Where no expert
        was captured, they are 0, 1, 2, ...

    Raises
    ------
    AssertionError
        If the row counts differ, or there are no rows.
    TypeError
        If rewards is None or holds plain numbers, or a row's experts are no NumPy array.
    ValueError
        If a field's row is longer than R (SkyRL leaves this to torch's broadcasting), or experts
        are missing for a row, more than its tokens or of another shape than in other rows.
    IndexError
        If logprobs has more rows than the batch.

    Notes
    -----
    SkyRL 0.4.0, ``skyrl/train/dataset/preprocess.py``.
    """
    import torch

    rows = len(prompts)
    counts = [len(field) for field in (prompts, responses, rewards, loss_masks)]
    if rows == 0 or len(set(counts)) > 1:
        raise AssertionError(f"row counts differ or are 0: {counts}")
    width = max(len(p) + len(r) for p, r in zip(prompts, responses, strict=True))
    response_width = max(len(r) for r in responses)

    input_ids, attention_mask, response_mask = [], [], []
    for prompt, response in zip(prompts, responses, strict=True):
        tokens = len(prompt) + len(response)
        input_ids.append([pad_token_id] * (width - tokens) + list(prompt) + list(response))
        attention_mask.append([int(column >= width - tokens) for column in range(width)])
        first = response_width - len(response)
        response_mask.append([int(column >= first) for column in range(response_width)])

    def right_aligned(field: Sequence[Any]) -> torch.Tensor:
        out = torch.zeros(rows, response_width)
        for row, values in enumerate(field):
            padded = out[row]
            start = response_width - len(values)
            if start < 0:
                raise ValueError(f"row {row} has {len(values)} items, more than {response_width}")
            for position, value in enumerate(torch.as_tensor(values, dtype=torch.float32)):
                padded[start + position] = value
        return out

    routes, support = rollout_expert_indices, rollout_sample_support
    return (
        torch.tensor(input_ids, dtype=torch.int64),
        torch.tensor(attention_mask, dtype=torch.int64),
        torch.tensor(response_mask, dtype=torch.int64),
        right_aligned(rewards),
        right_aligned(loss_masks),
        right_aligned(logprobs) if logprobs else None,
        _packed_routes(routes, prompts, responses) if routes else None,
        None if support is None else _packed(support, np.int32),
    )


def _packed(rows: Sequence[Any], dtype: Any) -> SimpleNamespace:
    """Return a ``PackedTensor``: the values of all rows, and where rows begin."""
    import torch

    values = [value for row in rows for value in row]
    ends = [sum(map(len, rows[:row])) for row in range(len(rows) + 1)]
    shape = np.shape(rows[0][0]) if len(rows[0]) else np.shape(rows[0])[1:]
    return SimpleNamespace(
        values=torch.from_numpy(np.array(values, dtype).reshape(len(values), *shape)),
        cu_seqlens=torch.tensor(ends, dtype=torch.int32),
    )


def _packed_routes(
    routes: Sequence[Array], prompts: Sequence[list[int]], responses: Sequence[list[int]]
) -> SimpleNamespace:
    token_counts = [len(p) + len(r) for p, r in zip(prompts, responses, strict=True)]
    layers, topk = _routes_shape(routes, token_counts)
    missing = [list(range(topk))] * layers
    rows = [
        one.tolist() + [missing] * (tokens - len(one))
        for one, tokens in zip(routes, token_counts, strict=True)
    ]
    return _packed(rows, np.result_type(*(one.dtype for one in routes)))


def _routes_shape(
    rollout_expert_indices: Sequence[Array], token_counts: list[int]
) -> tuple[int, int]:
    """Check the experts of each row; give the number of layers and of experts in each."""
    for row, routes in enumerate(rollout_expert_indices):
        if not isinstance(routes, np.ndarray):
            raise TypeError(f"experts have to be NumPy arrays, but sample {row} is {type(routes)}")
    if len(rollout_expert_indices) != len(token_counts):
        raise ValueError(f"{len(rollout_expert_indices)} experts for {len(token_counts)} rows")
    for row, (routes, tokens) in enumerate(zip(rollout_expert_indices, token_counts, strict=True)):
        if routes.ndim != 3 or routes.shape[1:] != rollout_expert_indices[0].shape[1:]:
            raise ValueError(f"experts of sample {row} have shape {routes.shape}")
        if routes.shape[2] < 1 or not 1 <= len(routes) <= tokens:
            raise ValueError(f"experts of sample {row}: {routes.shape} for {tokens} tokens")
    layers, topk = rollout_expert_indices[0].shape[1:]
    return layers, topk
