"""Per-token fields, as they are handed in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

Rows: TypeAlias = "Sequence[Any] | NDArray[Any] | torch.Tensor"
"""A per-token field: one row of numbers per training row (see :func:`fastcollate.build_batch`)."""


class FieldInput(NamedTuple):
    """A response-aligned field as :func:`fastcollate._fastcollate.collate` takes it."""

    key: str
    """The output's name."""
    name: str
    """The argument's name, for error messages."""
    values: Rows
    per_row: bool = False
    """Whether one number per row is accepted too; it lands on the last response token."""
    refuses_nan: bool = False
    """Whether NaN is an error."""
    any_length: bool = False
    """Whether rows may have any length up to the longest response."""
    dtype: str = "float32"
    """The output's dtype."""
