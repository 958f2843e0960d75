"""Dtypes of outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastcollate._fastcollate import DtypeSpec
from fastcollate.fields import Field

REFERENCE = DtypeSpec()
"""What today's frameworks use."""

COMPACT = DtypeSpec("int32", "bool", "bool")
"""The least that holds the same values."""

FIXED = ("input_ids", "attention_mask", "response_mask")
"""The outputs that are no fields."""


def checked_dtypes(
    dtypes: str | Mapping[str, Any], fields: Sequence[Field], array_type: str
) -> tuple[DtypeSpec, Sequence[Field]]:
    """Take the dtypes of all outputs, by a preset's name or by key."""
    if dtypes == "reference":
        return REFERENCE, fields
    if dtypes == "compact":
        return COMPACT, fields
    if not isinstance(dtypes, Mapping):
        message = f"dtypes is {dtypes!r}; pass 'reference', 'compact' or a mapping from output keys"
        raise ValueError(message) if isinstance(dtypes, str) else TypeError(message)
    names = {key: _name(key, dtype) for key, dtype in dtypes.items()}
    known = {*FIXED, *(spec.key for _, spec in fields)}
    if unknown := [key for key in names if key not in known]:
        raise ValueError(f"dtypes has the key {unknown[0]!r}; the outputs are {sorted(known)}")
    for key, name in names.items():
        if name == "bfloat16" and array_type == "numpy":
            raise ValueError(
                f"dtypes makes {key} bfloat16, which NumPy has not; pass array_type='torch'"
            )
    fields = [(rows, spec.with_dtype(names.pop(spec.key, spec.dtype))) for rows, spec in fields]
    return DtypeSpec(**names), fields


def _name(key: str, dtype: Any) -> str:
    """Name of a dtype given as a string, as torch's or as NumPy's."""
    if isinstance(dtype, str):
        return dtype
    if (name := str(dtype)).startswith("torch."):
        return name.removeprefix("torch.")
    try:
        return str(np.dtype(dtype).name)
    except TypeError as error:
        raise TypeError(f"dtypes makes {key} {dtype!r}, which is no dtype") from error
