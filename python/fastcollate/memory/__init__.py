"""Memory of batches: buffer pools.

- :class:`BufferPool`: recycles the memory of batches, including pinned memory.
- :func:`set_default_pool`: sets the default pool; None disables recycling.
"""

from fastcollate.common.names import list_names_of
from fastcollate.memory.pools import BufferPool, set_default_pool

__all__ = ["BufferPool", "set_default_pool"]

list_names_of(__name__)
