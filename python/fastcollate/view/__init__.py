"""Batches and plans as people read them: in a terminal, a notebook or a pipe."""
