"""Memory that later batches use again."""

from __future__ import annotations

import os
import weakref
from typing import Any, Literal, TypeAlias

import numpy as np

from fastcollate._fastcollate import BufferPool, Lease, forked

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


def release(outputs: dict[str, Any], lease: Lease) -> str | None:
    """Drop a batch's outputs, unless anything else sees the memory of the lease.

    Whether anything does, in Python or in C++, shows only when the batch lets go of its outputs:
    counts of references say too little about what tensors share.

    Returns
    -------
    str or None
        What sees the memory still. ``outputs`` are as they were then.
    """
    keys = list(outputs)
    traces = {key: _trace(outputs.pop(key)) for key in lease.names()}
    if lease.is_last():
        outputs.clear()
        return None
    alive = []
    for key, array in lease.arrays():
        reference, traits = traces[key]
        output = reference()
        if output is None:
            output = array if traits is None else _tensor(array, *traits)
        else:
            alive.append(key)
            if traits is not None:
                output._fix_weakref()  # C++ alone may have held it
        outputs[key] = output
    for key in keys:
        outputs[key] = outputs.pop(key)  # in their order
    if not alive:
        return "something made of a tensor or array of it"
    return f"a tensor, array or view of {', '.join(alive)}"


def _trace(output: Any) -> tuple[weakref.ref[Any], tuple[Any, ...] | None]:
    """Remember an output without holding it, and of a tensor what its memory does not say."""
    if isinstance(output, np.ndarray):
        return weakref.ref(output), None
    if output.is_leaf:
        return weakref.ref(output), (output.dtype, output.requires_grad, output.grad)
    return weakref.ref(output), (output.dtype, False, None)  # the graph is lost with it


def _tensor(array: np.ndarray, dtype: Any, requires_grad: bool, grad: Any) -> Any:
    import torch

    # The dtype differs where NumPy has none such.
    output = torch.from_numpy(array).view(dtype).requires_grad_(requires_grad)
    output.grad = grad
    return output
