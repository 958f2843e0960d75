"""Batch tensors: functions of ``skyrl.train.dataset.preprocess``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate._fastcollate import FieldSpec, fix_lists
from fastcollate.common.arguments import check_integer, suggests_names
from fastcollate.common.arrays import describe, is_array, offsets_of
from fastcollate.common.text import show
from fastcollate.compat.skyrl.installed import packed_tensor
from fastcollate.ops.collating import Request, collate
from fastcollate.rows.column_input import ragged
from fastcollate.rows.fields import Rows
from fastcollate.rows.lengths import Integers
from fastcollate.rows.tokens import Parts

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

REWARDS = FieldSpec("rewards", "rewards", plain=True, any_length=True)
LOSS_MASK = FieldSpec("loss_mask", "loss_masks", plain=True, any_length=True)
LOGPROBS = FieldSpec("logprobs", "logprobs", plain=True, any_length=True)


@suggests_names
def convert_prompts_responses_to_batch_tensors(
    pad_token_id: int,
    prompts: Rows,
    responses: Rows,
    rewards: Rows,
    loss_masks: Rows,
    logprobs: Rows | None = None,
    rollout_expert_indices: Any | None = None,
    rollout_sample_support: Any | None = None,
    max_seq_len: int | None = None,
) -> tuple[Any, ...]:
    """Convert prompts and responses to batch tensors, as SkyRL's function of this name does.

    The result equals SkyRL's bit for bit. The function is more lenient than
    :func:`fastcollate.build_batch`: a row of a field may have any length up to the longest response
    ``R``, and its values are right-aligned; NaN is accepted everywhere.

    Parameters
    ----------
    pad_token_id
        The padding token.
    prompts, responses
        ``B`` rows of token ids each.
    rewards, loss_masks
        ``B`` rows of numbers each.
    logprobs
        Rows of numbers; rows missing at the end are zero. Without any, item 6 is None.
    rollout_expert_indices
        ``B`` NumPy arrays (captured tokens, layers, topk) of uint8, int16 or int32. Without any,
        item 7 is None.
    rollout_sample_support
        ``B`` NumPy arrays (response tokens, k) of int32. Without any, item 8 is None.
    max_seq_len
        Log a warning when the longest row exceeds it; nothing is truncated.

    Returns
    -------
    tuple
        ``sequences`` and ``attention_mask``, int64 (B, W) with ``W = max(prompt + response)``;
        ``response_mask``, int64 (B, R); ``rewards``, ``loss_masks`` and, if given, ``logprobs``,
        float32 (B, R); the expert indices and the sample support if given. These are SkyRL's
        ``PackedTensor``, or where SkyRL is not installed, named tuples of its ``values`` and
        ``cu_seqlens``: (tokens of all rows, layers, topk) of the widest of the arrays' dtypes, with
        ``arange(topk)`` for tokens without captured routes; and (response tokens of all rows, k).

    Raises
    ------
    AssertionError
        An empty batch, or prompts, responses, rewards and loss masks of different row counts.
    ValueError, TypeError
        As :func:`fastcollate.build_batch`; also expert indices or sample support that are not
        NumPy arrays of the shapes above, or an array without any route.
    IndexError
        More rows of ``logprobs`` than of prompts.

    Notes
    -----
    Written against ``skyrl.train.dataset.preprocess`` of SkyRL 0.4.0.
    """
    rows = _count("prompts", prompts)
    if rows == 0:
        raise AssertionError("prompts has 0 rows; pass at least one")
    for name, field in [
        ("responses", responses),
        ("rewards", rewards),
        ("loss_masks", loss_masks),
    ]:
        if (found := _count(name, field)) != rows:
            raise AssertionError(
                f"{name} has {found} rows, but prompts has {rows}; pass one row per prompt"
            )
    first = rewards[0] if is_array(rewards) else next(iter(rewards))
    if isinstance(first, (int, float)) or getattr(first, "ndim", 1) == 0:
        raise TypeError(
            f"rewards[0] is {describe(first)}; pass rows of one reward per response token (one "
            "number per row is for fastcollate.build_batch)"
        )
    if max_seq_len is not None:
        max_seq_len = check_integer("max_seq_len", max_seq_len, "an integer or None")

    fields = [(rewards, REWARDS), (loss_masks, LOSS_MASK)]
    if logprobs is not None and (found := _count("logprobs", logprobs)) > 0:
        if found > rows:
            raise IndexError(
                f"logprobs has {found} rows, but prompts has {rows}; pass at most one row per "
                "prompt"
            )
        if found < rows:
            if hasattr(logprobs, "__arrow_c_stream__") or hasattr(logprobs, "__arrow_c_array__"):
                logprobs = ragged(logprobs)
            logprobs = [*logprobs, *[[]] * (rows - found)]
        fields.append((logprobs, LOGPROBS))
    routes = None
    if rollout_expert_indices is not None and len(rollout_expert_indices) > 0:
        routes = _check_routes(rollout_expert_indices, rows)
    collated = collate(Request(Parts(prompts, responses), pad_token_id, fields))
    data, plan, support = collated.data, collated.plan, rollout_sample_support
    if max_seq_len is not None and plan.longest_row > max_seq_len:
        logger.warning(
            "the longest row has %d tokens, which exceeds max_seq_len=%d, and rows are not "
            "truncated; check the limits of the generation",
            plan.longest_row,
            max_seq_len,
        )

    return (
        data["input_ids"],
        data["attention_mask"],
        data["response_mask"],
        data["rewards"],
        data["loss_mask"],
        data.get("logprobs"),
        None if routes is None else _pack_routes(routes, plan.prompt_lens + plan.response_lens),
        None if support is None else _pack_support(support, plan.response_lens),
    )


@suggests_names
def make_router_padding_mask(
    attention_mask: torch.Tensor, captured_route_lengths: Sequence[int]
) -> torch.Tensor:
    """Return a mask of positions without captured routes, as SkyRL's function of this name does.

    Parameters
    ----------
    attention_mask
        (B, W), 1 on the tokens of left-padded rows.
    captured_route_lengths
        Number of each row's first tokens that have routes.

    Returns
    -------
    torch.Tensor
        Bool (B, W): True on padding and after the captured tokens; on the mask's device.

    Raises
    ------
    ValueError
        A mask of other dimensions, or a length outside 0 to the row's tokens.
    """
    import torch

    attention_mask = torch.as_tensor(fix_lists(attention_mask))
    if attention_mask.dim() != 2:
        raise ValueError(
            f"Expected 2D attention_mask, but it has shape {tuple(attention_mask.shape)}; "
            "pass shape (rows, width)"
        )
    rows, width = attention_mask.shape
    if len(captured_route_lengths) != rows:
        raise ValueError(
            "Expected one captured route length per trajectory, but captured_route_lengths has "
            f"{len(captured_route_lengths)} items and attention_mask {rows} rows; pass one per row"
        )
    device = attention_mask.device
    captured = torch.as_tensor(fix_lists(captured_route_lengths), dtype=torch.int64, device=device)
    lens = attention_mask.sum(dim=1, dtype=torch.int64)
    is_wrong = (captured < 0) | (captured > lens)
    if is_wrong.any():
        row = int(is_wrong.int().argmax())
        raise ValueError(
            "captured route lengths must be within trajectory lengths, but "
            f"captured_route_lengths[{row}] is {int(captured[row])} and row {row} has "
            f"{int(lens[row])} tokens; pass a length from 0 to {int(lens[row])}"
        )
    position = torch.arange(width, device=device) - (width - lens)[:, None]
    return (position < 0) | (position >= captured[:, None])


def _count(name: str, rows: Any) -> int:
    try:
        return len(rows)
    except TypeError as error:
        raise TypeError(
            f"{name} is {show(rows)}; pass a sequence of rows, one per prompt"
        ) from error


ROUTE_DTYPES = ("uint8", "int16", "int32")


def _check_routes(routes: Sequence[Any], rows: int) -> Sequence[Any]:
    """Check SkyRL's requirements on expert indices, but for those of `_pack_routes`."""
    _check_arrays("rollout_expert_indices", routes, rows, "routes")
    for row, array in enumerate(routes):
        name = f"rollout_expert_indices[{row}]"
        if array.ndim != 3 or len(array) == 0:
            raise ValueError(
                f"{name} has shape {array.shape}; rows must contain routes for every trajectory: "
                "pass shape (captured tokens, layers, topk) with at least one token"
            )
        if array.dtype.kind not in "iu":
            raise ValueError(f"{name} has dtype {array.dtype}; pass integers")
        if array.dtype.kind == "i" and array.size and (least := int(array.min())) < 0:
            # SkyRL writes it as an unsigned number.
            raise ValueError(f"{name} has {least}; pass indices of experts, from 0 on")
    return routes


