"""Common operations on NumPy arrays and torch tensors."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fastcollate._fastcollate import fix_lists
from fastcollate.common.text import MOST_OF_ID, show

_STORED_ONLY = ("uint16", "uint32", "uint64")
"""Dtypes that torch can store and convert, but neither compare nor fill."""

NUMBERS = "biuf"
"""Kinds of NumPy dtypes that hold numbers: booleans, integers, floats."""


def is_tensor(value: Any) -> bool:
    """Return True for a torch tensor; False for anything if torch is not imported."""
    # The module lacks Tensor while another thread is importing it.
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(value, tensor)


def is_array(value: Any) -> bool:
    """Return True for a NumPy array or a torch tensor."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def is_masked(value: Any) -> bool:
    """Return True for a masked array. Plain arrays do not import ``numpy.ma``."""
    return type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray)


def describe(value: Any) -> str:
    """Name a value in an error message: ``1.5 (float)``, abbreviated where it prints long."""
    if is_tensor(value) and value.is_nested:
        return f"a nested tensor of {dtype_name(value.dtype)}"
    if is_tensor(value) or isinstance(value, np.ndarray):
        return f"{dtype_name(value.dtype)} {type(value).__name__} of shape {tuple(value.shape)}"
    return show(value) if isinstance(value, type) else f"{show(value)} ({type(value).__name__})"


def misfit(place: str, value: object, dtype: object, advice: str = "another dtype") -> ValueError:
    """Return the error of a value that a dtype cannot hold."""
    return ValueError(f"{place} is {show(value)}, which does not fit {dtype}; pass {advice}")


def check_unmasked(name: str, value: Any) -> None:
    """Refuse a masked array."""
    if is_masked(value):
        raise TypeError(f"{name} is a masked array; pass {name}.filled(...)")


def check_array(name: str, value: Any) -> Any:
    """Return a NumPy array or torch tensor of numbers as it is, subclasses of ndarray as ndarray.

    Raises
    ------
    TypeError
        If it is not an array or tensor, or does not hold numbers.
    ValueError
        If it has no dimension.
    """
    if is_tensor(value):
        import torch

        if value.is_nested:
            raise TypeError(f"{name} is a nested tensor; pass fastcollate.ragged({name})")
        if value.layout is not torch.strided or value.is_quantized or value.is_complex():
            kind = "quantized" if value.is_quantized else f"{value.layout} {value.dtype}"
            raise TypeError(f"{name} is a {kind} tensor; pass a dense one of real numbers")
    elif not isinstance(value, np.ndarray):
        raise TypeError(f"{name} is {describe(value)}; pass a NumPy array or a torch tensor")
    else:
        check_unmasked(name, value)
        if value.dtype.kind not in NUMBERS or not value.dtype.isnative:
            raise TypeError(
                f"{name} is an array of dtype {value.dtype}; pass integers, floats or booleans "
                "in this machine's byte order"
            )
        value = np.asarray(value)
    if value.ndim == 0:
        raise ValueError(f"{name} has shape (); pass an array of at least one dimension")
    return value


def read_array(value: Any, dtype: Any = None) -> np.ndarray:
    """Return ``np.asarray`` of an object from outside."""
    return np.asarray(fix_lists(value), dtype)


def to_numpy(value: Any, name: str = "an output of the batch") -> Any:
    """Return a tensor as an array on the host, without its gradient; anything else as it is."""
    if not is_tensor(value):
        return value
    if value.is_meta:
        raise TypeError(
            f"{name} is a tensor of the device 'meta', which has no values to read; pass one of a "
            "real device"
        )
    return value.numpy(force=True)


def on_host(value: Any) -> np.ndarray:
    """Return an output as an array on the host; floats that NumPy lacks as float32."""
    if is_tensor(value) and is_only_torch(value.dtype):
        value = value.float()
    array: np.ndarray = to_numpy(value)
    return array


def is_float(value: Any) -> bool:
    """Return True for an output of floats."""
    return "float" in dtype_name(value.dtype)


def pieces_of(count: int) -> Iterator[slice]:
    """Yield slices of a long array. Signals are handled between them.

    One call of NumPy that fills fresh memory takes 0.2 s for ten million numbers.
    """
    for start in range(0, count, _PIECE):
        yield slice(start, start + _PIECE)


_PIECE = 1 << 20
"""Items of a slice: some milliseconds."""


def copied(values: Any, dtype: Any) -> np.ndarray:
    """Return a copy of numbers (n,) in another dtype, made slice by slice."""
    if len(values) <= _PIECE:
        return np.array(values, dtype)
    made = np.empty(len(values), dtype)
    for at in pieces_of(len(values)):
        made[at] = values[at]
    return made


