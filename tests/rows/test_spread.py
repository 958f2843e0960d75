"""One number a row, spread over its tokens, and rows that are None, against the loops."""

import math

import numpy as np
import pytest
from conftest import NEEDS_TORCH
from making import make_batch
from ways import by_blocks, by_builder
from worker_blocks import built, through_blocks

import fastcollate as fc
from fastcollate.blocks.joining import join
from fastcollate.blocks.storing import store
from fastcollate.testing.reference import assert_same, build_batch_loops, build_merged_batch_loops

PROMPTS, RESPONSES, MASKS = [[1, 2], [3], [4]], [[4], [5, 6, 7], [8, 9]], [[1], [0, 1, 1], [1, 0]]

pytestmark = pytest.mark.filterwarnings("ignore:.*policy=.realign. masked", "ignore:.*split")


def build(layout="left", array_type="numpy", labels=None, **fields):
    """Build rows of one, three and two response tokens with loss masks."""
    masks = fields.pop("loss_mask", MASKS)
    options = {"layout": layout, "array_type": array_type, "labels": labels}
    return make_batch(PROMPTS, RESPONSES, loss_mask=masks, fields=fields, **options)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int32", "int64"])
def test_integers_keep_all_bits(dtype, array_type):
    most = 1 if dtype == "bool" else int(np.iinfo(dtype).max)
    kinds = [list, tuple, np.array, lambda x: [np.int64(v) for v in x], lambda x: np.array(x, "O")]
    for kind in kinds:
        field = fc.Field(kind([most, 0, 1]), spread="all", dtype=dtype)
        x = build("left", array_type, x=field)["x"]
        assert_same({"x": x}, {"x": np.array([[0, 0, most], [0] * 3, [0, 1, 1]], dtype)})


def test_numbers_of_numpy_and_torch():
    booleans = [np.bool_(True), False, np.True_]
    x = build(x=fc.Field(booleans, spread="last", dtype="bool"))["x"]
    assert x[:, -1].tolist() == [True, False, True]
    exact = [0.1, 1e300, 1 + 2**-40]
    x = build(x=fc.Field(exact, spread="last", dtype="float64"))["x"]
    assert x[:, -1].tolist() == exact


@NEEDS_TORCH
def test_numbers_of_tensors():
    import torch

    for numbers in (torch.tensor([0.5, 1, 2]), [torch.tensor(n) for n in (0.5, 1.0, 2.0)]):
        x = build("left", "torch", x=fc.Field(numbers, spread="last", dtype=torch.bfloat16))["x"]
        assert x.dtype is torch.bfloat16
        assert x[:, -1].tolist() == [0.5, 1, 2]


@NEEDS_TORCH
def test_padding_on_a_device():
    fields = {
        spread: fc.Field([1, None, 3], spread=spread, default=7, fill=-1, dtype="float64")
        for spread in ("all", "trained", "last")
    }
    jagged = build("jagged", "torch", **fields)
    for layout in ("left", "right", "two_segment"):
        assert_same(jagged.pad_on_device(layout), build(layout, "torch", **fields))


