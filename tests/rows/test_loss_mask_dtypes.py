"""Loss masks of integers and booleans, against the loops."""

import numpy as np
import pytest
from any_layout import layouts
from conftest import NEEDS_TORCH, share
from hypothesis import given
from hypothesis import strategies as st
from packings import lens_of, packed_options
from step_shards import shards
from strategies import (
    as_inputs,
    extras,
    name_turns,
    rollouts,
    trajectories,
)
from worker_blocks import through_blocks

import fastcollate as fc
from fastcollate.testing.reference import (
    assert_same,
    build_batch_loops,
    build_merged_batch_loops,
    build_shard_loops,
)

DTYPES = ["bool", "int32", "int64"]
LAYOUTS = ["left", "two_segment", "right", "jagged"]
PROMPTS, RESPONSES = [[1, 2], [3], []], [[4], [5, 6, 7], [8, 9]]


def build(masks, dtype, **options):
    inputs = {"prompts": PROMPTS, "responses": RESPONSES, "pad_token_id": 0, "array_type": "numpy"}
    return fc.build_batch(**{**inputs, **options}, loss_mask=masks, dtypes={"loss_mask": dtype})


BITS = [0, 1, True, False, 0.0, 1.0, -0.0]
WHOLE = [
    lambda rng, n: rng.integers(0, 2, n).tolist(),
    lambda rng, n: (rng.random(n) < 0.5).tolist(),
    lambda rng, n: rng.integers(0, 2, n).astype(float).tolist(),
    lambda rng, n: [BITS[i] for i in rng.integers(0, len(BITS), n)],
]
COUNTS = [
    lambda rng, n: rng.integers(0, 2**20, n).tolist(),
    lambda rng, n: rng.integers(0, 128, n).astype(float).tolist(),
]


@st.composite
def whole_masks(draw, responses, dtype):
    """Draw loss masks that an output of integers or booleans can hold, in any type of numbers."""
    family = draw(st.sampled_from(WHOLE if dtype == "bool" else WHOLE + COUNTS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return [family(rng, len(response)) for response in responses]


@st.composite
def masked(draw, turns):
    """Draw a dtype, and rollouts with masks that it can hold."""
    dtype = draw(st.sampled_from(DTYPES))
    return dtype, turns._replace(loss_mask=draw(whole_masks(turns.responses, dtype)))


@pytest.mark.parametrize("layout", [*LAYOUTS, "packed"])
@pytest.mark.filterwarnings("ignore:.*no token before")
@share(5)
@given(drawn=st.data())
def test_equals_the_loops(layout, drawn, array_type):
    dtype, data = drawn.draw(masked(drawn.draw(rollouts(max_long_len=40))))
    options = {"pad_token_id": 7, **drawn.draw(extras(data, array_type))}
    if layout == "packed":
        how, reference = drawn.draw(packed_options(lens_of(data), shifts=["none"]))
    else:
        how = reference = {"layout": drawn.draw(layouts(layout, data))}
    kinds = {**drawn.draw(as_inputs(data)), "dtypes": {"loss_mask": dtype}}
    expected = build_batch_loops(
        **data._asdict(), **{**options, **reference}, loss_mask_dtype=dtype
    )
    batch = fc.build_batch(**kinds, **{**options, **how}, array_type=array_type)
    assert_same(batch, expected)
    if layout != "packed":
        there = drawn.draw(st.sampled_from(LAYOUTS))
        expected = build_batch_loops(
            **data._asdict(), **options, layout=there, loss_mask_dtype=dtype
        )
        assert_same(batch.to_layout(there), expected)


@given(drawn=st.data())
def test_merged_turns_equal_the_loops(drawn):
    trajectory = drawn.draw(trajectories(max_long_len=12))
    dtype, data = drawn.draw(masked(trajectory.turns._replace(rewards=None)))
    if drawn.draw(st.booleans()):
        data = data._replace(loss_mask=None)  # then it is what was sampled
    options = {**drawn.draw(name_turns(trajectory)), "merge": "branch", "pad_token_id": 7}
    layout = drawn.draw(st.sampled_from(LAYOUTS))
    expected = build_merged_batch_loops(
        **data._asdict(), **options, layout=layout, loss_mask_dtype=dtype
    )
    dtypes = {"loss_mask": dtype}
    batch = fc.build_batch(
        **data._asdict(), **options, layout=layout, dtypes=dtypes, array_type="numpy"
    )
    assert_same(batch, expected)


@given(drawn=st.data())
def test_shards_equal_the_loops(drawn):
    dtype, data = drawn.draw(masked(drawn.draw(rollouts(max_long_len=20))))
    shard = drawn.draw(shards(data))
    layout = drawn.draw(st.sampled_from(LAYOUTS))
    options = {"pad_token_id": 7, "layout": layout}
    expected = build_shard_loops(**data._asdict(), **options, shard=shard, loss_mask_dtype=dtype)
    options |= {"dtypes": {"loss_mask": dtype}, "array_type": "numpy"}
    assert_same(fc.build_batch(**data._asdict(), **options, shard=shard), expected)
    assert_same(fc.build_batch(**data._asdict(), **options).select(shard), expected)


@given(drawn=st.data())
def test_builders_and_blocks_equal_a_batch(drawn):
    dtype, data = drawn.draw(masked(drawn.draw(rollouts(max_rows=4, max_long_len=20))))
    rows = {"prompts": data.prompts, "responses": data.responses, "loss_mask": data.loss_mask}
    options = {"pad_token_id": 7, "dtypes": {"loss_mask": dtype}, "array_type": "numpy"}
    expected = fc.build_batch(**rows, **options)
    builder = fc.BatchBuilder(**options)
    for prompt, response, mask in zip(*rows.values(), strict=True):
        builder.add(prompt, response, loss_mask=mask)
    assert_same(builder.finish(), expected)
    shard = fc.plan_step(expected, dp_size=1).shard(0, 0)
    batch, _ = through_blocks([rows], lambda _: shard, options)
    assert_same(batch, fc.build_batch(**rows, **options, shard=shard))


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
    with pytest.raises(ValueError, match=r"loss_mask is float32 .* bool, .*build_batch"):
        jagged.pad_on_device("left", dtypes={"loss_mask": "bool"})
    jagged = build([[1], [0, 2, 1], [1, 1]], "int64", layout="jagged", **options)
    with pytest.raises(ValueError, match=r"loss_mask is int64 .* int32"):
        jagged.pad_on_device("left", dtypes={"loss_mask": "int32"})