def _pack_routes(routes: Sequence[Any], lens: Integers) -> Any:
    """Return routes of all tokens, row after row.

    Parameters
    ----------
    routes
        For each row (captured tokens, layers, topk), of the widest dtype in the result.
    lens
        The tokens of each row. Those after the captured ones get ``arange(topk)``.
    """
    shape = routes[0].shape[1:]
    for row, array in enumerate(routes):
        name = f"rollout_expert_indices[{row}]"
        if array.dtype not in ROUTE_DTYPES:
            names = ", ".join(ROUTE_DTYPES)
            raise ValueError(
                f"{name} has dtype {array.dtype}; pass a canonical routed-expert dtype ({names})"
            )
        if array.shape[1:] != shape or shape[1] == 0:
            raise ValueError(
                f"{name} has shape {array.shape}, but rollout_expert_indices[0] {routes[0].shape}; "
                "entries must share [layers, topk]: pass one shape, with at least one expert per "
                "layer"
            )
        if len(array) > lens[row]:
            raise ValueError(
                f"{name} has {len(array)} route rows for {lens[row]} tokens; "
                "pass at most one per token"
            )
    dtype = max((array.dtype for array in routes), key=lambda dtype: dtype.itemsize)
    return _pack(routes, lens, dtype, np.arange(shape[1], dtype=dtype))