@pytest.mark.parametrize("given", [(), (0,), (1,), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize(
    ("trailing", "dtype"), [((), "int64"), ((2, 2), "float32"), ((0,), "bool")]
)
def test_builders_and_blocks_of_rows_that_are_none(given, trailing, dtype):
    """Nothing says of these rows, or of blocks of them, what values a token has."""
    options = {"align": "sequence", "default": 1, "fill": 0, "dtype": dtype}
    rows = [
        np.arange(n * math.prod(trailing)).reshape(n, *trailing) % 2 if index in given else None
        for index, n in enumerate((3, 4, 3))
    ]
    columns = {"prompts": PROMPTS, "responses": RESPONSES}
    columns["fields"] = {"x": fc.Field(rows, **options)}
    expected = make_batch(**columns)
    assert_same(by_builder(columns, pad_token_id=0, array_type="numpy"), expected)
    shard = fc.plan_step(expected, dp_size=1).shard(0, 0)
    batch = by_blocks(columns, shard, pad_token_id=0, array_type="numpy")
    assert_same({"x": batch["x"]}, {"x": expected["x"]})


def test_blocks_of_a_builder_with_rows_that_are_none():
    expected = build(x=fc.Field([None, np.ones((3, 2)), None], default=7))["x"]
    tables, parts = [], []
    for rows in ((0,), (1, 2)):
        builder = fc.BatchBuilder(pad_token_id=0)
        for row in rows:
            values = np.ones((3, 2)) if row == 1 else None
            builder.add(PROMPTS[row], RESPONSES[row], fields={"x": fc.Field(values, default=7)})
        table, stored_parts = builder._build_by(store)
        tables.append(table)
        parts.extend(stored_parts)
    step = join(tables, ["one", "two"])
    shard = fc.plan_step((step.plan.prompt_lens, step.plan.response_lens)).shard(0, 0)
    batch = built(step, shard, dict(enumerate(parts)), pad_token_id=0, array_type="numpy")
    assert batch["x"].tolist() == expected.tolist()


def test_rows_that_are_null():
    pa = pytest.importorskip("pyarrow")
    flat = [None, [1.5, 2.5, 3.5], None]
    twos = [None, [[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 10]]]
    short = [None, [1.5, 2.5], None]  # of fixed size: rows that are null have items, too
    columns = [
        (flat, pa.array(flat)),
        (flat, pa.array(flat, pa.large_list(pa.float32()))),
        (flat, pa.array(flat, pa.list_view(pa.float64()))),
        (flat, pa.array([[0.5], *flat])[1:]),
        (flat, pa.chunked_array([pa.array(flat[:1], pa.list_(pa.float64())), pa.array(flat[1:])])),
        (flat, pa.table({"column": pa.array(flat)})),
        (twos, pa.array(twos, pa.list_(pa.list_(pa.int64(), 2)))),
    ]
    for rows, column in columns:
        rows = [None if row is None else np.array(row) for row in rows]
        for dtype in ("float32", "float64"):
            expected = build(x=fc.Field(rows, default=7, dtype=dtype))
            assert_same(build(x=fc.Field(column, default=7, dtype=dtype)), expected)
    array = pa.array(short, pa.list_(pa.float64(), 2))
    batch = make_batch(PROMPTS, [[1, 2]] * 3, fields={"x": fc.Field(array, default=7)})  # fmt: skip
    assert batch["x"].tolist() == [[7, 7], [1.5, 2.5], [7, 7]]


def test_rows_that_are_null_without_a_default():
    pa = pytest.importorskip("pyarrow")
    nulls = pa.chunked_array([pa.array([[1.0]]), pa.array([None, [1, 2]], pa.list_(pa.float64()))])
    with pytest.raises(ValueError, match=r"^x\[1\] is None; .*default="):
        build(x=fc.Field(nulls))
    inner = pa.array([None, [1, 2, None], None], pa.list_(pa.float64()))
    with pytest.raises(ValueError, match=r"^x\[1\]\[2\] is null; fill or drop nulls first$"):
        build(x=fc.Field(inner, default=7))
    with pytest.raises(ValueError, match=r"^loss_mask\[1\] is null; fill or drop nulls first$"):
        build(loss_mask=nulls)


def test_samples_with_a_number_each():
    samples = [
        {"prompt": p, "response": r, "loss_mask": m, "adv": a}
        for p, r, m, a in zip(PROMPTS, RESPONSES, MASKS, [0.5, None, 2.0], strict=True)
    ]
    fields = {"x": fc.Field("adv", spread="trained", default=7)}
    collate = fc.Collator(pad_token_id=0, fields=fields, array_type="numpy", labels="aligned")
    expected = build(x=fc.Field([0.5, 7, 2.0], spread="trained"), labels="aligned")
    assert_same(collate(samples), expected)
    pa = pytest.importorskip("pyarrow")
    assert_same(collate(pa.Table.from_pylist(samples)), expected)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (fc.Field([1, None, 2], spread="all"), r"x\[1\] is None; .*default="),
        (fc.Field([None, 1, 2], spread="last"), r"x\[0\] is None; .*default="),
        (fc.Field([[1], None, [1, 2]]), r"x\[1\] is None; .*default="),
        (fc.Field([1, 2], spread="all"), r"x has 2 rows, but prompts has 3"),
        (fc.Field([[1], [1, 2, 3], [2, 3]], spread="last"), r"x\[0\] is .*one number per row"),
        (fc.Field(np.ones((3, 2)), spread="all"), r"x has shape \(3, 2\); .*one number per row"),
        (fc.Field(fc.ragged([[1], [1, 2, 3], [2, 3]]), spread="all"), "one number per row"),
        (fc.Field("abc", spread="all"), "x"),
        (fc.Field(5, spread="all"), "x is 5; .*one number per row"),
        (fc.Field([1, "2", 3], spread="all"), r"x\[1\] is '2'"),
        (fc.Field([1, [2], 3], spread="all"), r"x\[1\] is \[2\]"),
        (fc.Field([1, 2.5, 3], spread="all", dtype="int64"), r"x\[1\] is 2.5"),
        (fc.Field([1, 2, 300], spread="last", dtype="uint8"), r"x\[2\] is 300, .* fit uint8"),
        (fc.Field(np.array([1, 2, 300]), spread="last", dtype="uint8"), r"x\[2\] is 300, .* uint8"),
        (fc.Field(np.array([1.5] * 3), spread="last", dtype="int32"), r"x.* float64.* integers"),
        (fc.Field([2, 0, 1], spread="all", dtype="bool"), r"x\[0\] is 2, .* bool"),
        (
            fc.Field([1, 2, 3], spread="first"),
            "spread of x is 'first'; pass 'all', 'trained', 'last'",
        ),
        (fc.Field([1, 2, 3], spread=True), "spread of x is True"),
        (fc.Field([1, 2, 3], spread="all", align="sequence"), "x has spread='all'.*leave align"),
        (fc.Field([1, 2, 3], spread="all", gap_fill=1), "x has spread='all'.*leave gap_fill out"),
        (fc.Field([1, None, 3], spread="all", default="x"), "default of x is 'x'"),
        (fc.Field([1, None, 3], spread="all", default=0.5, dtype="int8"), "x|int8"),
        (fc.Field([1, None, 3], spread="all", default=256, dtype="uint8"), "x has the default 256"),
        (fc.Field([1, 2, 3]), r"x\[0\]"),
    ],
)
def test_what_cannot_be(field, message):
    with pytest.raises((TypeError, ValueError), match=message):
        build(x=field)


