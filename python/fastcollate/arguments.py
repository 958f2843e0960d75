"""Checks of plain arguments."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Mapping
from typing import Any


def checked_integer(name: str, value: Any, advice: str) -> int:
    """Return an argument as an int, or say what to pass."""
    try:
        return operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} is {reprlib.repr(value)}; pass {advice}") from error


def checked_int(name: str, value: Any, advice: str, *, bits: int = 64) -> int:
    """Return an argument as an int that fits so many bits, or say what to pass."""
    integer = checked_integer(name, value, advice)
    limit = 1 << (bits - 1)
    if not -limit <= integer < limit:
        length = integer.bit_length()
        found = str(integer) if length < 100 else f"an integer of {length} bits"
        raise ValueError(f"{name} is {found}, which does not fit int{bits}")
    return integer


def checked_count(name: str, value: Any, advice: str, *, least: int = 1) -> int:
    """Return an argument as a number of things, of which there are so many at least."""
    count = checked_int(name, value, advice)
    if count < least:
        raise ValueError(f"{name} is {count}; pass {advice} from {least} on")
    return count


def check_bool(name: str, value: Any) -> None:
    """Check that an argument says yes or no."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {reprlib.repr(value)}; pass True or False")


def checked_seconds(name: str, value: Any) -> float:
    """Return an argument as a number of seconds, or say what to pass."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {reprlib.repr(value)}; pass a number of seconds")
    if not value > 0:
        raise ValueError(f"{name} is {value}; pass more than 0 seconds")
    return float(value)


def id_list(name: str, values: Any) -> list[Any]:
    """Return a sequence of objects as a list of its own."""
    is_sequence = hasattr(type(values), "__len__") and hasattr(type(values), "__getitem__")
    is_sequence = is_sequence and getattr(values, "ndim", 1) != 0
    if not is_sequence or isinstance(values, (str, bytes, bytearray, Mapping)):
        raise TypeError(f"{name} is {reprlib.repr(values)}; pass a sequence of one object per row")
    return as_list(values)


def as_list(values: Any) -> list[Any]:
    """Return items as a list of Python's own objects, also those of NumPy and Arrow."""
    for method in ("to_pylist", "tolist"):
        if hasattr(values, method) and not hasattr(values, "detach"):
            return list(getattr(values, method)())
    return list(values)


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Write a number of things: ``1 row``, ``1,500 rows``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