def picked(values: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return the values at indices (n,), taken slice by slice."""
    made = np.empty(len(indices), values.dtype)
    for at in pieces_of(len(indices)):
        made[at] = values[indices[at]]
    return made


def offsets_of(lengths: Any) -> np.ndarray:
    """Return the offsets of spans of these lengths: int64 (n + 1,)."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.add.accumulate(lengths, out=offsets[1:])  # sooner than cumsum
    return offsets


def even_sizes(count: int, parts: int) -> list[int]:
    """Return the sizes of parts that differ by at most one, the larger ones first."""
    share, more = divmod(count, parts)
    return [share + (part < more) for part in range(parts)]


def was_written(x: Any) -> bool:
    """Return True for a tensor that was changed in place, as far as torch counts it."""
    return is_tensor(x) and not x.is_inference() and x._version > 0


def row_and_token(offsets: np.ndarray, index: int) -> tuple[int, int]:
    """Return the row of a token, given its index among all tokens, and its position there."""
    row = int(np.searchsorted(offsets, index, side="right")) - 1
    return row, index - int(offsets[row])


def ranges_of(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the indices covered by spans of these starts and lengths, span by span: int64."""
    offsets = offsets_of(lengths)
    return np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])


def like_of(x: Any, like: Any) -> Any:
    """Return `x` in the library and on the device of `like`."""
    if not is_tensor(like):
        return to_numpy(x)

    return (x if is_tensor(x) else to_tensor(x)).to(like.device)


def to_tensor(array: np.ndarray) -> Any:
    """Return a tensor over a NumPy array's memory.

    torch has no read-only tensors, and warns about read-only memory, such as that of Arrow and
    Ray. Writing into a tensor over it is the caller's mistake.
    """
    import torch

    if not array.flags.writeable:
        array = np.asarray(_Writable(array))
    return torch.from_numpy(array)


class _Writable:
    """An array's memory, declared writable."""

    def __init__(self, array: np.ndarray) -> None:
        interface = array.__array_interface__
        self.array = array  # keeps the memory
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def to_array(value: Any) -> np.ndarray:
    """Return an array over a CPU tensor's memory, without its gradient, or of any other value.

    Dtypes that only torch has, such as bfloat16, are returned as integers of the same bits.

    Raises
    ------
    TypeError
        If the tensor is on another device, with torch's message.
    """
    if not is_tensor(value):
        return read_array(value)
    import torch

    tensor = value.detach().resolve_neg()
    if is_only_torch(tensor.dtype):
        tensor = tensor.view(getattr(torch, f"int{8 * tensor.itemsize}"))
    array: np.ndarray = tensor.numpy()
    return array


def tensor_of_bits(bits: np.ndarray, dtype: str) -> Any:
    """Return the tensor of an array of `to_array`, over the same memory."""
    import torch

    return to_tensor(bits).view(getattr(torch, dtype))


def is_only_torch(dtype: Any) -> bool:
    """Return True if NumPy lacks a torch dtype: bfloat16, and floats of 8 bits or fewer."""
    name = dtype_name(dtype)
    return "float" in name and name not in ("float16", "float32", "float64")


@lru_cache(maxsize=256)
def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype of NumPy or torch, without torch's prefix."""
    return str(dtype).removeprefix("torch.")


def check_dtype_name(dtype: Any, key: str | None = None) -> str:
    """Return the name of a dtype given as a name, NumPy dtype or torch dtype."""
    if isinstance(dtype, str) and len(dtype) < MOST_OF_ID:
        return dtype
    if type(dtype).__module__ == "torch" and type(dtype).__name__ == "dtype":
        return dtype_name(dtype)
    try:
        if dtype is None:  # NumPy's float64
            raise TypeError("no dtype")
        return str(np.dtype(dtype).name)
    except Exception as error:  # NumPy prints the object
        name = "dtype" if key is None else f"dtype of {key}"
        raise TypeError(
            f"{name} is {show(dtype)}; pass a name such as 'float32', or a dtype of NumPy or torch"
        ) from error


def dtype_like(array: Any, dtype: Any) -> Any:
    """Return a dtype, given as a name, NumPy dtype or torch dtype, in an array's library.

    Raises
    ------
    TypeError
        If the library has no such dtype of real numbers.
    """
    name = dtype_name(check_dtype_name(dtype))
    shown = show(name)
    if is_tensor(array):
        import torch

        found = getattr(torch, name, None)
        if isinstance(found, torch.dtype) and not found.is_complex:
            return found
        raise TypeError(f"dtype is {shown}; pass a torch dtype of integers, floats or booleans")
    try:
        numpy_dtype = np.dtype(name)
    except TypeError as error:
        raise TypeError(f"dtype is {shown}, which NumPy does not have; pass another") from error
    if numpy_dtype.kind not in NUMBERS:
        raise TypeError(f"dtype is {shown}; pass a dtype of integers, floats or booleans")
    return numpy_dtype


def convert(array: Any, dtype: Any) -> Any:
    """Convert an array or tensor to a dtype of its library. Floats round, to inf out of range."""
    if is_tensor(array):
        return array.to(dtype)
    with np.errstate(over="ignore"):
        return array.astype(dtype, copy=False)


def make_signed(tensor: Any) -> Any:
    """View a tensor as signed integers if torch barely supports its unsigned dtype."""
    name = dtype_name(tensor.dtype)
    if name not in _STORED_ONLY:
        return tensor
    import torch

    return tensor.view(getattr(torch, name.removeprefix("u")))


def of_bits(tensor: Any, dtype: Any) -> Any:
    """View bits as numbers of a dtype."""
    # Not if the dtype is the same: no gradient flows through a view by dtype.
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def first_misfit(array: Any, dtype: Any) -> int | None:
    """Return the index, in C order, of the first value outside an integer or boolean dtype."""
    if (target := _limits(dtype)) is None:
        return None
    if is_tensor(array) and dtype_name(array.dtype) in _STORED_ONLY:
        array = to_numpy(array)
    low, high = target
    if (source := _limits(array.dtype)) is None:
        wide = convert(array, dtype_like(array, "float64"))
        # `high + 1` is a power of two, so a float holds it exactly.
        misfits = ~((wide >= low) & (wide < high + 1.0) & (wide == wide.round()))
    elif low <= source[0] and source[1] <= high:
        return None
    else:
        # Limits within the source's range, so that the comparison is exact.
        misfits = (array < max(low, source[0])) | (array > min(high, source[1]))
    return misfits.reshape(-1).tolist().index(True) if misfits.any() else None


def fits(number: float, array: Any) -> bool:
    """Return True if an array's dtype can hold a number. Floats may round it, but not to inf."""
    if (target := _limits(array.dtype)) is not None:
        return target[0] <= number <= target[1] and float(number).is_integer()
    try:
        wide = np.float64(number)
    except OverflowError:
        return False
    if is_tensor(array):
        import torch

        narrow = torch.tensor(wide, dtype=torch.float64).to(array.dtype).double().item()
    else:
        narrow = convert(wide, array.dtype)
    return bool(np.isfinite(narrow) or not np.isfinite(wide))


@lru_cache(maxsize=256)
def _limits(dtype: Any) -> tuple[int, int] | None:
    """Return the limits of an integer dtype; for booleans 0 and 1, for floats None."""
    name = dtype_name(dtype)
    if name == "bool":
        return 0, 1
    if "float" in name:
        return None
    info = np.iinfo(name)
    return int(info.min), int(info.max)


def flatten(values: Any, leading: int) -> Any:
    """Flatten the first `leading` dimensions of an array or tensor."""
    shape = values.shape
    return values.reshape(math.prod(shape[:leading]), *shape[leading:])


def as_floats(x: Any) -> Any:
    """Return floats as they are, other numbers as float32."""
    return x if "float" in dtype_name(x.dtype) else convert(x, dtype_like(x, "float32"))


def concatenate(arrays: Sequence[Any]) -> Any:
    """Concatenate arrays or tensors along the first dimension."""
    if not is_tensor(arrays[0]):
        return np.concatenate(arrays)
    import torch

    return torch.cat(list(arrays))


def take(x: Any, index: np.ndarray) -> Any:
    """Take items along the first dimension."""
    return x.index_select(0, like_of(index, x)) if is_tensor(x) else x[index]


def zeros(shape: tuple[int, ...], like: Any, dtype: str | None = None) -> Any:
    """Return zeros of the kind and device of another array or tensor, of its dtype or `dtype`."""
    kind = like.dtype if dtype is None else dtype_like(like, dtype)
    return like.new_zeros(shape, dtype=kind) if is_tensor(like) else np.zeros(shape, kind)


def where_or_zero(mask: Any, x: Any, like: Any) -> Any:
    """Return `x` where a mask is true, and 0 elsewhere."""
    mask, zero = like_of(mask, like), zeros((), like)
    if not is_tensor(like):
        return np.where(mask, x, zero)
    import torch

    return torch.where(mask, x, zero)