def test_numbers_that_no_token_takes():
    prompts, responses = [[1], [2], []], [[3], [], [4]]
    options = {"pad_token_id": 0, "array_type": "numpy"}
    message = r"x\[1\] is one number for the last .* none; pass None"
    with pytest.raises(ValueError, match=message):
        fc.build_batch(
            prompts, responses, fields={"x": fc.Field([1, 2, 3], spread="last")}, **options
        )
    builder = fc.BatchBuilder(**options)
    builder.add([1], [3], fields={"x": fc.Field(1, spread="last")})
    with pytest.raises(ValueError, match=message):
        builder.add([2], [], fields={"x": fc.Field(2, spread="last")})
    assert len(builder) == 1
    assert fc.build_batch(
        prompts, responses, fields={"x": fc.Field([1, 2, 3], spread="all")}, **options
    )["x"].tolist() == [[1], [0], [3]]


def test_rows_that_train_nothing_ignore_their_number(array_type):
    """An empty response, a first token that nothing predicts, and a masked one; whatever number."""
    prompts, responses = [[1], [2], [], [3]], [[4], [], [5], [6]]
    options = {"pad_token_id": 0, "array_type": array_type, "loss_mask": [[1], [], [1], [0]]}
    for number in (2, -0.5, math.nan, math.inf):
        field = fc.Field([1, number, number, number], spread="trained", fill=7)
        batch = fc.build_batch(prompts, responses, fields={"x": field}, **options)
        assert batch["x"].tolist() == [[1], [7], [7], [7]]
        columns = {"prompts": prompts, "responses": responses, "loss_mask": options["loss_mask"]}
        columns["fields"] = {"x": field}
        kind = {"pad_token_id": 0, "array_type": array_type}
        assert_same({"x": by_builder(columns, **kind)["x"]}, {"x": batch["x"]})
        shard = fc.plan_step(batch, dp_size=1).shard(0, 0)
        assert_same({"x": by_blocks(columns, shard, **kind)["x"]}, {"x": batch["x"]})


