"""Batches that are mappings: plain dicts, or TensorDicts where tensordict is installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastcollate.common.arrays import offsets_of, ranges_of, to_numpy
from fastcollate.rows.columns import Ragged, jagged_rows
from fastcollate.rows.columns import pick as picked_spans
from fastcollate.rows.lengths import Integers


def is_tensordict(value: Any) -> bool:
    """Return True for a TensorDict; always False if tensordict was not imported."""
    tensordict = sys.modules.get("tensordict")
    return tensordict is not None and isinstance(value, tensordict.TensorDictBase)


def set_object(data: Any, key: str, value: Any) -> None:
    """Set a value that belongs to no row."""
    if is_tensordict(data):
        from tensordict.tensorclass import NonTensorData

        value = NonTensorData(value)
    data[key] = value


def get_object(data: Any, key: str, default: Any) -> Any:
    """Return a value that belongs to no row, without the wrapping that TensorDicts give it."""
    value = data.get(key, default)
    if is_tensordict(data):
        from tensordict.tensorclass import NonTensorData

        return value.data if isinstance(value, NonTensorData) else value
    return value


def pick(data: Any, num_rows: int, rows: Sequence[int]) -> Any:
    """Return the given rows of all values that have one item per row; others stay unchanged."""
    index = np.array(rows, np.int64)
    if is_tensordict(data):
        import torch
        from tensordict import TensorDict

        # Read wrapped, to distinguish values that belong to no row.
        source = {key: _pick(data.get(key), num_rows, index) for key in data.keys()}  # noqa: SIM118
        return TensorDict(source, batch_size=torch.Size([len(rows)]))
    return {key: _pick(value, num_rows, index) for key, value in data.items()}


def _pick(value: Any, num_rows: int, rows: Integers) -> Any:
    return pick_rows(value, rows) if _num_rows(value) == num_rows else value


def _num_rows(value: Any) -> int | None:
    if isinstance(value, (Ragged, list, tuple)):
        return len(value)
    if getattr(value, "is_nested", False):
        return int(value.size(0))
    return next(iter(getattr(value, "shape", ())), None)


def pick_rows(value: Any, rows: Integers) -> Any:
    """Return the given rows of a Ragged, an array, a tensor (nested ones as jagged) or a list."""
    if isinstance(value, Ragged):
        return picked_spans(value, rows)
    if isinstance(value, (list, tuple)):
        chosen = [value[row] for row in rows]
        return chosen if isinstance(value, list) else tuple(chosen)
    if getattr(value, "is_nested", False):
        return _pick_nested(value, rows)
    if isinstance(value, np.ndarray):
        return value[rows]
    import torch

    return value[torch.from_numpy(rows)]


def _pick_nested(value: Any, rows: Integers) -> Any:
    """Return the given rows of a nested tensor as a jagged one."""
    import torch

    if value.layout is not torch.jagged:
        parts = value.unbind()
        chosen = [parts[row] for row in rows]
        return torch.nested.as_nested_tensor(chosen, layout=torch.jagged)
    starts, lengths = to_numpy(value.offsets()[:-1])[rows], jagged_lengths(value)[rows]
    values, dim = value.values(), value._ragged_idx - 1
    places = torch.from_numpy(ranges_of(starts, lengths)).to(values.device)
    offsets = torch.from_numpy(offsets_of(lengths)).to(values.device)
    return nested_of(values.index_select(dim, places), offsets, lengths, dim + 1)


def nested_of(values: Any, offsets: Any, lengths: Integers, jagged_dim: int = 1) -> Any:
    """Return a jagged nested tensor whose padded form is as wide as its longest row.

    Without known lengths, torch makes it as wide as all rows together.
    """
    import torch

    known: dict[str, Any] = {}
    if len(lengths) > 0:
        known = {"min_seqlen": int(lengths.min()), "max_seqlen": int(lengths.max())}
    return torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=jagged_dim, **known)


def jagged_lengths(value: Any) -> Integers:
    """Return the row lengths of a jagged nested tensor, int64 (rows,)."""
    return jagged_rows("a jagged tensor", value)[1]