def _pack_support(support: Any, lens: Integers) -> Any:
    """Return the sample support of all response tokens, row after row.

    Parameters
    ----------
    support
        For each row (response tokens, k), int32.
    lens
        The response tokens of each row.
    """
    if not isinstance(support, list):
        raise TypeError(
            "rollout_sample_support must be a list of NumPy arrays, but is of type "
            f"{type(support).__name__}; pass a list of one array per row"
        )
    _check_arrays("rollout_sample_support", support, len(lens), "support")
    for row, array in enumerate(support):
        name = f"rollout_sample_support[{row}]"
        if array.dtype != np.int32:
            raise ValueError(
                f"{name} has dtype {array.dtype}; pass a canonical sample-support dtype (int32)"
            )
        if array.ndim != 2 or array.shape[1:] != support[0].shape[1:] or array.shape[1] == 0:
            raise ValueError(
                f"{name} has shape {array.shape}; pass (response tokens, k) with the same k for "
                "all rows"
            )
        if len(array) != lens[row]:
            raise ValueError(
                f"{name} has {len(array)} support rows for {lens[row]} response tokens; "
                "pass one per response token"
            )
    return _pack(support, lens, np.dtype(np.int32), None)


def _check_arrays(name: str, arrays: Sequence[Any], count: int, noun: str) -> None:
    """Check that there is a NumPy array for every row."""
    if len(arrays) != count:
        raise ValueError(
            f"{name} has {len(arrays)} rows, but prompts has {count}; it must contain {noun} for "
            "every trajectory"
        )
    for row, array in enumerate(arrays):
        if not isinstance(array, np.ndarray):
            raise TypeError(
                f"{name} entries must be NumPy arrays, but {name}[{row}] is {show(array)}; pass an "
                "array for every row"
            )


def _pack(rows: Sequence[Any], lens: Integers, dtype: Any, fill: Any) -> Any:
    """Return rows one after the other, each filled up to its length."""
    import torch

    offsets = offsets_of(lens)
    values = np.empty((int(offsets[-1]), *rows[0].shape[1:]), dtype)
    for row, (start, stop) in zip(rows, pairwise(offsets.tolist()), strict=True):
        values[start : start + len(row)] = row
        if start + len(row) < stop:
            values[start + len(row) : stop] = fill
    return packed_tensor(torch.from_numpy(values), torch.from_numpy(offsets.astype(np.int32)))
