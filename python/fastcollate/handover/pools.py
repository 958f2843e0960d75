"""Memory that later batches use again."""

from __future__ import annotations

import os
from typing import Literal, NamedTuple, TypeAlias

from fastcollate._fastcollate import BufferPool as CorePool
from fastcollate._fastcollate import after_fork, before_fork, forked
from fastcollate.arguments import (
    check_bool,
    checked_count,
    checked_seconds,
    counted,
    suggests_names,
)
from fastcollate.handover.pinning import PinnedAllocator, PinnedSlabs, rounded

DEFAULT_MAX_BYTES = 1 << 30
"""What the default pool keeps idle at most.

Enough for some batches of a few hundred megabytes, which is where recycling pays most, and little
beside the memory of a machine that trains.
"""

PoolArgument: TypeAlias = 'BufferPool | Literal["default"] | None'


class Memory(NamedTuple):
    """Where a batch takes its memory from."""

    pool: CorePool | None
    pinned: PinnedAllocator | None
    """What gives pinned memory; the pool's is for where there is none."""


FRESH = Memory(None, None)
"""Memory that no pool keeps."""


@suggests_names
class BufferPool:
    """Recycles the memory of batches.

    Memory that is used again need not be mapped by the system again, which takes as long as writing
    it. A batch takes its memory from a pool, and it goes back by itself when the last tensor, array
    or view of it is gone, on whatever thread; until then nobody else gets it. A pool may be used by
    many threads. A forked child starts with an empty one.

    Parameters
    ----------
    max_bytes
        The most bytes that are kept while no batch uses them. Beyond, the longest unused are freed.
        Of pinned memory, the most bytes of batches that are alive, or None for any number.
    pin_memory
        Whether batches are pinned, as by ``build_batch(pin_memory=True)``. Then their memory comes
        from torch's caching allocator for pinned memory and goes back there, where it stays pinned:
        that one knows which copies to a device are still in flight, and hands no memory out before
        they are done. Where nothing can be pinned, one warning, and pageable memory.
    depth
        How many pinned batches may be alive, each with all that was made of it. One more waits.
        Of pageable ones, where nothing can be pinned, there may be any number.
    timeout
        Seconds after which such waiting is an error that says how many batches are alive.

    Notes
    -----
    A batch gets up to an eighth more memory than it fills, so that the next may be a bit larger;
    torch rounds pinned memory up to the next power of two.
    """

    __slots__ = ("__weakref__", "_core", "_memory", "_slabs")

    _core: CorePool
    _slabs: PinnedSlabs | None

    def __init__(
        self,
        max_bytes: int | None = None,
        *,
        pin_memory: bool = False,
        depth: int = 2,
        timeout: float = 60.0,
    ) -> None:
        check_bool("pin_memory", pin_memory)
        if max_bytes is None and not pin_memory:
            raise TypeError("max_bytes is None; pass a number of bytes from 0 on")
        self._core = CorePool(DEFAULT_MAX_BYTES if max_bytes is None else max_bytes)
        self._memory = Memory(self._core, None)
        self._slabs = None
        if pin_memory:
            depth = checked_count("depth", depth, "a number of batches")
            self._slabs = PinnedSlabs(max_bytes, depth, checked_seconds("timeout", timeout))

    @property
    def max_bytes(self) -> int | None:
        """The most bytes that are kept idle, or of pinned batches alive; None for any number."""
        return self._core.max_bytes if self._slabs is None else self._slabs.max_bytes

    @property
    def idle_bytes(self) -> int:
        """Bytes that wait for a batch; pinned ones are torch's, and do not count here."""
        return self._core.idle_bytes

    @property
    def live_bytes(self) -> int:
        """Bytes of batches that are alive, or of which any tensor or view is, as rounded up."""
        slabs = [] if self._slabs is None else self._slabs.sizes()
        return self._core.live_bytes + sum(map(rounded, slabs))

    def clear(self) -> None:
        """Free the idle bytes. Batches that are alive keep theirs."""
        self._core.clear()

    def __repr__(self) -> str:
        if self._slabs is None:
            return (
                f"BufferPool(max_bytes={self.max_bytes}): {self.idle_bytes} bytes idle, "
                f"{self.live_bytes} live"
            )
        sizes = self._slabs.sizes()
        bound = "" if self.max_bytes is None else f"max_bytes={self.max_bytes}, "
        pageable = self._core.live_bytes  # where nothing could be pinned
        return (
            f"BufferPool({bound}pin_memory=True, depth={self._slabs.depth}): "
            f"{counted(len(sizes), 'pinned batch', 'pinned batches')} alive, "
            f"of {sum(sizes)} bytes, rounded up to {sum(map(rounded, sizes))}"
            + (f"; {pageable} bytes of batches that could not be pinned" if pageable else "")
        )


_default: BufferPool | None = BufferPool(DEFAULT_MAX_BYTES)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=before_fork, after_in_parent=after_fork, after_in_child=forked)


def get_default_pool() -> BufferPool | None:
    """Return the pool that batches take their memory from unless another is passed.

    None if there is none.
    """
    return _default


@suggests_names
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


def checked_memory(
    pool: PoolArgument, pin_memory: bool = False, array_type: str = "torch"
) -> Memory:
    """Return the memory that the arguments ``pool`` and ``pin_memory`` stand for."""
    default = _default  # another thread may set it
    own = default if type(pool) is str and pool == "default" else _checked_pool(pool)
    slabs = None if own is None else own._slabs
    if pin_memory is False and (slabs is None or (own is default and array_type == "numpy")):
        return FRESH if own is None else own._memory
    check_bool("pin_memory", pin_memory)
    if slabs is None and own is not None and own is not default:
        raise ValueError(
            "pool has pageable memory, but pin_memory=True; "
            "pass fastcollate.memory.BufferPool(pin_memory=True)"
        )
    if array_type == "numpy":
        what = "pin_memory=True" if pin_memory else "a pool of pinned memory"
        raise ValueError(f"{what} gives tensors, but array_type='numpy'; pass array_type='torch'")
    return Memory(None if own is None else own._core, PinnedAllocator(slabs))


def _checked_pool(pool: PoolArgument) -> BufferPool | None:
    if pool is None or isinstance(pool, BufferPool):
        return pool
    raise TypeError(f"pool is {pool!r}; pass a BufferPool, 'default' or None")
