"""Slabs: one allocation under several tensors, each with its own version counter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

CACHE_LINE = 64
"""Alignment in bytes of tensors in a slab: a cache line."""

LEAST_FILLED = 0.5
"""Least fraction of a slab that tensors must fill for it to be copied as one."""


def over(slab: Any, offset: int, like: Any) -> Any:
    """Return a tensor like another over a slab's bytes, from an offset on.

    It has the slab's storage, so that torch's allocators track copies and frees; but it is not a
    view of the slab, so that writing one tensor does not bump the version counters of the others.
    """
    import torch

    start = slab.storage_offset() + offset
    empty = torch.empty(0, dtype=like.dtype, device=slab.device)
    place = (start // like.itemsize, like.shape, like.stride())
    return empty.set_(slab.untyped_storage(), *place)


def is_plain(tensor: Any) -> bool:
    """Return True for a plain strided tensor without autograd, conjugation or quantization."""
    import torch

    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_nested or tensor.is_quantized)
        and not (tensor.is_conj() or tensor.is_neg())
    )


def as_bytes(tensor: Any) -> Any:
    """Return the bytes of a contiguous tensor as a tensor that is not a view of it."""
    # `view` rejects a dimension of one item if it has a stride.
    return _span(tensor, tensor.storage_offset() * tensor.itemsize, tensor.nbytes)


def _span(tensor: Any, first: int, size: int) -> Any:
    """Return `size` bytes of a tensor's storage as a tensor that is not a view of it."""
    import torch

    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), first, (size,), (1,))


def size_of(tensor: Any) -> int:
    """Return the bytes of a tensor's values, and of the indices of a sparse one."""
    if tensor.is_sparse:
        return int(tensor._indices().nbytes + tensor._values().nbytes)
    return int(tensor.nbytes)


def span(tensor: Any) -> int:
    """Return the bytes from a tensor's first item to the end of its last."""
    if tensor.is_contiguous():  # includes empty tensors
        return int(tensor.nbytes)
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in sizes)
    return int((last + 1) * tensor.itemsize)


def offset_in(slab: Any, tensor: Any) -> int | None:
    """Return a tensor's byte offset in a slab; None if it lies elsewhere or is not plain."""
    if tensor.device != slab.device or not is_plain(tensor) or tensor.numel() == 0:
        return None
    offset = int(tensor.data_ptr() - slab.data_ptr())
    fits = offset >= 0 and offset + span(tensor) <= slab.nbytes
    return offset if fits and offset % tensor.itemsize == 0 else None


def common_slab(tensors: Sequence[Any]) -> Any | None:
    """Return the span of a storage that plain tensors share and mostly fill; None if none."""
    filled = [tensor for tensor in tensors if tensor.numel() > 0]
    if len(filled) < 2:
        return None
    if len({tensor.untyped_storage().data_ptr() for tensor in filled}) > 1:
        return None
    starts = [tensor.storage_offset() * tensor.itemsize for tensor in filled]
    first = min(starts) // CACHE_LINE * CACHE_LINE
    spans = list(map(span, filled))
    end = max(map(sum, zip(starts, spans, strict=True)))
    if sum(spans) < LEAST_FILLED * (end - first):
        return None
    return _span(filled[0], first, end - first)


def offsets_of_packed(tensors: Sequence[Any]) -> tuple[list[int], int]:
    """Return the offsets of tensors that are packed one after the other, and the total bytes."""
    offsets, end = [], 0
    for tensor in tensors:
        offsets.append(end)
        end += -(-tensor.nbytes // CACHE_LINE) * CACHE_LINE
    return offsets, end


def pack_like(tensor: Any) -> Any:
    """Return a meta tensor of the same shape and dtype, contiguous."""
    import torch

    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
