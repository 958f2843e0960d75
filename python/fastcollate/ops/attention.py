"""Which positions look at which: what attention kernels take instead of a causal mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate.arguments import checked_count
from fastcollate.arrays import convert, dtype_like, dtype_name, like_of

if TYPE_CHECKING:
    from fastcollate.batch import Batch


def subtree_end(batch: Batch) -> Any:
    """See :attr:`fastcollate.Batch.subtree_end`."""
    plan = batch.plan
    ends = plan.subtree_ends().reshape(plan.leading_shape(of_sequence=True))
    return like_of(ends, batch["input_ids"])


def dense_mask(batch: Batch, dtype: Any, window: int | None) -> Any:
    """See :meth:`fastcollate.Batch.dense_mask`."""
    plan, like = batch.plan, batch["input_ids"]
    kind = dtype_like(like, dtype)
    if (name := dtype_name(kind)) != "bool" and "float" not in name:
        raise TypeError(f"dtype is {name!r}; pass bool, or the dtype of floats that scores have")
    window = checked_window(window)
    rows = (plan.num_output_rows, plan.width)
    ends = like_of(plan.subtree_ends().reshape(rows), like)
    columns = like_of(np.arange(plan.width, dtype=np.int32), like)
    mask = columns[:, None] < ends[:, None, None, :]
    mask &= columns <= columns[:, None]
    if window is not None:
        depths = like_of(plan.depths().reshape(rows), like)
        mask &= depths[:, None, None, :] > depths[:, None, :, None] - window
    return mask if name == "bool" else _additive(mask, kind)


def _additive(mask: Any, dtype: Any) -> Any:
    """Return what is added to scores: 0 where a mask is true, and the dtype's minimum elsewhere."""
    if isinstance(mask, np.ndarray):
        return np.where(mask, convert(np.zeros(1), dtype), np.finfo(dtype).min)
    import torch

    return mask.new_zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


def checked_window(window: Any) -> int | None:
    """Return how many tokens a position looks at, itself included; None for all."""
    if window is None:
        return None
    return checked_count("window", window, "a number of tokens or None", bits=32)
