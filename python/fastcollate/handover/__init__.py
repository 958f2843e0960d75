"""Moving batches from host to device: pinned memory, slabs, copies and prefetching."""
