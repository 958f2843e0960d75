"""Single columns of rows, written by the core: padded or concatenated."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate._fastcollate import FieldSpec, RowSpans, write_rows
from fastcollate.common.arrays import (
    convert,
    dtype_like,
    dtype_name,
    first_misfit,
    is_tensor,
    like_of,
    misfit,
    ranges_of,
    row_and_token,
    to_tensor,
)
from fastcollate.memory.pools import check_memory
from fastcollate.plan.layout import Jagged, Left, Right
from fastcollate.rows.fields import Field

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastcollate.plan.layout import Layout
    from fastcollate.rows.columns import Ragged

JAGGED = Jagged()

SMALL = 1 << 20
"""Bytes of an array at which memory of the pool pays for a call of the core."""

FEW = 128
"""Number of rows that NumPy concatenates in the time of a call of the core."""

SIDES = {"right": Right, "left": Left}
"""Layouts by the side of padding."""

AS_LONGEST = {side: layout() for side, layout in SIDES.items()}
"""Layouts as wide as the longest row."""

BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
"""Dtypes by size in bytes that the core uses for any bits."""


def pad_rows(rows: Any, dtype: str, layout: Layout, fill: float, array_type: str) -> Any:
    """Pad rows of any kind that batches accept; `pad_on_their_device` pads tensors by torch."""
    # Other fills may have no hash, and -0.0 equals 0.0.
    is_plain = type(fill) is int or (type(fill) is float and (fill or math.copysign(1, fill) > 0))
    field = (_cached_field if is_plain else _field)(dtype, fill)
    if array_type == "numpy":
        if field.dtype == "bfloat16":
            raise ValueError(
                "dtype of rows is bfloat16, which NumPy does not have; pass array_type='torch', or "
                "another dtype"
            )
        return _write(rows, field, layout)
    import torch

    return _write(rows, field, layout, torch)


def _field(dtype: str, fill: float) -> FieldSpec:
    """Return a field of whole sequences, checked."""
    return Field([], align="sequence", fill=fill, dtype=dtype).spec("rows")


_cached_field = functools.lru_cache(typed=True)(_field)


def pad_on_their_device(rows: Ragged, dtype: Any, layout: Layout, fill: float) -> Any:
    """Pad rows of one tensor by torch: on their device, with gradients."""
    values, offsets = rows.values, rows.offsets
    Field(values, align="sequence", fill=fill, dtype=dtype).spec("rows")  # checks fill and dtype
    target = dtype_like(values, dtype)
    if (index := first_misfit(values, target)) is not None:
        token = index // max(math.prod(values.shape[1:]), 1)
        row, position = row_and_token(offsets, token)
        place = f"rows[{row}][{position}]"
        raise misfit(place, values.reshape(-1)[index].item(), dtype_name(target))
    values, lengths = convert(values, target), np.diff(offsets)
    # Tokens without values: the core computes the width, and writes nothing.
    blank = RowSpans([(np.empty((len(values), 0), np.uint8), offsets[:-1], lengths)])
    count, width, _ = _write(blank, _bits("rows", 1), layout).shape
    starts = np.arange(count, dtype=np.int64) * width
    places = ranges_of(starts if layout.name == "right" else starts + width - lengths, lengths)
    out = values.new_full((count * width, *values.shape[1:]), fill)
    out = out.index_copy(0, like_of(places, values), values)
    return out.reshape(count, width, *values.shape[1:])


def is_small(x: Any) -> bool:
    """Return True if NumPy copies the tokens of an array or tensor sooner than the core."""
    return bool(x.nbytes <= SMALL)


def small_on_host(x: Any) -> np.ndarray | None:
    """Return an array or tensor as an array, if NumPy copies it sooner than the core; else None."""
    if not is_small(x):
        return None
    found: np.ndarray = x
    if is_tensor(x):
        if type(x).__name__ != "Tensor":
            return None
        try:
            found = x.numpy()
        except (RuntimeError, TypeError):  # with gradients, on a device, or of another kind
            return None
    return found


def is_computed(tensor: Any) -> bool:
    """Return True if torch has to write: a tensor on a device, or one with gradients."""
    return bool(tensor.requires_grad or not tensor.is_cpu)


def join(x: Any, columns: NDArray[np.int64], lengths: NDArray[np.int64]) -> Any:
    """Copy a span of each row of a padded array or tensor, concatenated.

    A span is given by its first column and its number of tokens.
    """
    if (len(x) <= FEW or x.nbytes == 0) and (small := small_on_host(x)) is not None:
        ends = (columns + lengths).tolist()
        parts = zip(small, columns.tolist(), ends, strict=True)
        return like_of(np.concatenate([row[start:end] for row, start, end in parts]), x)
    width, *trailing = x.shape[1:]
    rows = np.arange(len(x), dtype=np.int64)
    if is_tensor(x) and is_computed(x):
        tokens = x.reshape(len(x) * width, *trailing)
        return tokens.index_select(0, like_of(ranges_of(rows * width + columns, lengths), x))
    values, stride = _in_memory(x)
    inner = math.prod(trailing) * x.dtype.itemsize // values.dtype.itemsize
    spans = RowSpans([(values, rows * stride + columns * inner, lengths * inner)])
    flat = _write(spans, _bits("x", values.dtype.itemsize), JAGGED)
    if is_tensor(x):
        flat = to_tensor(flat)
    return flat.view(x.dtype).reshape(int(lengths.sum()), *trailing)


def _in_memory(x: Any) -> tuple[Any, int]:
    """Return an array or tensor as flat numbers of `BITS`, and the stride of its rows in them.

    Nothing is copied if each row is contiguous.
    """
    size = x.dtype.itemsize
    bits = BITS.get(size, "uint8")
    total = math.prod(x.shape[1:])
    if is_tensor(x):
        import torch

        x = x.detach().resolve_neg()
        if x.numel() == 0 or not x[:1].is_contiguous():
            x = x.contiguous()
        stride = x.stride(0)
        length = stride * (len(x) - 1) + total if x.numel() else 0
        flat = x.as_strided((length,), (1,))
        return flat.view(getattr(torch, bits)), stride
    x = np.require(x, requirements="A")
    if x.size == 0 or not x[:1].flags.c_contiguous or x.strides[0] < 0 or x.strides[0] % size:
        x = np.ascontiguousarray(x)
    stride = x.strides[0] // size
    length = stride * (len(x) - 1) + total if x.size else 0
    flat = np.lib.stride_tricks.as_strided(x, (length,), (size,)).view(bits)
    return flat, stride * size // flat.itemsize


def _bits(name: str, size: int) -> FieldSpec:
    """Return a field whose bits are copied unchanged."""
    return FieldSpec(name, name, align="sequence", dtype=BITS[size])


def _write(rows: Any, field: FieldSpec, layout: Layout, torch: Any = None) -> Any:
    """Write rows to memory of the default pool: an array, or a tensor of `torch`."""
    return write_rows(rows, field, layout.spec, check_memory("default", "numpy").pool, torch)
