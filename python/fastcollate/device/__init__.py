"""Batches on a device: copies, prefetching and padding."""
