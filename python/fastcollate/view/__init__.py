"""Readable views of batches and plans, for terminals, notebooks and pipes."""
