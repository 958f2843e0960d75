"""Checks of plain arguments."""

from __future__ import annotations

import operator
from typing import Any


def checked_integer(name: str, value: Any, advice: str) -> int:
    """Return an argument as an int that fits int64, or say what to pass."""
    try:
        integer = operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name} is {value!r}; pass {advice}") from error
    if not -(2**63) <= integer < 2**63:
        raise ValueError(f"{name} is {integer}, which does not fit int64")
    return integer
