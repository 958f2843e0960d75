"""Memory that batches take, and give back when their last tensor is gone.

- :class:`BufferPool`: recycles the memory of batches, pinned memory too.
- :func:`get_default_pool`: the pool that batches use unless another is passed.
- :func:`set_default_pool`: sets that pool; None recycles nothing.
- :class:`Prefetcher`: the iterator that :func:`fastcollate.prefetch` returns, for annotations.
"""

from fastcollate.handover.pools import BufferPool, get_default_pool, set_default_pool
from fastcollate.handover.prefetching import Prefetcher

__all__ = ["BufferPool", "Prefetcher", "get_default_pool", "set_default_pool"]
