"""From ragged rollouts to training tensors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fastcollate._fastcollate import DtypeSpec, FieldSpec, LayoutSpec, Plan, collate
from fastcollate.arguments import checked_int, checked_integer
from fastcollate.batch import Batch
from fastcollate.dtypes import REFERENCE, checked_dtypes
from fastcollate.fields import Field, Rows
from fastcollate.layouts import LEFT, checked_layout
from fastcollate.memory import PoolArgument, checked_pool

LOSS_MASK = FieldSpec("loss_mask", "loss_masks", refuses_nan=True)
REWARDS = FieldSpec("rewards", "rewards", per_row=True)
LOGPROBS = FieldSpec("logprobs", "logprobs")


def build_batch(
    prompts: Rows,
    responses: Rows,
    *,
    pad_token_id: int,
    rewards: Rows | None = None,
    loss_masks: Rows | None = None,
    logprobs: Rows | None = None,
    layout: Literal["left", "two_segment", "right"] = "left",
    pad_to: int | None = None,
    pad_to_multiple_of: int = 1,
    max_prompt_len: int | None = None,
    max_response_len: int | None = None,
    max_seq_len: int | None = None,
    dtypes: Literal["reference", "compact"] | Mapping[str, Any] = "reference",
    array_type: Literal["torch", "numpy"] = "torch",
    out: Batch | None = None,
    pool: PoolArgument = "default",
) -> Batch:
    """Build one training batch from ragged rows.

    With ``B`` rows, ``W = max(prompt + response)``, ``P = max(prompt)`` and ``R = max(response)``,
    the layouts are ::

        "left": one left-padded block; response-aligned fields are right-aligned, so that a
        response's values stand where ``log_probs[:, -R - 1 : -1]`` has them
        input_ids       | PAD PAD  p   p   r   r  |      loss_mask  |  0   r   r  |
                        |  p   p   p   r   r   r  |                 |  r   r   r  |
                         <---------- W ---------->                   <---- R --->
        "two_segment": left-padded prompt, right-padded response
        input_ids       | PAD  p   p   r   r  PAD |      loss_mask  |  r   r   0  |
                        |  p   p   p   r   r   r  |                 |  r   r   r  |
                         <--- P --->   <--- R --->                   <---- R --->
        "right": one right-padded block
        input_ids       |  p   p   r   r  PAD PAD |      loss_mask  |  r   r   0  |
                        |  p   p   p   r   r   r  |                 |  r   r   r  |
                         <---------- W ---------->                   <---- R --->

    Inputs are read where they lie and never changed; every output value is written once.

    Parameters
    ----------
    prompts, responses
        ``B`` rows of token ids each. A row is a list or tuple of numbers, an ``array.array``, or a
        1-D NumPy array or torch CPU tensor of any integer type; kinds may be mixed. The rows stand
        in any sequence, or are those of a 2-D array or tensor.
    pad_token_id
        What ``input_ids`` holds on padding. Masks come from lengths, so real tokens may equal it.
    rewards
        Per response token, or one number per row, which lands on the row's last response token.
    loss_masks, logprobs
        Per response token. Loss masks may be weights, but not NaN.
    layout
        ``"left"``, ``"two_segment"`` or ``"right"``.
    pad_to
        Fix ``W``, so that all data-parallel ranks agree on it. For one block, not for two segments.
    pad_to_multiple_of
        Round ``W`` up to a multiple; of two segments, ``P`` and ``R`` each.
    max_prompt_len
        Fix ``P`` of two segments.
    max_response_len
        Fix ``R``.
    max_seq_len
        Warn when the longest row exceeds it. Nothing is ever truncated.
    dtypes
        ``"reference"``: int64 ids and masks, float32 fields. ``"compact"``: int32 ids, bool masks,
        float32 fields. Or a mapping from keys to dtypes, by name or NumPy's or torch's own, where
        they differ from the reference: int32 for ids; int32 or bool for ``attention_mask`` and
        ``response_mask``; bfloat16 or float16 for fields, rounded as torch rounds float32.
    array_type
        ``"torch"`` or ``"numpy"``.
    out
        A batch that is not needed any more: its memory is taken over (more is taken where it is
        too small), and it is closed. It stays open after an error about lengths, shapes or
        arguments, but not after one about a number that was found while rows were read.
    pool
        Where the batch's memory comes from, and goes back to when the last tensor that sees it is
        gone: a :class:`BufferPool`, that of :func:`get_default_pool`, or None for fresh memory.

    Returns
    -------
    Batch
        ``input_ids`` and ``attention_mask``, int64 (B, W); ``response_mask``, int64 (B, R); and of
        the fields that were given ``loss_mask``, ``rewards`` and ``logprobs``, float32 (B, R),
        with zeros on padding. Other dtypes by ``dtypes``.

    Raises
    ------
    ValueError
        An empty batch; fields of different row counts; a field row of another length than its
        response; a row longer than a fixed width; a token id beyond its dtype; NaN in a loss mask;
        one reward for an empty response; widths or dtypes that cannot be; ``out`` where a tensor
        or view of it is alive, or that has no memory of its own.
    TypeError
        An object that is no field, row or number, named by field, row and position.
    ImportError
        If torch tensors are asked for and torch is not installed.
    ClosedBatchError
        ``out`` has been taken over before.

    Warns
    -----
    UserWarning
        The longest row exceeds ``max_seq_len``.

    Notes
    -----
    The left layout is that of SkyRL's ``convert_prompts_responses_to_batch_tensors``, whose lenient
    form is :func:`fastcollate.compat.skyrl.convert_prompts_responses_to_batch_tensors`. Python
    numbers round to float32 as NumPy rounds them.

    Examples
    --------
    >>> import fastcollate as fc
    >>> batch = fc.build_batch(
    ...     [[1, 2], [3]], [[4], [5, 6, 7]], pad_token_id=0, rewards=[0.5, 1.0], array_type="numpy"
    ... )
    >>> batch
    Batch of 2 rows, 7 tokens, 12.5% padding
      input_ids       int64    (2, 4)
      attention_mask  int64    (2, 4)
      response_mask   int64    (2, 3)
      rewards         float32  (2, 3)
    >>> batch.rewards
    array([[0. , 0. , 0.5],
           [0. , 0. , 1. ]], dtype=float32)
    """
    if not isinstance(array_type, str) or array_type not in ("torch", "numpy"):
        raise ValueError(f"array_type is {array_type!r}; pass 'torch' or 'numpy'")
    if max_seq_len is not None:
        max_seq_len = checked_integer("max_seq_len", max_seq_len, "an integer or None")
    layout_spec = checked_layout(
        layout, pad_to, max_prompt_len, max_response_len, pad_to_multiple_of
    )
    fields: list[Field] = []
    if loss_masks is not None:
        fields.append((loss_masks, LOSS_MASK))
    if rewards is not None:
        fields.append((rewards, REWARDS))
    if logprobs is not None:
        fields.append((logprobs, LOGPROBS))
    dtype_spec, typed_fields = checked_dtypes(dtypes, fields, array_type)
    batch = collate_fields(
        prompts,
        responses,
        pad_token_id,
        typed_fields,
        array_type,
        layout_spec,
        dtype_spec,
        out,
        pool,
    )
    if (message := excess_message(batch.plan, max_seq_len)) is not None:
        warnings.warn(message, stacklevel=2)
    return batch


def collate_fields(
    prompts: Rows,
    responses: Rows,
    pad_token_id: int,
    fields: Sequence[Field],
    array_type: str,
    layout: LayoutSpec = LEFT,
    dtypes: DtypeSpec = REFERENCE,
    out: Batch | None = None,
    pool: PoolArgument = "default",
) -> Batch:
    """Build a batch of any response-aligned fields."""
    pad_token_id = checked_int(
        "pad_token_id",
        pad_token_id,
        "an integer such as tokenizer.pad_token_id, or tokenizer.eos_token_id if that is None",
        bits=32 if dtypes.input_ids == "int32" else 64,
    )
    if out is not None and not isinstance(out, Batch):
        raise TypeError(f"out is of type {type(out).__name__}; pass a Batch or None")
    close = None if out is None else out._close
    pool = checked_pool(pool)
    arguments = (prompts, responses, pad_token_id, fields, layout, dtypes, close, pool)
    if array_type == "numpy":
        plan, arrays, lease = collate(*arguments)
        return Batch._of_lease(arrays, plan, lease)
    torch = _import_torch()
    from_numpy = torch.from_numpy
    plan, arrays, lease = collate(*arguments)
    outputs = {key: from_numpy(array) for key, array in arrays}
    for _, spec in fields:
        if spec.dtype == "bfloat16":
            # NumPy's array is of int16, since it has no such dtype.
            outputs[spec.key] = outputs[spec.key].view(torch.bfloat16)
    return Batch._of_lease(outputs, plan, lease)


def excess_message(plan: Plan, max_seq_len: int | None) -> str | None:
    """Say that the longest row exceeds ``max_seq_len``, if it does."""
    if max_seq_len is None or plan.longest_row <= max_seq_len:
        return None
    return (
        f"the longest row has {plan.longest_row} tokens, which exceeds max_seq_len={max_seq_len}; "
        "nothing is truncated: check the limits of the generation"
    )


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "array_type='torch' needs torch: pip install 'fastcollate[torch]', "
            "or pass array_type='numpy'"
        ) from error
    return torch
