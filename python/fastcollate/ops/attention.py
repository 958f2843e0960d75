"""Attention masks of batches, in the forms that kernels take instead of a causal mask."""

from __future__ import annotations

import inspect
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fastcollate.common.arguments import check_count, tally
from fastcollate.common.arrays import convert, dtype_like, dtype_name, is_tensor, like_of, to_tensor

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    from fastcollate._fastcollate import Plan


_TABLES = [
    *("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"),
    *("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices"),
]
"""The tables of a ``BlockMask``, in the order of a plan's tables."""


def subtree_end(plan: Plan, like: Any) -> Any:
    """See :attr:`fastcollate.Batch.subtree_end`; `like` are the token ids."""
    ends = plan.subtree_ends().reshape(plan.leading_shape(of_sequence=True))
    return like_of(ends, like)


def dense_mask(plan: Plan, like: Any, dtype: Any, window: int | None = None) -> Any:
    """See :meth:`fastcollate.Batch.dense_mask`."""
    kind = dtype_like(like, dtype)
    if (name := dtype_name(kind)) not in ("bool", "bfloat16", "float16", "float32", "float64"):
        raise TypeError(
            f"dtype is {name!r}; pass bool, or the dtype of the attention scores: "
            "float32, bfloat16, float16 or float64"
        )
    window = check_window(window)
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
    """Return an additive mask: 0 where a mask is true, and the dtype's minimum elsewhere."""
    if isinstance(mask, np.ndarray):
        return np.where(mask, convert(np.zeros(1), dtype), np.finfo(dtype).min)
    import torch

    return mask.new_zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


def block_mask(
    plan: Plan, like: Any, block_size: int = 128, device: Any = None, window: int | None = None
) -> BlockMask:
    """See :meth:`fastcollate.Batch.block_mask`."""
    block_size = check_count("block_size", block_size, "a number of positions", bits=32)
    window = check_window(window)
    make = _block_mask_class(like)
    device = like.device if device is None else device

    def on_device(array: np.ndarray) -> Any:
        return to_tensor(array).to(device)

    width = plan.width
    rows = (plan.num_output_rows, width)
    ends = on_device(plan.subtree_ends().reshape(rows))

    def sees(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (kv <= q) & (q < ends[b, kv])

    mask_mod = sees
    if window is not None:
        depths = on_device(plan.depths().reshape(rows))

        def sees_within_window(b: Any, h: Any, q: Any, kv: Any) -> Any:
            return sees(b, h, q, kv) & (depths[b, q] - depths[b, kv] < window)

        mask_mod = sees_within_window
    counts, lists, most = plan.block_tables(block_size, window)
    shape = (*counts.shape[1:], counts.shape[-1])
    # Lists have room for the longest one, not for all blocks: what follows one is not read.
    strides = (shape[-1] * most, shape[-1] * most, most, 1)
    indices = (on_device(table).as_strided(shape, strides) for table in lists)
    arrays = chain.from_iterable(zip(map(on_device, counts), indices, strict=True))
    tables = dict(zip(_TABLES, arrays, strict=True))
    sizes = block_size, block_size
    mask: BlockMask = make((width, width), **tables, BLOCK_SIZE=sizes, mask_mod=mask_mod)
    return mask


def _block_mask_class(like: Any) -> Any:
    """Return torch's ``BlockMask``, if the batch has tensors and torch has the class."""
    if not is_tensor(like):
        raise TypeError(
            "block_mask is torch's, but the outputs are NumPy arrays; call dense_mask, or build "
            "the batch with array_type='torch'"
        )
    try:
        from torch.nn.attention.flex_attention import BlockMask
    except ImportError as error:
        raise _no_flex_attention() from error
    if not _has_lengths(BlockMask):
        raise _no_flex_attention()
    return BlockMask


@cache
def _has_lengths(kind: Any) -> bool:
    """Return True if a class of masks has lengths. Its signature takes 0.1 ms to read."""
    return "seq_lengths" in inspect.signature(kind).parameters


def _no_flex_attention() -> RuntimeError:
    import torch

    return RuntimeError(
        f"torch {torch.__version__} has no FlexAttention whose masks have lengths; call "
        "dense_mask, or install torch 2.6 or later"
    )


class AttentionRanges(NamedTuple):
    """Pairs of query spans and the key spans that they attend to.

    Attributes
    ----------
    q_ranges, k_ranges : int32 (ranges, 2)
        Start and end of each span, counted over the positions of all output rows.
    is_causal : bool (ranges,)
        True if both are the same span, in which a query attends to keys up to its own position.
        Otherwise each query of one span attends to all keys of the other.
    """

    q_ranges: Any
    k_ranges: Any
    is_causal: Any


def attention_ranges(plan: Plan, like: Any) -> AttentionRanges:
    """See :meth:`fastcollate.Batch.attention_ranges`."""
    return AttentionRanges(*(like_of(array, like) for array in plan.attention_ranges()))


class AttentionPaths(NamedTuple):
    """Segments of queries, and for each the keys on the path from the root of its tree to its end.

    The arguments of flash attention for variable lengths, with keys and values of `kv_index`.

    Attributes
    ----------
    kv_index : int64 (K,)
        Positions of the keys of all paths, end to end.
    cu_seqlens_q, cu_seqlens_k : int32 (segments + 1,)
        Offsets of segments in the positions, and of their paths in `kv_index`.
    max_seqlen_q, max_seqlen_k : int
        Positions of the longest segment, and keys of the longest path.
    """

    kv_index: Any
    cu_seqlens_q: Any
    cu_seqlens_k: Any
    max_seqlen_q: int
    max_seqlen_k: int


def attention_paths(plan: Plan, like: Any, bin: int | None = None) -> AttentionPaths:
    """See :meth:`fastcollate.Batch.attention_paths`."""
    if bin is not None:
        bin = check_count("bin", bin, "the number of an output row", least=0)
        if bin >= (count := plan.num_output_rows):
            raise ValueError(
                f"bin is {bin}, but the batch has {tally(count, 'output row')}; pass a number "
                f"from 0 to {count - 1}, or None for all"
            )
        plan = plan.of_bin(bin, plan.width)
    keys, offsets, *longest = plan.attention_paths()
    return AttentionPaths(*(like_of(array, like) for array in (keys, *offsets)), *longest)


def check_window(window: Any) -> int | None:
    """Return the number of tokens that a position attends to, itself included; None for all."""
    if window is None:
        return None
    return check_count("window", window, "a number of tokens or None", bits=32)
