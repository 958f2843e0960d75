"""Batch tensors, in place of those of ``skyrl.train.dataset.preprocess``."""

from __future__ import annotations

import logging
import reprlib
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fastcollate._fastcollate import FieldSpec
from fastcollate.arguments import checked_integer
from fastcollate.collating import collate_fields, excess_message
from fastcollate.ingest.column_input import ragged
from fastcollate.ingest.fields import Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    BatchTensors: TypeAlias = tuple[
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor,
        torch.Tensor | None,
        torch.Tensor | None,
    ]

logger = logging.getLogger(__name__)

REWARDS = FieldSpec("rewards", "rewards", plain=True, any_length=True)
LOSS_MASK = FieldSpec("loss_mask", "loss_masks", plain=True, any_length=True)
LOGPROBS = FieldSpec("logprobs", "logprobs", plain=True, any_length=True)
ROUTES = FieldSpec("rollout_expert_indices", "rollout_expert_indices", align="experts", dtype=None)


def convert_prompts_responses_to_batch_tensors(
    pad_token_id: int | Any,
    prompts: Rows,
    responses: Rows,
    rewards: Rows,
    loss_masks: Rows,
    logprobs: Rows | None = None,
    rollout_expert_indices: Any | None = None,
    max_seq_len: int | None = None,
) -> BatchTensors:
    """Convert prompts and responses to batch tensors, as SkyRL's function of this name does.

    The results equal SkyRL's bit for bit (but for rewards given as integers beyond 2**53, which
    round through float64 here). It is more lenient than :func:`fastcollate.build_batch`: a row of a
    field may have any length up to the longest response ``R``, and its values are right-aligned;
    NaN is accepted everywhere.

    Parameters
    ----------
    pad_token_id
        The padding token, or a tokenizer with that attribute. SkyRL 0.3 calls this argument
        ``tokenizer``: pass it by position.
    prompts, responses
        ``B`` rows of token ids each.
    rewards, loss_masks
        ``B`` rows of numbers each.
    logprobs
        Rows of numbers; rows missing at the end are zero. Without any, place 6 is None.
    rollout_expert_indices
        ``B`` NumPy arrays (captured tokens, layers, topk) of integers; see
        :class:`fastcollate.RoutedExperts`. Without any, place 7 is None.
    max_seq_len
        Log a warning when the longest row exceeds it; nothing is truncated.

    Returns
    -------
    tuple
        ``sequences`` and ``attention_mask``, int64 (B, W) with ``W = max(prompt + response)``;
        ``response_mask``, int64 (B, R); ``rewards``, ``loss_masks`` and, if given, ``logprobs``,
        float32 (B, R); the expert indices if given, (B, W, layers, topk), ``arange(topk)`` where
        none were captured, uint8, int16 or int32 by the largest. If all rows are empty,
        ``sequences`` is float32 as there.

    Raises
    ------
    AssertionError
        An empty batch, or prompts, responses, rewards and loss masks of different row counts.
    ValueError, TypeError
        As :func:`fastcollate.build_batch`; also expert indices that are no NumPy arrays, or a row
        without any.
    IndexError
        More rows of ``logprobs`` than of prompts.

    Notes
    -----
    Written against ``skyrl.train.dataset.preprocess`` of SkyRL 0.3; for expert indices against that
    of mid-2026, which takes arrays instead of nested lists and pads with ``arange(topk)`` instead
    of zeros.
    """
    import torch

    rows = _count("prompts", prompts)
    if rows == 0:
        raise AssertionError("prompts has 0 rows; pass at least one")
    for name, field in [
        ("responses", responses),
        ("rewards", rewards),
        ("loss_masks", loss_masks),
    ]:
        if (found := _count(name, field)) != rows:
            raise AssertionError(f"{name} has {found} rows, but prompts has {rows}")
    if max_seq_len is not None:
        max_seq_len = checked_integer("max_seq_len", max_seq_len, "an integer or None")

    fields = [(rewards, REWARDS), (loss_masks, LOSS_MASK)]
    if logprobs is not None and (found := _count("logprobs", logprobs)) > 0:
        if found > rows:
            raise IndexError(f"logprobs has {found} rows, but prompts has {rows}")
        if found < rows:
            if hasattr(logprobs, "__arrow_c_stream__") or hasattr(logprobs, "__arrow_c_array__"):
                logprobs = ragged(logprobs)
            logprobs = [*logprobs, *[[]] * (rows - found)]
        fields.append((logprobs, LOGPROBS))
    if rollout_expert_indices is not None and len(rollout_expert_indices) > 0:
        _check_routes(rollout_expert_indices, rows)
        fields.append((rollout_expert_indices, ROUTES))
    pad_token_id = getattr(pad_token_id, "pad_token_id", pad_token_id)
    batch = collate_fields(prompts, responses, pad_token_id, fields, "torch")
    if (message := excess_message(batch.plan, max_seq_len)) is not None:
        logger.warning(message)

    sequences = batch["input_ids"]
    if batch.plan.width == 0:
        # SkyRL's torch.tensor([[], []]) sees no integer to tell the dtype by.
        sequences = sequences.to(torch.float32)
    return (
        sequences,
        batch["attention_mask"],
        batch["response_mask"],
        batch["rewards"],
        batch["loss_mask"],
        batch.get("logprobs"),
        batch.get("rollout_expert_indices"),
    )


