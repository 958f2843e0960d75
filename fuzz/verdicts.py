"""Allowed outcomes of a call, and checks of the actual one."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from calls import Call

_TAKEN = (
    "another call has finished or cleared the same rows meanwhile; call finish in one thread only"
)
"""The error of a builder whose rows were taken by an item that it was reading."""


class Verdict(IntEnum):
    """The required outcome of a call."""

    RIGHT = 0
    """The reference's batch."""
    REFUSED = 1
    """A `TypeError` or `ValueError`."""
    EITHER = 2
    """A batch with any values, or an error, including one raised by a hostile object."""


class HostileError(Exception):
    """An error raised by hostile objects."""


class HostileInterrupt(BaseException):
    """An interrupt raised by hostile objects, like that of Ctrl-C."""


def outcome(function: Callable[..., Any], verdict: Verdict, call: Call) -> Any:
    """Return a function's result, or None if it raises an allowed error."""
    try:
        found = function(**call.arguments)
    except Exception as error:
        judge(error, verdict, call)
        return None
    except HostileInterrupt:
        assert verdict == Verdict.EITHER
        return None
    assert verdict != Verdict.REFUSED, "this is wrong, but was taken"
    return found


def judge(error: Exception, verdict: Verdict, call: Call) -> None:
    """Raise, unless an exception is one that may be and its message names an argument."""
    if verdict == Verdict.RIGHT:
        raise AssertionError("this is right, but was refused") from error
    if verdict == Verdict.EITHER and isinstance(error, (HostileError, MemoryError)):
        return
    if verdict == Verdict.EITHER and str(error) == _TAKEN:
        return
    if call.pretends and isinstance(error, OverflowError):
        return  # what it says of itself has no place to be named
    if type(error) not in (TypeError, ValueError):
        raise error
    if verdict == Verdict.REFUSED and not _names_one(call, str(error)):
        raise AssertionError("the message names no argument") from error


def _names_one(call: Call, message: str) -> bool:
    """Return True if a message has the name of an argument: as a word, since `k` is one."""
    fields = [*(call.arguments.get("fields") or ()), *call.plain.get("fields", ())]
    names = [*call.arguments, *call.plain, *map(str, fields), "dtype", "trajectory id"]
    return any(re.search(rf"\b{re.escape(name)}\b", message) for name in names)
