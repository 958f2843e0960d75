"""Columns of dense arrays, and of padded rows without their padding."""

import numpy as np
import pytest
from conftest import NEEDS_TORCH, share
from hypothesis import given
from hypothesis import strategies as st
from ragged_lists import address, make, ragged_lists

import fastcollate as fc
from fastcollate.ops import unpadding

PADDED_DTYPES = ["bool", "uint8", "float16", "int32", "float64", "longdouble"]


@pytest.fixture(autouse=True, scope="module")
def is_unpadded_by_the_core():
    """Short rows too, which are taken token by token (`test_pad.py`)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unpadding, "SHORT_ROW", 0)
        yield


def test_dense_arrays_are_viewed(array_type):
    dense = make(np.arange(12).reshape(2, 3, 2), array_type)
    for ragged in (fc.ragged(dense), fc.unpad(dense, lengths=[3, 3])):
        assert ragged.to_list() == dense.tolist()
        assert address(ragged.values) == address(dense)


def test_dense_arrays_without_rows_or_tokens(array_type):
    for shape in [(0, 3), (2, 0), (0, 0, 2)]:
        dense = make(np.zeros(shape), array_type)
        ragged = fc.unpad(dense, lengths=np.full(shape[0], shape[1]))
        assert ragged == fc.ragged(dense)
        assert ragged.lengths.tolist() == [shape[1]] * shape[0]
        assert ragged.trailing == shape[2:]


@share(2)
@given(rows=ragged_lists(min_rows=1).filter(lambda rows: any(rows)), spare=st.integers(0, 2))
@pytest.mark.parametrize("padding_side", ["right", "left"])
def test_padded_arrays(rows, spare, padding_side, array_type):
    expected = fc.ragged(rows)
    lengths = expected.lengths
    width = int(lengths.max()) + spare
    padded = np.full((len(rows), width, *expected.trailing), True, expected.dtype)
    for index, row in enumerate(expected):
        at = 0 if padding_side == "right" else width - len(row)
        padded[index, at : at + len(row)] = row
    for form in (lengths, lengths.tolist(), make(lengths, array_type)):
        ragged = fc.unpad(make(padded, array_type), lengths=form, side=padding_side)
        assert ragged == fc.Ragged(make(expected.values, array_type), expected.offsets)


@share(2)
@given(rows=ragged_lists(min_rows=1), spare=st.integers(0, 2))
@pytest.mark.parametrize("padding_side", ["right", "left"])
def test_padded_lists(rows, spare, padding_side, array_type):
    lengths = [len(row) for row in rows]
    padding = [next((item for row in rows for item in row), 0)] * spare
    padded = [padding + row if padding_side == "left" else row + padding for row in rows]
    found = fc.unpad(padded, lengths=lengths, side=padding_side)
    assert found == fc.ragged(rows)
    if all(padded) and not isinstance(padded[0][0], list):
        dtype = found.dtype
        columns = [make(row, array_type, dtype) for row in padded]
        found = fc.unpad(columns, lengths=lengths, side=padding_side)
        expected = fc.ragged([make(row, array_type, dtype) for row in rows])
        assert found == expected


@pytest.mark.parametrize("dtype", PADDED_DTYPES)
@pytest.mark.parametrize("trailing", [(), (3,), (2, 0)])
@pytest.mark.parametrize("padding_side", ["right", "left"])
def test_padded_arrays_that_are_not_contiguous(dtype, trailing, padding_side, array_type):
    if (dtype, array_type) == ("longdouble", "torch"):
        pytest.skip("torch has none")
    lengths = [2, 0, 5, 1]
    base = np.arange(8 * 5 * 3).reshape(8, 15)
    base = np.repeat(base[..., None], max(1, int(np.prod(trailing))), -1)
    base = base.reshape(8, 15, -1)[..., : int(np.prod(trailing))].reshape(8, 15, *trailing)
    base = make(base.astype(dtype), array_type)
    read_only = base[:4, :5]
    views = [base[::2, 2:7], base[:4, ::3], base.swapaxes(0, 1)[:4, :5], read_only]
    for view in views:
        found = fc.unpad(view, lengths=lengths, side=padding_side)
        rows = [
            row[:length] if padding_side == "right" else row[5 - length :]
            for row, length in zip(view, lengths, strict=True)
        ]
        assert found == fc.ragged(rows)
        assert found.dtype == view.dtype
        assert found.trailing == trailing


def test_padded_arrays_that_are_not_aligned():
    packed = np.zeros(4, dtype=[("flag", "u1"), ("values", "i8", 3)])
    packed["values"] = np.arange(12).reshape(4, 3)
    found = fc.unpad(packed["values"], lengths=[1, 0, 3, 2], side="right")
    assert found.to_list() == [[0], [], [6, 7, 8], [9, 10]]


@NEEDS_TORCH
@pytest.mark.parametrize("padding_side", ["right", "left"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float8_e4m3fn"])
def test_padded_tensors_of_floats(dtype, padding_side):
    import torch

    x = torch.arange(12.0).reshape(3, 4).to(getattr(torch, dtype))
    lengths = [2, 0, 3]
    found = fc.unpad(x, lengths=lengths, side=padding_side)
    assert found.dtype == x.dtype
    wide = [[0.0, 1.0], [], [8.0, 9.0, 10.0]]
    if padding_side == "left":
        wide = [[2.0, 3.0], [], [9.0, 10.0, 11.0]]
    assert fc.Ragged(found.values.float(), found.offsets).to_list() == wide


@NEEDS_TORCH
@pytest.mark.parametrize("padding_side", ["right", "left"])
def test_gradients_of_padded_tensors(padding_side):
    import torch

    x = torch.arange(24.0).reshape(3, 4, 2).requires_grad_()
    found = fc.unpad(x, lengths=[2, 0, 3], side=padding_side)
    (found.values * 3).sum().backward()
    inside = torch.arange(4) < torch.tensor([[2], [0], [3]])
    inside = inside.flip(1) if padding_side == "left" else inside
    assert torch.equal(x.grad, 3.0 * inside[..., None].expand(3, 4, 2))
    assert torch.equal(found.values, x[inside])
