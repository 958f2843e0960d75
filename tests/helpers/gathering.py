"""The ways back from outputs, and tensors like an output."""

import numpy as np
from hypothesis import strategies as st

import fastcollate as fc
from fastcollate.testing.reference import assert_same

WAYS = [("response", "none"), ("sequence", "none"), ("sequence", "next_token")]

DTYPES = ["float32", "float64", "float16", "int64", "int32", "bool"]


def like(array, array_type):
    if array_type == "numpy":
        return array
    import torch

    return torch.from_numpy(array)


def check(gathered, values, offsets):
    assert type(gathered) is fc.Ragged
    found = {"values": gathered.values, "offsets": gathered.offsets}
    assert_same(found, {"values": values, "offsets": offsets})


def shape_of(reference, align):
    """Shape of values aligned with responses or token ids."""
    if align == "sequence":
        return reference["input_ids"].shape
    if "response_mask" in reference:
        return reference["response_mask"].shape
    return (int(reference["response_offsets"][-1]),)


def values_of(draw, shape, trailing=()):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return (rng.standard_normal((*shape, *trailing)) * 100).astype(draw(st.sampled_from(DTYPES)))
