"""The first difference between two results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fastcollate.testing.reference.reading import dtype_name, readable


def first_difference(theirs: Any, ours: Any, path: str = "the result") -> str | None:
    """Return a sentence on the first difference of two values, or None.

    Parameters
    ----------
    theirs, ours
        Mappings and sequences of values, in any depth; arrays, tensors (also nested ones), Arrow
        tables; other values are compared by ``==``. Arrays are compared by dtype, shape and bits,
        and NaN is like any NaN.
    path
        Name of the value in the sentence.
    """
    if hasattr(theirs, "schema") and hasattr(theirs, "to_pydict"):
        return _table_difference(theirs, ours, path)
    if isinstance(theirs, Mapping):
        return _mapping_difference(theirs, ours, path)
    if getattr(theirs, "is_nested", False) and getattr(ours, "is_nested", False):
        theirs, ours = list(theirs.unbind()), list(ours.unbind())
    if type(theirs) is not type(ours):
        return _sentence(path, f"of {type(theirs)}", f"of {type(ours)}")
    if hasattr(theirs, "dtype") and hasattr(theirs, "shape"):
        return _array_difference(theirs, ours, path)
    if isinstance(theirs, (list, tuple)):
        if len(theirs) != len(ours):
            return _sentence(path, f"of length {len(theirs)}", f"of length {len(ours)}")
        pairs = enumerate(zip(theirs, ours, strict=True))
        found = (first_difference(one, other, f"{path}[{index}]") for index, (one, other) in pairs)
        return next(filter(None, found), None)
    # NaN differs from itself.
    is_same = theirs == ours or (theirs != theirs and ours != ours)
    return None if is_same else _sentence(path, repr(theirs), repr(ours))


def _sentence(path: str, theirs: str, ours: str) -> str:
    return f"{path}: theirs is {theirs}, ours {ours}"


def _mapping_difference(theirs: Mapping[Any, Any], ours: Any, path: str) -> str | None:
    if not isinstance(ours, Mapping):
        return _sentence(path, f"of {type(theirs)}", f"of {type(ours)}")
    if theirs.keys() != ours.keys():
        return f"{path}: theirs has the keys {list(theirs)}, ours {list(ours)}"
    found = (first_difference(theirs[key], ours[key], f"{path}[{key!r}]") for key in theirs)
    return next(filter(None, found), None)


def _table_difference(theirs: Any, ours: Any, path: str) -> str | None:
    if not hasattr(ours, "schema"):
        return _sentence(path, f"of {type(theirs)}", f"of {type(ours)}")
    if theirs.schema != ours.schema:
        return _sentence(path, f"of schema {theirs.schema}", f"of schema {ours.schema}")
    return first_difference(theirs.to_pydict(), ours.to_pydict(), path)


def _array_difference(theirs: Any, ours: Any, path: str) -> str | None:
    for is_like in (dtype_name, lambda array: tuple(array.shape), _device):
        if is_like(theirs) != is_like(ours):
            return _sentence(path, _description(theirs), _description(ours))
    left, right = (np.ascontiguousarray(readable(array)) for array in (theirs, ours))
    if left.tobytes() == right.tobytes():
        return None
    flat = [array.reshape(array.size) for array in (left, right)]
    differs = flat[0].view(f"V{left.itemsize}") != flat[1].view(f"V{left.itemsize}")
    if left.dtype.kind == "f":
        differs &= ~(np.isnan(flat[0]) & np.isnan(flat[1]))
    if not differs.any():
        return None
    at = np.unravel_index(int(differs.argmax()), left.shape)
    position = ", ".join(str(index) for index in at)
    sentence = _sentence(f"{path}[{position}]", repr(left[at].item()), repr(right[at].item()))
    return f"{sentence} ({int(differs.sum())} of {differs.size} differ)"


def _device(array: Any) -> str:
    return str(getattr(array, "device", "cpu"))


def _description(array: Any) -> str:
    return f"{dtype_name(array)} {tuple(array.shape)} on {_device(array)}"
