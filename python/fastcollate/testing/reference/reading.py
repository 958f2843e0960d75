"""Conversion of every kind of input to rows for NumPy and Python loops."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Array: TypeAlias = npt.NDArray[Any]
Row: TypeAlias = "Sequence[Any] | Array | torch.Tensor"
Rows: TypeAlias = "Sequence[Row] | Array | torch.Tensor"
Field: TypeAlias = "Rows | Sequence[float]"
"""One row for every row of the batch or, for rewards and advantages, one number."""


def rows_of(column: Any) -> Any:
    """Return a sequence of rows, also from nested tensors, Arrow arrays and `Ragged`."""
    if getattr(column, "is_nested", False):
        return [readable(row) for row in column.unbind()]
    if hasattr(column, "to_pylist"):
        return column.to_pylist()
    column = readable(column)
    if hasattr(column, "offsets"):
        values, offsets = readable(column.values), readable(column.offsets).tolist()
        return [values[start:stop] for start, stop in pairwise(offsets)]
    return column


def readable(row: Any) -> Any:
    """Return a row for NumPy and Python loops: tensors and array.array as arrays."""
    if hasattr(row, "detach"):
        row = row.detach().resolve_neg()
        # NumPy has no bfloat16; float32 holds all of its values.
        return (row.float() if dtype_name(row) == "bfloat16" else row).numpy()
    return np.asarray(row) if isinstance(row, array) else row


def is_number(value: Any) -> bool:
    """Return True for a number, including 0-D arrays, and False for a row."""
    return not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0


def dtype_name(value: Any) -> str:
    """Return the dtype name of an array or tensor, the same for both."""
    return _name(value.dtype)


@cache  # NumPy takes microseconds to spell one
def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def read_given_fields(
    *, rewards: Any = None, loss_mask: Any = None, logprobs: Any = None, advantages: Any = None
) -> list[tuple[str, Any]]:
    """Pair the fields that were given with their names, in the order of the outputs."""
    fields = [("loss_mask", loss_mask), ("rewards", rewards), ("logprobs", logprobs)]
    fields.append(("advantages", advantages))
    return [(key, rows_of(field)) for key, field in fields if field is not None]
