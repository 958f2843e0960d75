"""Fetching objects, with errors that name the lost ones and the cause."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, OwnerDiedError, RayError

TIMEOUT = 300.0
"""Default seconds to wait for objects."""

MARGIN = 1.0
"""Seconds that an object may still take when the timeout is used up."""

K = TypeVar("K")


class ShardError(RuntimeError):
    """A shard cannot be fetched: an object, or the process that put it, is lost.

    The message names the shard and the lost block and rows. Ray's error is its ``__cause__``.
    """


class ShardTimeoutError(ShardError, TimeoutError):
    """The objects of a shard did not arrive in time."""


def fetch(
    shard: str, refs: Mapping[K, ray.ObjectRef[Any]], name: Callable[[K], str], timeout: float
) -> dict[K, Any]:
    """Get objects, all at once.

    Parameters
    ----------
    shard
        The name of the shard in errors.
    refs
        The objects.
    name
        Returns the name of an object in errors.
    timeout
        Seconds to wait for all of them together.

    Raises
    ------
    ShardError
        An object is lost.
    ShardTimeoutError
        An object has not arrived; the message names the first.
    """
    end = time.monotonic() + timeout
    try:
        return dict(zip(refs, ray.get(list(refs.values()), timeout=timeout), strict=True))
    except RayError:
        pass
    # Fetched one by one, to name the one that failed.
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
    """Return the cause of a lost object, and the remedy."""
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
