"""Batches as the TensorDicts of verl's trainers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate.batch import Batch
from fastcollate.common.arguments import suggests_names
from fastcollate.common.arrays import describe, to_numpy, to_tensor
from fastcollate.ops.loss_positions import trained

if TYPE_CHECKING:
    from tensordict import TensorDict

LAYOUT = "two_segment"
"""The layout of verl's batches."""

NAMES = {
    "loss_mask": "response_mask",
    "rewards": "rm_scores",
    "logprobs": "rollout_log_probs",
}
"""verl's keys of outputs that have another one here."""

DTYPES = {
    "attention_mask": "int64",
    "position_ids": "int64",
    "response_mask": "int64",
    "rm_scores": "float32",
    "rollout_log_probs": "float32",
}
"""verl's dtypes; other values keep theirs."""


@suggests_names
def to_tensordict(batch: Batch[Any]) -> TensorDict:
    """Return a batch with the keys, shapes and dtypes of the rollouts that verl trains on.

    Parameters
    ----------
    batch
        B rows in the layout ``"two_segment"``, with prompt width P and response width R. The loss
        mask holds zeros and ones.

    Returns
    -------
    TensorDict
        With batch size (B,), and

        - ``input_ids``, ``attention_mask`` and ``position_ids``, int64 (B, P + R)
        - ``prompts``, int64 (B, P), and ``responses``, int64 (B, R), views of ``input_ids``
        - ``response_mask``, int64 (B, R), the batch's loss mask: 1 on tokens that train
        - ``rm_scores``, float32 (B, R), the batch's rewards, if it has any
        - ``rollout_log_probs``, float32 (B, R), the batch's logprobs, if it has any
        - ``uid``, the batch's uids, as a ``NonTensorStack``
        - all other outputs under their own keys, with lists as ``NonTensorStack``

        Tensors share the batch's memory where the dtype is the same.

    Raises
    ------
    ValueError
        The batch has another layout; the loss mask has a value other than 0 and 1, or was changed
        to train padding; two outputs have the same key in verl; an output has no item per row.
    TypeError
        `batch` is not a :class:`fastcollate.Batch`.
    ImportError
        tensordict is not installed.

    Notes
    -----
    verl's ``response_mask`` is 0 on observations, which the model did not generate. The
    ``response_mask`` of a :class:`fastcollate.Batch`, which is 1 there, has no key in verl.

    If the batch has no position ids, they are made as in verl: 0 on padding on the left, the last
    position on padding on the right.

    ``DataProto.from_tensordict`` takes the result, and a trainer derives ``token_level_scores``
    from ``rm_scores``. Pass more tensors as fields with verl's keys, such as ``ref_log_prob``.
    """
    if not isinstance(batch, Batch):
        raise TypeError(f"batch is {describe(batch)}; pass a Batch, as build_batch returns it")
    try:
        from tensordict import NonTensorStack, TensorDict
    except ImportError as error:
        raise ImportError("to_tensordict needs tensordict; pip install tensordict") from error
    _check_layout(batch)

    values = {
        key: NonTensorStack(*value) if isinstance(value, list) else value
        for key, value in _name(batch).items()
    }
    return TensorDict(values, batch_size=[batch.plan.num_rows])


def _check_layout(batch: Batch[Any]) -> None:
    layout = batch.plan.layout
    if layout != LAYOUT:
        raise ValueError(
            f"batch has the layout {layout!r}, but verl's is {LAYOUT!r}; pass "
            f"batch.to_layout({LAYOUT!r}), or pass layout={LAYOUT!r} to build_batch"
        )
    for output in batch.spec.table:
        if output.align in ("joined", "joined_offsets"):
            raise ValueError(
                f"{output.key} has no item per row, which verl's batches need; pass it as "
                "fc.PerRow with concat=False, or leave it out"
            )


def _name(batch: Batch[Any]) -> dict[str, Any]:
    """Return tensors and lists of one item per row, by verl's keys."""
    ids = _tensor(batch["input_ids"], "int64")
    split = ids.shape[1] - batch["response_mask"].shape[1]
    named = [("prompts", ids[:, :split]), ("responses", ids[:, split:]), ("input_ids", ids)]
    named += [("uid", list(batch.uids))] if batch.uids is not None else []
    done = {"input_ids", "response_mask"} if "loss_mask" in batch else {"input_ids"}
    named += [(key, value) for key, value in batch.items() if key not in done]

    found: dict[str, Any] = {}
    for key, value in named:
        name = NAMES.get(key, key)
        if name in found:
            raise ValueError(f"batch has two outputs that are {name} in verl; leave {key} out")
        if key == "loss_mask":
            _check_mask(value)
            trained(batch._state)
        found[name] = value if isinstance(value, list) else _tensor(value, DTYPES.get(name))
    if "position_ids" not in found:
        found["position_ids"] = (found["attention_mask"].cumsum(1) - 1).clamp(min=0)
    return found


def _check_mask(mask: Any) -> None:
    is_weight = to_numpy((mask != 0) & (mask != 1))
    if is_weight.any():
        row, token = np.argwhere(is_weight)[0].tolist()
        raise ValueError(
            f"loss_mask[{row}, {token}] is {float(mask[row, token])}, but verl's response_mask is "
            "0 or 1; pass a loss_mask of zeros and ones"
        )


def _tensor(value: Any, dtype: str | None) -> Any:
    import torch

    tensor = to_tensor(value) if isinstance(value, np.ndarray) else value
    return tensor if dtype is None else tensor.to(getattr(torch, dtype))
