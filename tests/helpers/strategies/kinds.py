"""Types of rows, and memory layouts of their items."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Array: TypeAlias = npt.NDArray[Any]

LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "fresh": lambda values: values,
    "strided": lambda values: np.repeat(values, 3, axis=-1)[..., 1::3],
    "reversed": lambda values: values[..., ::-1].copy()[..., ::-1],
    "column": lambda values: np.stack([values, values], axis=-1)[..., 1],
    "Fortran": lambda values: np.asfortranarray(np.stack([values, values]))[1],
    # Bytes are immutable, so these are read-only too; after one byte, items are misaligned.
    "read-only": lambda values: _over_bytes(values, offset=0),
    "unaligned": lambda values: _over_bytes(values, offset=1),
}
"""Memory layouts of a NumPy array."""


def _over_bytes(values: Array, offset: int) -> Array:
    data = bytes(offset) + values.tobytes()
    return np.ndarray(values.shape, values.dtype, data, offset)


def _kinds(typecodes: str, numpy_dtypes: list[str], torch_dtypes: list[str]) -> list[str]:
    kinds = ["list", "tuple", *(f"array.{code}" for code in typecodes)]
    kinds += [f"numpy.{dtype}" for dtype in numpy_dtypes]
    if find_spec("torch") is not None:
        kinds += [f"torch.{dtype}" for dtype in torch_dtypes]
    return kinds


_SIGNED = ["int8", "int16", "int32", "int64"]
_UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
_FLOATS = ["float16", "float32", "float64"]

TOKEN_KINDS = _kinds(
    "bBhHiIlLqQ", [*_SIGNED, *_UNSIGNED, ">i2", ">i4", ">i8", ">u4"], ["uint8", *_SIGNED]
)
"""Types of a row of token ids; torch's if it is installed."""

FIELD_KINDS = [
    *TOKEN_KINDS,
    *_kinds(
        "fd", ["bool", *_FLOATS, "longdouble", ">f2", ">f4", ">f8"], ["bool", "bfloat16", *_FLOATS]
    )[2:],
]
"""Types of a row of a field, or of an empty row of token ids."""


def as_kind(values: Sequence[Any], kind: str, *, ids: bool, layout: str = "fresh") -> Any:
    """Convert a list of numbers to another kind of input.

    Parameters
    ----------
    values
        A row, or for NumPy and torch also a list of rows of the same length.
    kind
        One of `FIELD_KINDS`, which include `TOKEN_KINDS`.
    ids
        True for token ids, whose output is int64; False for a field, whose output is float32.
    layout
        One of `LAYOUTS`: the memory layout of a NumPy array. Except with "fresh", torch tensors
        are strided, and require gradients if they hold floats.

    Returns
    -------
    object
        The input, or `values` themselves if that kind cannot hold the output values.
    """
    library, _, dtype = kind.partition(".")
    if library in ("list", "tuple"):
        return tuple(values) if library == "tuple" else values

    source = np.array(values, np.int64 if ids else np.float64)
    if library == "array" and source.ndim > 1:
        return values
    with np.errstate(all="ignore"):
        if library == "torch":
            tensor = _as_tensor(source, dtype, layout)
            ends_as = tensor.detach().to(_torch_dtype("int64" if ids else "float32")).numpy()
        else:
            cast = source.astype(dtype)
            # A negative id would survive a round trip through unsigned, but not as an input.
            if cast.dtype.kind == "u" and (source < 0).any():
                return values
            ends_as = cast.astype(np.int64 if ids else np.float32)
        wanted = source.astype(ends_as.dtype)
    same = (ends_as.view(f"i{ends_as.itemsize}") == wanted.view(f"i{wanted.itemsize}")) | (
        np.isnan(ends_as) & np.isnan(wanted)
    )
    if not same.all():
        return values
    if library == "torch":
        return tensor
    return array(dtype, cast.tolist()) if library == "array" else LAYOUTS[layout](cast)


def _torch_dtype(name: str) -> torch.dtype:
    import torch

    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _as_tensor(source: Array, dtype: str, layout: str) -> torch.Tensor:
    import torch

    tensor = torch.from_numpy(source).to(_torch_dtype(dtype))
    if layout == "fresh":
        return tensor
    tensor = torch.stack([tensor, tensor], dim=-1)
    return tensor.requires_grad_(tensor.is_floating_point())[..., 1]
