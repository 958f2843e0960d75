"""Memory of batches: buffer pools and transfer to a device.

- :class:`BufferPool`: recycles the memory of batches, including pinned memory.
- :func:`get_default_pool`: the default pool of batches.
- :func:`set_default_pool`: sets the default pool; None disables recycling.
- :class:`Prefetcher`: the iterator returned by :func:`fastcollate.prefetch`, for annotations.
- :func:`pad_on_device`: pads a jagged batch on its device.
"""

from fastcollate.handover.device_padding import pad_on_device
from fastcollate.handover.pools import BufferPool, get_default_pool, set_default_pool
from fastcollate.handover.prefetching import Prefetcher

__all__ = ["BufferPool", "Prefetcher", "get_default_pool", "pad_on_device", "set_default_pool"]
