"""Batches of small tests."""

import fastcollate as fc


def make_batch(*tokens, **options):
    """Build a batch, by default of NumPy arrays and padded with 0."""
    return fc.build_batch(*tokens, **{"pad_token_id": 0, "array_type": "numpy", **options})
