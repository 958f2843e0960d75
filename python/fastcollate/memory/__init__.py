"""Memory of batches: buffer pools.

- :class:`BufferPool`: recycles the memory of batches, including pinned memory.
- :func:`get_default_pool`: the default pool of batches.
- :func:`set_default_pool`: sets the default pool; None disables recycling.
"""

from fastcollate.memory.pools import BufferPool, get_default_pool, set_default_pool

__all__ = ["BufferPool", "get_default_pool", "set_default_pool"]
