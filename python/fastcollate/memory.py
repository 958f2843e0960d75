"""Memory of batches: where they take it, and how they get to a device.

- :class:`BufferPool`: recycles the memory of batches, pinned memory too.
- :func:`get_default_pool`: the pool that batches use unless another is passed.
- :func:`set_default_pool`: sets that pool; None recycles nothing.
- :class:`Prefetcher`: the iterator that :func:`fastcollate.prefetch` returns, for annotations.
- :func:`pad_on_device`: pads a jagged batch where it trains.
"""

from fastcollate.handover.device_padding import pad_on_device
from fastcollate.handover.pools import BufferPool, get_default_pool, set_default_pool
from fastcollate.handover.prefetching import Prefetcher

__all__ = ["BufferPool", "Prefetcher", "get_default_pool", "pad_on_device", "set_default_pool"]
