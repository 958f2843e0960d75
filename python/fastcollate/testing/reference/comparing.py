"""Comparison of results, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fastcollate.ops.missing_outputs import REFUSED
from fastcollate.ops.parts import listed
from fastcollate.testing.reference.reading import dtype_name, readable


def assert_same(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Check that two batches are the same, bit for bit.

    Parameters
    ----------
    actual, expected
        Mappings of names to NumPy arrays or torch CPU tensors, in any mixture, to lists of them, or
        to ints: a `Batch`, of which all outputs are compared, or a dict from one of the functions
        of this package.

    Raises
    ------
    AssertionError
        If the keys or their order, a type, dtype, shape or value differ, or an array is not
        C-contiguous. Values are compared by their bits, so 0.0 is not -0.0; NaN is like any NaN.
    """
    actual, expected = (getattr(batch, "_data", batch) for batch in (actual, expected))
    actual, expected = (
        {key: listed(value) for key, value in one.items() if value is not REFUSED}
        for one in (actual, expected)
    )
    if list(actual) != list(expected):
        raise AssertionError(f"keys {list(actual)}, expected {list(expected)}")
    for key, value in expected.items():
        if (difference := first_difference(value, actual[key], key, any_kind=True)) is not None:
            raise AssertionError(difference)


def first_difference(
    expected: Any, found: Any, path: str = "the result", *, any_kind: bool = False
) -> str | None:
    """Return a sentence on the first difference of two values, or None.

    Parameters
    ----------
    expected, found
        Mappings and sequences of values, in any depth; arrays, tensors (also nested ones), Arrow
        tables; other values are compared by ``==``. Arrays are compared by dtype, shape and bits,
        and NaN is like any NaN.
    path
        Name of the value in the sentence.
    any_kind
        Compare arrays with tensors, too; those that were found have to be contiguous.
    """
    if getattr(expected, "is_nested", False) and getattr(found, "is_nested", False):
        expected, found = list(expected.unbind()), list(found.unbind())
    pair = expected, found
    are_tables = all(hasattr(one, "schema") and hasattr(one, "to_pydict") for one in pair)
    are_arrays = all(hasattr(one, "dtype") and hasattr(one, "shape") for one in pair)
    are_mappings = all(isinstance(one, Mapping) for one in pair)
    are_alike = are_tables or are_mappings or (any_kind and are_arrays)
    if type(expected) is not type(found) and not are_alike:
        return _sentence(path, f"a {type(expected)}", f"a {type(found)}")
    if are_tables:
        if expected.schema != found.schema:
            return _sentence(path, f"the schema {expected.schema}", str(found.schema))
        return first_difference(expected.to_pydict(), found.to_pydict(), path)
    if are_arrays:
        return _array_difference(expected, found, path, any_kind)
    keys: Iterable[Any]
    if are_mappings:
        if expected.keys() != found.keys():
            return _sentence(path, f"the keys {list(expected)}", str(list(found)))
        keys = expected
    elif isinstance(expected, (list, tuple)):
        if len(expected) != len(found):
            return _sentence(path, f"a length of {len(expected)}", str(len(found)))
        keys = range(len(expected))
    else:  # NaN differs from itself
        is_same = expected == found or (expected != expected and found != found)
        return None if is_same else _sentence(path, repr(expected), repr(found))
    differences = (
        first_difference(expected[key], found[key], f"{path}[{key!r}]", any_kind=any_kind)
        for key in keys
    )
    return next(filter(None, differences), None)


def _sentence(path: str, expected: str, found: str) -> str:
    return f"{path}: expected {expected}, found {found}"


def _array_difference(expected: Any, found: Any, path: str, any_kind: bool) -> str | None:
    for is_like in (dtype_name, lambda array: tuple(array.shape), _device):
        if is_like(expected) != is_like(found):
            return _sentence(path, _description(expected), _description(found))
    arrays = [np.asarray(readable(array)) for array in (expected, found)]
    if any_kind and not arrays[1].flags.c_contiguous:
        return _sentence(path, "a C-contiguous array", "another")
    left, right = map(np.ascontiguousarray, arrays)
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
