"""From the host to a device: pinned memory, slabs, copies, and batches ahead of their use."""