def make_router_padding_mask(
    attention_mask: torch.Tensor, captured_route_lengths: Sequence[int]
) -> torch.Tensor:
    """Tell where no routes were captured, as SkyRL's function of this name does.

    Parameters
    ----------
    attention_mask
        (B, W), 1 on the tokens of left-padded rows.
    captured_route_lengths
        How many of each row's first tokens have routes.

    Returns
    -------
    torch.Tensor
        Bool (B, W): True on padding and behind the captured tokens; on the mask's device.

    Raises
    ------
    ValueError
        A mask of other dimensions, or a length that is not from 0 to the row's tokens.
    """
    import torch

    attention_mask = torch.as_tensor(attention_mask)
    if attention_mask.dim() != 2:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}; pass two dimensions"
        )
    rows, width = attention_mask.shape
    if len(captured_route_lengths) != rows:
        raise ValueError(
            f"captured_route_lengths has {len(captured_route_lengths)} items, "
            f"but attention_mask has {rows} rows"
        )
    device = attention_mask.device
    captured = torch.as_tensor(captured_route_lengths, dtype=torch.int64, device=device)
    lens = attention_mask.sum(dim=1, dtype=torch.int64)
    is_wrong = (captured < 0) | (captured > lens)
    if is_wrong.any():
        row = int(is_wrong.int().argmax())
        raise ValueError(
            f"captured_route_lengths[{row}] is {int(captured[row])}, "
            f"but row {row} has {int(lens[row])} tokens"
        )
    position = torch.arange(width, device=device) - (width - lens)[:, None]
    return (position < 0) | (position >= captured[:, None])


def _check_routes(routes: Sequence[Any], rows: int) -> None:
    """Check what SkyRL asks of expert indices beyond what `RoutedExperts` does."""
    if len(routes) != rows:
        raise ValueError(f"rollout_expert_indices has {len(routes)} rows, but prompts has {rows}")
    for row, array in enumerate(routes):
        name = f"rollout_expert_indices[{row}]"
        if not isinstance(array, np.ndarray):
            raise TypeError(f"rows of expert indices are NumPy arrays, but {name} is {array!r:.80}")
        if array.ndim != 3 or len(array) == 0:
            raise ValueError(
                f"{name} has shape {array.shape}; pass (captured tokens, layers, topk), "
                "of one token at least"
            )
        if array.dtype.kind not in "iu":
            raise ValueError(f"{name} has dtype {array.dtype}; pass integers")


def _count(name: str, rows: Any) -> int:
    try:
        return len(rows)
    except TypeError as error:
        raise TypeError(
            f"{name} is {reprlib.repr(rows)}; pass a sequence of rows, one per prompt"
        ) from error
