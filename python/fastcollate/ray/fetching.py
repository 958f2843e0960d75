"""Fetching objects, and saying which of them cannot be had, and why."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, OwnerDiedError, RayError

from fastcollate.arguments import checked_seconds

TIMEOUT = 300.0
"""Seconds that objects are waited for, unless told otherwise."""

MARGIN = 1.0
"""Seconds that an object may take to be fetched, once others have taken all the time there is."""

K = TypeVar("K")


class ShardError(RuntimeError):
    """What a shard consists of cannot be had: an object is lost, or the process that put it is.

    The message names the shard, and the block and rows that are lost. Ray's own error is its
    ``__cause__``.
    """


class ShardTimeoutError(ShardError, TimeoutError):
    """What a shard consists of has not arrived in time."""


def fetched(
    shard: str, refs: Mapping[K, ray.ObjectRef[Any]], name: Callable[[K], str], timeout: float
) -> dict[K, Any]:
    """Get objects, all at once.

    Parameters
    ----------
    shard
        What errors call what the objects are for.
    refs
        The objects.
    name
        Returns what errors call an object.
    timeout
        How many seconds to wait for all of them together.

    Raises
    ------
    ShardError
        For one that is lost.
    ShardTimeoutError
        For the first that has not arrived.
    """
    end = time.monotonic() + timeout
    try:
        return dict(zip(refs, ray.get(list(refs.values()), timeout=timeout), strict=True))
    except RayError:
        pass
    # Asked one by one, they tell which of them it is.
    values = {}
    for key, ref in refs.items():
        try:
            values[key] = ray.get(ref, timeout=max(end - time.monotonic(), MARGIN))
        except GetTimeoutError as error:
            raise ShardTimeoutError(
                f"{shard} cannot be collated: {name(key)} did not arrive within {timeout:g} "
                "seconds; a node may be unreachable or its memory full (see `ray memory`), or pass "
                "a longer timeout"
            ) from error
        except RayError as error:
            raise ShardError(
                f"{shard} cannot be collated: {name(key)} {_what_happened(error)}"
            ) from error
    return values


def _what_happened(error: RayError) -> str:
    """Say what became of an object, and what to do."""
    if not isinstance(error, ObjectLostError):
        return f"cannot be read ({_reason(str(error), error)})"
    # The first paragraph names the object.
    reason = _reason(str(error).partition("\n\n")[2], error)
    again = "put its rows again and plan the step again"
    if isinstance(error, OwnerDiedError):
        again += ", and keep the process that puts them, or the actor's handle, until it is trained"
    return f"is lost ({reason}); {again}"


def _reason(text: str, error: RayError) -> str:
    """Return an error's name, and the first sentence of a text."""
    line = text.strip().partition("\n")[0]
    sentence = line.partition(". ")[0].rstrip(".")
    return f"{type(error).__name__}: {sentence}" if sentence else type(error).__name__


def checked_timeout(timeout: Any) -> float:
    """Return a number of seconds that Ray can wait."""
    seconds = checked_seconds("timeout", timeout)
    if math.isinf(seconds):
        raise ValueError("timeout is inf; pass a finite number of seconds")
    return seconds
