"""Checks of plain arguments."""

from __future__ import annotations

import operator
import reprlib
from typing import Any


def checked_integer(name: str, value: Any, advice: str) -> int:
    """Return an argument as an int, or say what to pass."""
    try:
        return operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} is {reprlib.repr(value)}; pass {advice}") from error


def checked_int64(name: str, value: Any, advice: str) -> int:
    """Return an argument as an int that fits int64, or say what to pass."""
    integer = checked_integer(name, value, advice)
    if not -(2**63) <= integer < 2**63:
        bits = integer.bit_length()
        found = str(integer) if bits < 100 else f"an integer of {bits} bits"
        raise ValueError(f"{name} is {found}, which does not fit int64")
    return integer
