"""Memory that later batches use again."""

from __future__ import annotations

import os
from typing import Literal, TypeAlias

from fastcollate._fastcollate import BufferPool, forked

DEFAULT_MAX_BYTES = 1 << 30
"""What the default pool keeps idle at most.

Enough for some batches of a few hundred megabytes, which is where recycling pays most, and little
beside the memory of a machine that trains.
"""

PoolArgument: TypeAlias = 'BufferPool | Literal["default"] | None'

_default: BufferPool | None = BufferPool(DEFAULT_MAX_BYTES)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forked)


def get_default_pool() -> BufferPool | None:
    """Return the pool that batches take their memory from unless another is passed.

    None if there is none.
    """
    return _default


def set_default_pool(pool: BufferPool | None) -> None:
    """Set the pool that batches take their memory from unless another is passed.

    Parameters
    ----------
    pool
        A pool, or None to recycle no memory. Batches that are alive stay with the pool they come
        from; a pool to which nothing refers any more frees what it keeps.
    """
    if pool is not None and not isinstance(pool, BufferPool):
        raise TypeError(f"pool is {pool!r}; pass a BufferPool or None")
    global _default
    _default = pool


def checked_pool(pool: PoolArgument) -> BufferPool | None:
    """Return the pool that an argument stands for."""
    if pool is None or isinstance(pool, BufferPool):
        return pool
    if isinstance(pool, str) and pool == "default":
        return _default
    raise TypeError(f"pool is {pool!r}; pass a BufferPool, 'default' or None")
