"""Padding conversions that replace ``verl.workers.utils.padding``."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from fastcollate.common.arguments import suggests_names
from fastcollate.common.arrays import describe, is_tensor, to_numpy
from fastcollate.compat.verl.mappings import get_object, is_tensordict, nested_of, set_object
from fastcollate.rows.columns import jagged_rows

if TYPE_CHECKING:
    import torch


@suggests_names
def left_right_2_no_padding(data: Any) -> Any:
    """Remove the padding of a batch, in place.

    Parameters
    ----------
    data
        A TensorDict or dict of B rows with tensors ``input_ids`` ``(B, S)``, ``attention_mask``
        ``(B, S)``, ``response_mask`` ``(B, R)`` and ``position_ids`` ``(B, S)`` or ``(B, 4, S)``;
        there may be ``loss_mask`` ``(B, R)``, ``routed_experts`` ``(B, S, layers, topk)`` and, both
        or none, ``teacher_logprobs`` and ``teacher_ids`` ``(B, S, topk)``. Tokens are at nonzero
        attention mask, in any columns.

    Returns
    -------
    TensorDict or dict
        `data` itself. ``input_ids``, ``position_ids`` and, if present and not nested yet,
        ``routed_experts`` and the teacher's are jagged nested tensors of the tokens of each row;
        ``loss_mask`` and ``response_mask`` are both the given loss mask or, without one that
        differs, the given response mask; ``max_seq_len`` is S and ``max_response_len`` R;
        ``indices`` are the flat indices of tokens in ``B * S``, int64 (tokens,). Other values stay
        unchanged.

    Raises
    ------
    AssertionError
        One of the first four is missing.
    TypeError
        `data` is not a TensorDict or dict.

    Notes
    -----
    ``verl.workers.utils.padding.left_right_2_no_padding`` of verl 0.9.1, without its loop over
    rows; its main branch of autumn 2026 has the same. In verl, ``response_mask`` is 0 on
    observations, as a :class:`fastcollate.Batch` has it in ``loss_mask``: its ``response_mask`` is
    1 there, and would train them. Position ids ``(B, 4, S)`` are ragged along tokens always; verl
    leaves that to torch, which takes the other dimension where all rows have as many tokens. A
    :class:`fastcollate.Batch` has :meth:`~fastcollate.Batch.to_layout` for that.
    """
    import torch

    if not (is_tensordict(data) or isinstance(data, MutableMapping)):
        raise TypeError(
            f"data is {describe(data)}; pass a TensorDict or a dict (a Batch has to_layout)"
        )
    for key in ("input_ids", "attention_mask", "response_mask", "position_ids"):
        if key not in data.keys():  # noqa: SIM118
            raise AssertionError(f"data has no {key}; pass a padded batch with {key}")

    input_ids, mask, position_ids = data["input_ids"], data["attention_mask"], data["position_ids"]
    data.pop("input_ids")
    set_object(data, "max_seq_len", input_ids.shape[1])
    set_object(data, "max_response_len", data["response_mask"].shape[1])
    indices = mask.flatten().nonzero().flatten()
    set_object(data, "indices", indices)
    counts = (mask != 0).sum(-1)
    lengths = to_numpy(counts)
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    cu_seqlens = offsets.to(torch.int32)  # the dtype for flash-attention

    def tokens(padded: torch.Tensor, offsets: torch.Tensor) -> Any:
        return nested_of(padded.flatten(0, 1)[indices], offsets, lengths)

    data["input_ids"] = tokens(input_ids, cu_seqlens)
    if position_ids.dim() == 2:
        data["position_ids"] = tokens(position_ids, offsets)
    else:
        by_token = position_ids.transpose(0, 1).flatten(1)[:, indices]
        data["position_ids"] = nested_of(by_token, offsets, lengths, 2)
    data["response_mask"] = data["loss_mask"] = _find_trained(data)
    routed_experts = data.get("routed_experts", None)
    if routed_experts is not None and not routed_experts.is_nested:
        data["routed_experts"] = tokens(routed_experts, cu_seqlens)
    teacher = {key: data.get(key, None) for key in ("teacher_logprobs", "teacher_ids")}
    if all(value is not None for value in teacher.values()):
        for key, value in teacher.items():
            data[key] = tokens(value, cu_seqlens)
    return data


def _find_trained(data: Any) -> Any:
    """Return verl's response mask, which is 0 on observations."""
    response_mask, loss_mask = data["response_mask"], data.get("loss_mask", None)
    if loss_mask is None or loss_mask.is_nested or loss_mask.shape != response_mask.shape:
        return response_mask
    return response_mask if (loss_mask == response_mask).all() else loss_mask


@suggests_names
def no_padding_2_padding(tensor: torch.Tensor, data: Any) -> torch.Tensor:
    """Select a model's outputs for responses from those for all tokens, and pad them.

    A token is predicted at the position before it.

    Parameters
    ----------
    tensor
        One value per token of all rows: a jagged nested tensor (B, jagged, ...), or its values
        (tokens, ...).
    data
        A TensorDict or dict with ``prompts`` and ``responses``, both jagged nested tensors; or both
        padded, ``(B, P)`` and ``(B, R)``, with ``attention_mask`` ``(B, P + R)``. For nested ones,
        there may be ``max_response_len``; without it, R is the longest response.

    Returns
    -------
    torch.Tensor
        (B, R, ...), 0 after each response. Gradients flow.

    Raises
    ------
    AssertionError
        The number of tokens differs from the rows'; a row has no prompt, whose last token predicts
        the first of the response; the attention mask is nested.
    KeyError
        A key is missing in `data`.

    Notes
    -----
    ``verl.workers.utils.padding.no_padding_2_padding`` of verl 0.9.1, without its loop over rows.
    :meth:`fastcollate.Batch.gather` does it for a Batch.
    """
    import torch

    if not is_tensor(tensor):
        raise TypeError(f"tensor is {describe(tensor)}; pass a tensor")
    values = tensor.values() if tensor.is_nested else tensor
    prompts, responses = data["prompts"], data["responses"]
    width = get_object(data, "max_response_len", -1)
    if prompts.is_nested:
        prompt_lens = torch.from_numpy(jagged_rows("prompts", prompts)[1])
        response_lens = torch.from_numpy(jagged_rows("responses", responses)[1])
        if width < 0:
            width = int(response_lens.max())
    else:
        mask = data["attention_mask"]
        if mask.is_nested:
            raise AssertionError(
                "attention_mask is nested, but prompts are not; pass a padded attention_mask"
            )
        split = prompts.shape[1]
        prompt_lens, response_lens = mask[:, :split].sum(1), mask[:, split:].sum(1)
        width = responses.shape[1]
    ends = (prompt_lens + response_lens).cumsum(0)
    if int(ends[-1]) != len(values):
        raise AssertionError(
            f"tensor has {len(values)} tokens, but the rows of data have {int(ends[-1])}; "
            "pass the data of the same rows"
        )
    if (prompt_lens == 0).any():
        row = int((prompt_lens == 0).nonzero()[0])
        raise AssertionError(
            f"row {row} has no prompt, so nothing predicts the first token of its response; "
            "pass prompts of at least one token"
        )
    columns = torch.arange(width, device=values.device)
    first = (ends - response_lens - 1).to(values.device)
    is_token = columns < response_lens.to(values.device)[:, None]
    places = (first[:, None] + columns)[is_token]
    out = values.new_zeros((len(first), width, *values.shape[1:]))
    out[is_token] = values[places]
    return out
