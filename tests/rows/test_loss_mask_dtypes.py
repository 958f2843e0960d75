"""Loss masks of integers and booleans, against the loops."""

import numpy as np
import pytest
from conftest import NEEDS_TORCH

import fastcollate as fc
from fastcollate.testing.reference import assert_same

DTYPES = ["bool", "int32", "int64"]
PROMPTS, RESPONSES = [[1, 2], [3], []], [[4], [5, 6, 7], [8, 9]]


def build(masks, dtype, **options):
    inputs = {"prompts": PROMPTS, "responses": RESPONSES, "pad_token_id": 0, "array_type": "numpy"}
    return fc.build_batch(**{**inputs, **options}, loss_mask=masks, dtypes={"loss_mask": dtype})


@pytest.mark.parametrize(
    ("row", "dtype", "message"),
    [
        ([1, 0.5, 0.25], "int64", r"loss_mask\[1\]\[1\] is 0.5, .* int64 .* whole numbers from"),
        ([1, 0.5, 2], "bool", r"loss_mask\[1\]\[1\] is 0.5, .* bool .* 0 or 1"),
        ([0, 1, 2], "bool", r"loss_mask\[1\]\[2\] is 2, .* bool .* 0 or 1"),
        ([0, -1, 1], "bool", r"loss_mask\[1\]\[1\] is -1, but .* negative"),
        ([0, -100, 1], "int32", r"loss_mask\[1\]\[1\] is -100, but .* negative"),
        ([0, -0.5, 1], "int64", r"loss_mask\[1\]\[1\] is -0.5, but .* negative"),
        (
            [0, 1, 2**31],
            "int32",
            r"loss_mask\[1\]\[2\] is 2147483648, .* int32 .* from 0 to 2147483647,",
        ),
        (
            [0, 1, 2**53 + 1],
            "int64",
            r"loss_mask\[1\]\[2\] is 9007199254740992, .* to 9007199254740991,",
        ),
        ([0, 1, 1e300], "int64", r"loss_mask\[1\]\[2\] is 1e300, .* int64"),
        ([0, 1, 1e-50], "int64", r"loss_mask\[1\]\[2\] is 1e-50, .* int64"),
        ([0, 1, float("nan")], "int32", r"loss_mask\[1\]\[2\] is NaN, .* int32"),
        ([0, float("inf"), 1], "bool", r"loss_mask\[1\]\[1\] is inf, .* bool"),
        ([0, float("-inf"), 1], "bool", r"loss_mask\[1\]\[1\] is -inf, but .* negative"),
    ],
)
def test_weights_that_are_not_whole(row, dtype, message):
    kinds = [lambda row: row, np.array, tuple]
    for kind in kinds:
        with pytest.raises(ValueError, match=message):
            build([[1.0], kind(row), [1, 0]], dtype)
    builder = fc.BatchBuilder(pad_token_id=0, dtypes={"loss_mask": dtype})
    builder.add([1], [2], loss_mask=[1])
    with pytest.raises(ValueError, match=message):
        builder.add([3], [5, 6, 7], loss_mask=row)
    assert len(builder) == 1


def test_what_nothing_predicts_has_to_be_whole_too():
    with pytest.raises(ValueError, match=r"loss_mask\[2\]\[0\] is 0.5"):
        build([[1], [1, 1, 1], [0.5, 1]], "bool")
    assert build([[1], [1, 1, 1], [1, 1]], "bool").loss_mask.tolist()[2] == [False, False, True]


def test_limits(array_type):
    for dtype, limit in (("int32", 2**31 - 1), ("int64", 2**53 - 1)):
        for kind in (list, np.array):
            masks = [kind([limit]), kind([-0.0, 0, 1]), kind([0, float(limit)])]
            batch = build(masks, dtype, array_type=array_type)
            assert batch.loss_mask.tolist() == [[0, 0, limit], [0, 0, 1], [0, 0, limit]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_losses_are_normalized_alike(dtype):
    masks = [[1], [0, 1, 1], [1, 1]]
    batch, floats = build(masks, dtype), build(masks, "float32")
    plan = fc.plan_step(batch, dp_size=1)
    assert_same(batch.loss_normalizers(plan)._asdict(), floats.loss_normalizers(plan)._asdict())
    advantages = np.arange(9, dtype=np.float32).reshape(3, 3)
    found, expected = (one.normalize(advantages, plan) for one in (batch, floats))
    assert_same({"x": found}, {"x": expected})


@NEEDS_TORCH
def test_padding_on_a_device():
    masks = [[1], [0, 1, 1], [1, 1]]
    options = {"array_type": "torch"}
    jagged = build(masks, "bool", layout="jagged", **options)
    assert_same(jagged.pad_on_device("right"), build(masks, "bool", layout="right", **options))
    for dtype in ("int64", "float32"):
        padded = jagged.pad_on_device("left", dtypes={"loss_mask": dtype})
        assert_same(padded, build(masks, dtype, **options))
    jagged = build(masks, "float32", layout="jagged", **options)
    with pytest.raises(ValueError, match=r"loss_mask is float32 .* bool in dtypes, .*build_batch"):
        jagged.pad_on_device("left", dtypes={"loss_mask": "bool"})
    jagged = build([[1], [0, 2, 1], [1, 1]], "int64", layout="jagged", **options)
    with pytest.raises(ValueError, match=r"loss_mask is int64 .* int32"):
        jagged.pad_on_device("left", dtypes={"loss_mask": "int32"})


def test_one_number_per_row():
    with pytest.raises(TypeError, match=r"loss_mask\[0\] is 1 .*; pass one value per response"):
        fc.build_batch([[1], [2]], [[3], [4]], loss_mask=[1, 0], pad_token_id=0)
