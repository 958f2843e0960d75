"""Shards of a mapping of tensors, with rows first."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from fastcollate._fastcollate import IGNORE_INDEX
from fastcollate.common.arguments import check_choice, check_count, tally
from fastcollate.common.arrays import (
    describe,
    dtype_name,
    is_array,
    is_tensor,
    read_array,
    take,
    to_numpy,
)
from fastcollate.plan.shard import Shard
from fastcollate.rows.fields import LABELS

PADS = ("error", "copy_first")
"""Treatments of a mini-batch whose row count is not divisible by the number of ranks."""


def check_rows(data: Mapping[str, Any]) -> int:
    """Return the number of rows of a mapping's values: arrays, tensors, lists, or None."""
    first: tuple[str, int] | None = None
    for key, value in data.items():
        if value is None:
            continue
        if not isinstance(value, (list, tuple)) and not (is_array(value) and value.ndim > 0):
            raise TypeError(
                f"batch[{key!r}] is {describe(value)}; pass a tensor or an array with rows first, "
                "a list of one item per row, or None"
            )
        if is_tensor(value) and not value.is_cpu:
            raise ValueError(
                f"batch[{key!r}] lies on {value.device}; pass batch[{key!r}].cpu(), since Ray's "
                "object store is memory of the host"
            )
        first = first or (key, len(value))
        if len(value) != first[1]:
            raise ValueError(
                f"batch[{key!r}] has {tally(len(value), 'row')}, but batch[{first[0]!r}] has "
                f"{first[1]:,}; pass values with the same number of rows"
            )
    if first is None:
        raise ValueError("batch has no values; pass a mapping with at least one tensor")
    return first[1]


def shards_of(boundaries: Any, dp_size: Any, pad_rows: Any, num_rows: int) -> list[list[Shard]]:
    """Return contiguous shards of the mini-batches with these boundaries, by rank."""
    check_choice("pad_rows", pad_rows, PADS)
    dp_size = check_count("dp_size", dp_size, "a number of ranks")
    pairs = read_array(to_numpy(boundaries))
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise TypeError(
            f"boundaries is {describe(boundaries)}; pass a pair of integers for each mini-batch: "
            "its first row, and one past its last"
        )
    shards = []
    for index, (start, end) in enumerate(pairs.tolist()):
        if not 0 <= start < end <= num_rows:
            raise ValueError(
                f"boundaries[{index}] is ({start}, {end}), but batch has "
                f"{tally(num_rows, 'row')}; pass 0 <= start < end <= {num_rows}"
            )
        missing = -(end - start) % dp_size
        if missing and pad_rows == "error":
            raise ValueError(
                f"boundaries[{index}] is ({start}, {end}): {tally(end - start, 'row')}, which "
                f"cannot be divided among dp_size={dp_size} ranks; pass other boundaries, or "
                "pad_rows='copy_first'"
            )
        rows = np.append(np.arange(start, end), np.full(missing, start))
        is_padding = np.arange(len(rows)) >= end - start
        parts = zip(np.split(rows, dp_size), np.split(is_padding, dp_size), strict=True)
        shards.append([Shard(rows, is_padding, num_rows) for rows, is_padding in parts])
    return shards


def rows_of(data: Mapping[str, Any], shard: Shard, masks: Collection[str]) -> dict[str, Any]:
    """Return the rows of a shard: views if they are contiguous.

    On padding rows, `masks` are 0, and labels of tokens -100.
    """
    if (shard.rows < 0).any() or shard.bin_offsets is not None:
        kind = "bins" if shard.bin_offsets is not None else "synthetic rows"
        raise ValueError(
            f"plan has {kind}, which need a Batch; pass a plan with pad_rows='copy_first' and "
            "without layout, or what build_batch returned"
        )
    has_padding = bool(shard.is_padding.any())
    labels = (key for key in LABELS if _is_of_tokens(data.get(key)))
    fills = {**dict.fromkeys(masks, 0), **dict.fromkeys(labels, IGNORE_INDEX)}
    if has_padding and not any(data.get(key) is not None for key in fills):
        raise ValueError(
            f"batch has no key of masks={tuple(masks)!r}, so copied rows would train; pass as "
            "masks the keys that are 0 on padding rows"
        )
    start = int(shard.rows[0]) if len(shard.rows) else 0
    is_view = not has_padding and bool((np.diff(shard.rows) == 1).all())
    rows: dict[str, Any] = {}
    for key, value in data.items():
        if value is None:
            rows[key] = None
        elif is_view:
            rows[key] = value[start : start + len(shard.rows)]
        elif isinstance(value, (list, tuple)):
            rows[key] = [value[row] for row in shard.rows.tolist()]
        else:
            rows[key] = take(value, shard.rows)
        if has_padding and key in fills and rows[key] is not None:
            rows[key] = _mask(key, rows[key], shard.is_padding, fills[key])
    return rows


def _is_of_tokens(labels: Any) -> bool:
    """Return True for labels of tokens, not of rows: a matrix of signed integers."""
    return is_array(labels) and labels.ndim > 1 and dtype_name(labels.dtype).startswith("int")


def _mask(key: str, mask: Any, is_padding: np.ndarray, fill: int) -> Any:
    """Set a mask or labels, which are already a copy, to a number on padding rows."""
    if not is_array(mask):
        raise TypeError(f"batch[{key!r}] is {describe(mask)}; pass a mask as a tensor or an array")
    for row in np.flatnonzero(is_padding).tolist():
        mask[row] = fill
    return mask
