"""Per-token fields, as they are handed in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from fastcollate._fastcollate import FieldSpec

Rows: TypeAlias = "Sequence[Any] | NDArray[Any] | torch.Tensor"
"""A per-token field: one row of numbers per training row (see :func:`fastcollate.build_batch`)."""

Field: TypeAlias = "tuple[Rows, FieldSpec]"
"""A response-aligned field's rows, and how they are read and written."""