def test_advantages_of_equal_rewards():
    with pytest.raises(ValueError, match=r"advantages\[0\] is NaN; .* standard deviation \+ 1e-6"):
        fc.build_batch([[1]], [[2]], advantages=[math.nan], pad_token_id=0)
    rewards, masks = [0.5, math.nan], [[1], [0]]  # masked rewards are written, too
    with pytest.raises(ValueError, match=r"rewards\[1\] is NaN; fill missing rewards, or drop"):
        fc.build_batch([[1]] * 2, [[2]] * 2, rewards=rewards, loss_mask=masks, pad_token_id=0)


def test_nan_where_something_trains():
    for dtype in ("float32", "float64", "float16"):
        numbers = fc.Field([1, math.nan, 3], spread="trained", dtype=dtype)
        with pytest.raises(ValueError, match=r"x\[1\] is NaN; pass a finite number"):
            build(x=numbers)
        assert build(loss_mask=[[1], [0] * 3, [1, 0]], x=numbers)["x"].tolist() == [
            [0, 0, 1], [0, 0, 0], [0, 3, 0],
        ]  # fmt: skip
    prompts, responses = [[1], [1, 2, 3, 7]], [[2, 3], [8, 9]]
    turns = {"prompts": prompts, "responses": responses, "pad_token_id": 0, "array_type": "numpy"}
    turns |= {"merge": "exact", "trajectory_ids": [0, 0]}
    field = {"x": fc.Field([math.nan, 5], spread="trained")}
    batch = fc.build_batch(**turns, loss_mask=[[0, 0], [1, 1]], fields=field)
    assert batch["x"].tolist() == [[0, 0, 0, 5, 5]]
    for masks in (None, [[0, 1], [1, 1]], [[0, 1], [0, 0]]):
        with pytest.raises(ValueError, match=r"x\[0\] is NaN"):
            fc.build_batch(**turns, loss_mask=masks, fields=field)


def test_a_reward_of_zero_needs_no_token(array_type):
    """A filtered sample has an empty response and the reward 0; another number would be lost."""
    prompts, responses = [[1], [2], [3]], [[4, 5], [], [6]]
    options = {"pad_token_id": 0, "array_type": array_type}
    for zero in (0, 0.0, -0.0, False):
        rewards = [1.5, zero, 2.5]
        batch = fc.build_batch(prompts, responses, rewards=rewards, **options)
        assert batch.rewards.tolist() == [[0, 1.5], [0, 0], [0, 2.5]]
        assert_same(batch, build_batch_loops(prompts, responses, rewards=rewards, pad_token_id=0))
        for merge in ("exact", "realign"):
            turns = {"merge": merge, "trajectory_ids": [0, 1, 1]}
            merged = fc.build_batch(prompts, responses, rewards=rewards, **turns, **options)
            turns["merge"] = {"policy": merge}
            loops = build_merged_batch_loops(
                prompts, responses, rewards=rewards, pad_token_id=0, **turns
            )
            assert_same(merged, loops)
        columns = {"prompts": prompts, "responses": responses, "rewards": rewards}
        assert_same(by_builder(columns, **options), batch)
    shard = fc.plan_step(batch, dp_size=1).shard(0, 0)
    columns = {"prompts": prompts, "responses": responses, "rewards": [1.5, 0.0, 2.5]}
    found, _ = through_blocks([columns], lambda _: shard, options)
    assert found.rewards.tolist() == batch.rewards.tolist()
    columns = {"prompts": prompts[:2], "responses": responses[:2], "rewards": [1.5, 0.0]}
    shard = fc.plan_step(([1, 1], [2, 0]), dp_size=1).shard(0, 0)
    found, _ = through_blocks([columns], lambda _: shard, options)
    assert found.rewards.tolist() == [[0, 1.5], [0, 0]]
    lost = r"rewards\[1\] is one number for the whole row, .* pass 0, a response of"
    for number in (1, -1e-30, math.nan, math.inf):
        with pytest.raises(ValueError, match=lost):
            fc.build_batch(prompts, responses, rewards=[1.5, number, 2.5], **options)
        builder = fc.BatchBuilder(**options)
        builder.add([1], [4, 5], rewards=1.5)
        with pytest.raises(ValueError, match=lost):
            builder.add([2], [], rewards=number)
