"""Comparison of batches, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fastcollate.testing.reference.reading import Array, dtype_name, readable


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
    _require(list(actual) == list(expected), f"keys {list(actual)}, expected {list(expected)}")
    for key, value in expected.items():
        _assert_same_value(key, actual[key], value)


def _require(holds: bool, message: str) -> None:
    # Not an assert statement, which python -O removes.
    if not holds:
        raise AssertionError(message)


def _assert_same_value(name: str, actual: Any, expected: Any) -> None:
    if hasattr(expected, "dtype"):
        _assert_same_array(name, actual, expected)
        return
    _require(
        type(actual) is type(expected), f"{name} is a {type(actual)}, expected {type(expected)}"
    )
    if isinstance(expected, list):
        _require(
            len(actual) == len(expected), f"{name} has {len(actual)} items, not {len(expected)}"
        )
        for index, value in enumerate(expected):
            _assert_same_value(f"{name}[{index}]", actual[index], value)
    else:
        _require(actual == expected, f"{name} is {actual!r}, expected {expected!r}")


def _assert_same_array(name: str, actual: Any, expected: Any) -> None:
    _require(hasattr(actual, "dtype"), f"{name} is a {type(actual)}, expected an array")
    found, wanted = dtype_name(actual), dtype_name(expected)
    _require(found == wanted, f"{name} is {found}, expected {wanted}")
    found_shape, wanted_shape = tuple(actual.shape), tuple(expected.shape)
    _require(
        found_shape == wanted_shape, f"{name} has shape {found_shape}, expected {wanted_shape}"
    )

    left, right = np.asarray(readable(actual)), np.asarray(readable(expected))
    _require(left.flags.c_contiguous, f"{name} is not C-contiguous")
    if left.tobytes() == right.tobytes():
        return
    differs = _bits(left) != _bits(right)
    if left.dtype.kind == "f":
        differs &= ~(np.isnan(left) & np.isnan(right))
    if differs.any():
        index = tuple(int(i) for i in np.argwhere(differs)[0])
        raise AssertionError(
            f"{name}{list(index)} is {left[index]!r}, expected {right[index]!r} "
            f"({int(differs.sum())} of {differs.size} differ)"
        )


def _bits(values: Array) -> Array:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")
