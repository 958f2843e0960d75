"""Pools that reuse the memory of batches."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from fastcollate._fastcollate import BufferPool as CorePool
from fastcollate._fastcollate import after_fork, before_fork, forked
from fastcollate.common.arguments import (
    check_bool,
    check_count,
    check_seconds,
    suggests_names,
    tally,
)
from fastcollate.common.names import ListsNames
from fastcollate.common.text import show

if TYPE_CHECKING:
    from fastcollate.memory.pinning import PinnedAllocator, PinnedSlabs

DEFAULT_MAX_BYTES = 1 << 30
"""Most idle bytes of the default pool.

Enough for some batches of a few hundred megabytes, where recycling pays most, and little compared
with the memory of a training machine.
"""

PoolArgument: TypeAlias = 'BufferPool | Literal["default", "pinned"] | None'


class Memory(NamedTuple):
    """The source of a batch's memory."""

    pool: CorePool | None
    pinned: PinnedAllocator | None
    """Allocates pinned memory; the pool is used if nothing can be pinned."""


FRESH = Memory(None, None)
"""Memory without a pool."""


@suggests_names
class BufferPool(ListsNames):
    """Recycles the memory of batches.

    Reused memory need not be mapped by the system again, which takes as long as writing it. A batch
    takes its memory from a pool, and returns it when its last tensor, array or view is gone, on any
    thread; until then, the memory is not reused. Pools are thread-safe. A forked child starts with
    an empty one.

    Parameters
    ----------
    max_bytes
        The most idle bytes to keep; beyond, the least recently used memory is freed. For pinned
        memory, the most bytes of live batches; None for no limit.
    pin_memory
        If True, batches are pinned, as by ``build_batch(pool="pinned")``. Their memory comes from
        torch's caching allocator for pinned memory and returns there, where it stays pinned: that
        allocator tracks copies in flight, and reuses no memory before they are done. If nothing can
        be pinned, memory is pageable, with one warning.
    depth
        The most pinned batches, views included, that may be alive; building one more waits.
        Pageable batches, if nothing can be pinned, are not limited.
    timeout
        Seconds of waiting after which an error reports how many batches are alive.

    Notes
    -----
    A batch gets up to an eighth more memory than it fills, so that a slightly larger one can reuse
    it; torch rounds pinned memory up to the next power of two.
    """

    __slots__ = ("__weakref__", "_core", "_memory", "_slabs")

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
        self._slabs: PinnedSlabs | None = None
        if pin_memory:
            from fastcollate.memory.pinning import PinnedSlabs

            depth = check_count("depth", depth, "a number of batches")
            self._slabs = PinnedSlabs(max_bytes, depth, check_seconds("timeout", timeout))

    @property
    def max_bytes(self) -> int | None:
        """The most idle bytes, or bytes of live pinned batches; None for no limit."""
        return self._core.max_bytes if self._slabs is None else self._slabs.max_bytes

    @property
    def idle_bytes(self) -> int:
        """Idle bytes; pinned ones are kept by torch and not counted."""
        return self._core.idle_bytes

    @property
    def live_bytes(self) -> int:
        """Bytes, rounded up, of batches of which any tensor or view is alive."""
        pinned = 0 if self._slabs is None else sum(self._slabs.rounded_sizes())
        return self._core.live_bytes + pinned

    def clear(self) -> None:
        """Free the idle bytes. Live batches keep theirs."""
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
            f"{tally(len(sizes), 'pinned batch', 'pinned batches')} alive, "
            f"of {sum(sizes)} bytes, rounded up to {sum(self._slabs.rounded_sizes())}"
            + (f"; {pageable} bytes of batches that could not be pinned" if pageable else "")
        )


_default: BufferPool | None = BufferPool(DEFAULT_MAX_BYTES)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=before_fork, after_in_parent=after_fork, after_in_child=forked)


@suggests_names
def set_default_pool(pool: BufferPool | None) -> BufferPool | None:
    """Set the pool that batches use unless another is passed.

    Parameters
    ----------
    pool
        A pool, or None to recycle no memory. Live batches stay with their pool; a pool without
        references frees its idle memory.

    Returns
    -------
    BufferPool or None
        The former one, to set it again.
    """
    if pool is not None and not isinstance(pool, BufferPool):
        raise TypeError(f"pool is {show(pool)}; pass a BufferPool or None")
    global _default
    former, _default = _default, pool
    return former


def check_memory(pool: PoolArgument, array_type: str = "torch") -> Memory:
    """Return the memory source for the argument ``pool``."""
    default = _default  # another thread may set it
    is_pinned = False
    if isinstance(pool, str) and pool in ("default", "pinned"):
        own, is_pinned = default, pool == "pinned"
    elif pool is None or isinstance(pool, BufferPool):
        own = pool
    else:
        raise TypeError(f"pool is {show(pool)}; pass a BufferPool, 'default', 'pinned' or None")
    slabs = None if own is None else own._slabs
    if not is_pinned and (slabs is None or (own is default and array_type == "numpy")):
        return FRESH if own is None else own._memory
    if array_type == "numpy":
        what = "pool='pinned'" if is_pinned else "a pool of pinned memory"
        raise ValueError(f"{what} gives tensors, but array_type='numpy'; pass array_type='torch'")
    from fastcollate.memory.pinning import PinnedAllocator

    return Memory(None if own is None else own._core, PinnedAllocator(slabs))
