"""Measurements of the delivery of batches to a GPU."""
