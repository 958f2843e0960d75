"""Blocks: rows stored in many processes, and shards built from the parts that they need."""

import pickle
import re
from importlib.util import find_spec
from itertools import product

import numpy as np
import pytest
from advantage_loops import loss_normalizers_loops
from conftest import NEEDS_TORCH, share
from hypothesis import given
from hypothesis import strategies as st
from raising import raises
from strategies import extras, rollouts, trajectories
from worker_blocks import built, carried, cut, field, split, through_blocks

import fastcollate as fc
from fastcollate.blocks import spans
from fastcollate.blocks.joining import join
from fastcollate.blocks.slicing import rows_of, shards_of
from fastcollate.blocks.storing import ArrayKind, store
from fastcollate.testing.reference import assert_same

LAYOUTS = ["left", "two_segment", "right", "jagged", "packed"]
NAMES = ("uids", "trajectory_ids", "is_last_step", "is_padding")

pytestmark = pytest.mark.filterwarnings("ignore:.*policy='realign' masked")


@st.composite
def cases(draw, array_type):
    """Draw columns of trajectories, how they are merged, blocks of whole trajectories, options."""
    data = draw(trajectories(max_trajectories=5, max_turns=4, max_long_len=12))
    count = len(data.trajectory_ids)
    more = draw(extras(data.turns, array_type))
    options = {"pad_token_id": 7, "array_type": array_type}
    for name in ("position_ids", "labels"):
        if name in more:
            options[name] = more.pop(name)
    columns = {**data.turns._asdict(), **more}
    columns = {name: value for name, value in columns.items() if value is not None}
    # Those drawn for turns would be split by trajectories.
    columns.pop("trajectory_ids", None)
    if draw(st.booleans()):
        columns["trajectory_ids"] = data.trajectory_ids
    if draw(st.booleans()) or "trajectory_ids" not in columns:
        columns["is_last_step"] = data.is_last_step
    ends = np.flatnonzero(data.is_last_step)[:-1] + 1
    chosen = draw(st.lists(st.sampled_from(ends), unique=True)) if len(ends) else []
    if "uids" in columns:  # one of each trajectory: those of a prompt follow each other
        trajectory = np.cumsum([0, *data.is_last_step[:-1]])
        columns["uids"] = [f"prompt {index // 2}" for index in trajectory.tolist()]
    if all(map(len, columns["responses"])) and draw(st.booleans()):
        numbers = draw(st.lists(st.floats(-9, 9), min_size=count, max_size=count))
        columns["rewards"] = np.array(numbers) if draw(st.booleans()) else numbers
    if draw(st.booleans()):  # ids of more than 32 bits, in one of the blocks
        turn = draw(st.integers(0, count - 1))
        columns["responses"] = list(columns["responses"])
        columns["responses"][turn] = [2**40] * len(columns["responses"][turn])
    merge = draw(st.sampled_from([None, "exact", "branch", "realign"]))
    rewards = columns.get("rewards")
    if merge and rewards is not None and np.ndim(rewards[0]) == 0:
        # Other numbers are an error.
        columns["rewards"] = np.where(data.is_last_step, rewards, 0.0)
    return columns, merge, [0, *sorted(map(int, chosen)), count], options


def plans_for(draw, layout, options):
    """Draw a layout among options of a batch, and those of the plan that it needs."""
    multiple = draw(st.integers(1, 4))
    if layout == "packed":
        is_shifted = options.get("labels") == "shifted"
        layout = fc.Packed(
            draw(st.sampled_from([256, 1024])),
            multiple_of=multiple,
            shift="none" if is_shifted else draw(st.sampled_from(["none", "next_token"])),
            padding_as=draw(st.sampled_from(["own_segment", "last_segment", "no_segment"])),
        )
        return {"layout": layout}
    kind = {"left": fc.Left, "right": fc.Right, "two_segment": fc.TwoSegment}.get(layout)
    options["layout"] = kind(multiple_of=multiple) if kind and draw(st.booleans()) else layout
    return {
        "pad_rows": draw(st.sampled_from(["copy_first", "synthetic"])),
        "shard_by": draw(st.sampled_from(["contiguous", "strided", "tokens"])),
    }


def outcome(call):
    """Return a result, or what error there is, without the numbers of rows."""
    try:
        return call(), None
    except ValueError as error:
        return None, re.sub(r"\d+", "", str(error))


@pytest.mark.parametrize("layout", LAYOUTS)
@share(2)
@given(data=st.data())
def test_a_shard_is_that_of_all_columns(layout, data):
    types = ["numpy"] + ["torch"] * (find_spec("torch") is not None)
    columns, merge, offsets, options = data.draw(cases(data.draw(st.sampled_from(types))))
    how = plans_for(data.draw, layout, options)
    dp_size = data.draw(st.integers(1, 3))
    rank = data.draw(st.integers(0, dp_size - 1))
    part_bytes = data.draw(st.sampled_from([1, 64, 1 << 20]))
    shards = []

    def shard_of(step):
        lens = step.plan.prompt_lens, step.plan.response_lens
        shards.append(fc.plan_step(lens, dp_size=dp_size, **how).shard(0, rank))
        return shards[0]

    blocks = split(columns, offsets)
    found, failed = outcome(lambda: through_blocks(blocks, shard_of, options, merge, part_bytes))
    if failed is not None and " of one shape" in failed:
        # A block whose rows are all None does not know the shape of values.
        assert any(row is None for field in columns["fields"].values() for row in field.rows)
        return
    expected, fails = outcome(
        lambda: fc.build_batch(**columns, merge=merge, shard=shards[0], **options)
    )
    if fails is not None:
        assert "has no prompt, so with " in fails
        # Loss masks of blocks are those of batches: 0 on a token that nothing predicts.
        assert failed == fails or "loss_mask" in columns
        return
    assert failed is None
    batch, _ = found
    assert_same(batch, expected)
    assert batch.plan == expected.plan
    assert batch.merge_plan == expected.merge_plan
    for name in NAMES:
        assert getattr(batch, name) == getattr(expected, name), name


@share(2)
@given(data=st.data())
def test_loss_normalizers_are_those_of_all_columns(data):
    columns, merge, offsets, _ = data.draw(cases("numpy"))
    weights = data.draw(st.sampled_from([None, [0.0, 1.0], [0.0, 1e-9, 0.1, 1 / 3, 3e8]]))
    columns.pop("loss_mask", None)
    if weights is not None:
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        columns["loss_mask"] = [rng.choice(weights, len(row)) for row in columns["responses"]]
    blocks = [store(**one, merge=merge)[0] for one in split(columns, offsets)]
    step = carried(join(blocks, [""] * len(blocks)))
    how = {"dp_size": data.draw(st.integers(1, 3))}
    layout = data.draw(st.sampled_from(LAYOUTS))
    options = {"layout": layout, "pad_token_id": 0, "array_type": "numpy"}
    if layout == "packed" or data.draw(st.booleans()):
        how["layout"] = fc.Packed(1024)
        options["layout"] = fc.Packed(1024) if layout == "packed" else layout
    else:
        size = min(data.draw(st.integers(1, 3)), step.plan.num_rows)
        how |= {"rows_per_mini_batch": size, "allow_partial": True}
        how["shard_by"] = data.draw(st.sampled_from(["contiguous", "strided", "tokens"]))
    plan = fc.plan_step((step.plan.prompt_lens, step.plan.response_lens), **how)
    whole = fc.build_batch(**columns, merge=merge, **options)
    found, expected = step.loss_normalizers(plan), whole.loss_normalizers(plan)
    assert_same(found._asdict(), expected._asdict())
    readable = whole.to_layout("left")
    tokens, rows = loss_normalizers_loops(readable, plan, in_slots=False)
    assert np.allclose(found.tokens, tokens, rtol=1e-12, atol=0)
    assert found.rows.tolist() == rows


SMALL = {
    "prompts": [[1], [1, 2, 3], [6]],
    "responses": [[2], [4], [5, 5]],
    "rewards": [0.0, 1.0, 2.0],
    "fields": {"extra": fc.Field([[1], [1], [1, 1]])},
    "uids": ["p", "p", "q"],
    "trajectory_ids": ["a", "a", "b"],
}


def step_of(*blocks, merge=None):
    """Join blocks, each given by its differences from the small one."""
    tables = []
    for index, changes in enumerate(blocks):
        names = {
            name: [f"{one}{index}" for one in SMALL[name]] for name in ("uids", "trajectory_ids")
        }
        columns = {**SMALL, **names, **changes}
        columns = {name: value for name, value in columns.items() if value is not None}
        tables.append(store(**{"merge": merge, **columns})[0])
    return join(tables, [f"worker {index}" for index in range(len(tables))])


ONES = [[1], [1], [1, 1]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"uids": None}, "block 0 .worker 0. has uids, but block 1 .worker 1. does not"),
        ({"rewards": None}, "has rewards, but block 1"),
        ({"logprobs": ONES}, "block 1 .worker 1. has logprobs, but block 0 .worker 0. does not"),
        ({"fields": None}, r"block 0 .worker 0. has fields\['extra'\], but block 1"),
        (
            {"merge": "exact"},
            "block 1 .worker 1. has merged turns, but block 0 .worker 0. does not; pass the same",
        ),
        ({"rewards": ONES}, "rewards holds values per response in block 1 .worker 1., but one"),
        (field(ONES, fill=2), r"extra is Field\(.*fill=2.*\) in block 1 .*, but Field\(.*fill=0"),
        (field(ONES, dtype="int32"), r"extra is Field\(.*dtype='int32'.*\) in block 1"),
        (
            field([np.ones((n, 2)) for n in (1, 1, 2)]),
            r"extra has items of shape \(2,\) in block 1 .worker 1., but of \(\) in block 0",
        ),
        ({"fields": {"extra": fc.PerRow([1, 2, 3])}}, "extra holds one number per row in block 1"),
        ({"fields": {"extra": fc.PerRow(ONES)}}, "extra holds one array per row in block 1"),
        ({"trajectory_ids": ["a1", "a1", "b0"]}, "trajectory 'b0' is in block 0 .* and in block 1"),
        (
            {"uids": ["x", "p0", "p0"]},
            "uid 'p0' is in block 0 .worker 0. and in block 1",
        ),
    ],
)
def test_blocks_that_do_not_go_together(changes, message):
    step_of({}, {})
    with pytest.raises(ValueError, match=message):
        step_of({}, changes)


def test_a_trajectory_that_spans_blocks_is_named():
    ids = {"trajectory_ids": [["a"], ["a"], ["c"]]}  # without a hash
    with pytest.raises(ValueError, match=r"trajectory \['a'\] is in block 0 .* and in block 2"):
        step_of(ids, {}, ids)
    with pytest.raises(ValueError, match="trajectory 'a0' is in block 0"):
        step_of({}, {"trajectory_ids": ["a0", "a0", "x"]}, merge="exact")
    flags = {"trajectory_ids": None, "is_last_step": [False, True, False]}
    whole = {"trajectory_ids": None, "is_last_step": [False, True, True]}
    message = "last turn of block 0 .worker 0., so .* continue in"
    with pytest.raises(ValueError, match=message):
        step_of(flags, whole)
    assert step_of(whole, whole).plan.num_rows == 6


def test_a_prompt_may_go_on_in_the_next_block():
    step = step_of({}, {"uids": ["q0", "q0", "r"]}, {"uids": ["r", "r", "r"]})
    assert fc.planning.prompt_boundaries(step.names["uids"]) == [(0, 2), (2, 5), (5, 9)]
    with pytest.raises(ValueError, match=r"uid 'q0' is in block 0 .* and in block 2"):
        step_of({}, {}, {"uids": ["q0", "q0", "q0"]})


def test_what_a_block_costs():
    columns = {**SMALL, "loss_mask": [[1], [0], [1, 1]]}
    table, parts = store(**columns, part_bytes=1)
    # Ids in 4 bytes, loss masks in 1, the field in 4, and one reward a row in 4.
    assert table.num_bytes == 9 * 4 + 4 * 1 + 4 * 4 + 3 * 4
    assert table.part_offsets.tolist() == [0, 2, 3]
    assert [part["loss_mask"].dtype for part in parts] == [np.uint8] * 2
    assert [part["rewards"].tolist() for part in parts] == [[0.0, 1.0], [2.0]]
    for masks in ([[1], [0.5], [1, 1]], [[1], [-0.0], [1, 1]], [[1], [2], [1, 1]]):
        _, parts = store(**{**columns, "loss_mask": masks})
        assert parts[0]["loss_mask"].dtype == np.float32
    _, parts = store([[2**31]], [[1]])
    assert parts[0]["input_ids"].dtype == np.int64
    with pytest.raises(ValueError, match="does not fit int64"):
        store([[2**63]], [[1]])


def test_only_parts_with_rows_of_the_shard_are_read():
    columns = [{name: cut(value, n, n + 1) for name, value in SMALL.items()} for n in range(3)]

    def shard_of(step):
        assert step.part_name(1) == "block 1 (worker 1) with row 1"
        lens = step.plan.prompt_lens, step.plan.response_lens
        return fc.plan_step(lens, dp_size=3).shard(0, 1)

    columns[1]["trajectory_ids"] = ["c"]
    options = {"pad_token_id": 0, "array_type": "numpy"}
    batch, count = through_blocks(columns, shard_of, options)
    assert (batch.input_ids.tolist(), count) == ([[1, 2, 3, 4]], 1)
    only_padding = fc.planning.Shard(np.array([-1]), np.array([True]), 3)
    batch, count = through_blocks(columns, lambda step: only_padding, options)
    assert (batch.input_ids.tolist(), count) == ([[0, 0, 0, 0]], 0)


def test_other_rows_than_planned():
    step = join([store(**SMALL)[0]], ["worker"])
    shard = fc.plan_step((step.plan.prompt_lens, step.plan.response_lens)).shard(0, 0)
    for change, message in (
        (
            {"responses": [[2], [4], [5]]},
            r"input_ids\[2\] has 2 tokens, expected 3; put its rows again, and plan",
        ),
        (
            {name: value[:2] for name, value in SMALL.items() if name != "fields"},
            "input_ids has 2 rows, expected 3; put",
        ),
    ):
        columns = {**SMALL, "fields": None, **change}
        _, others = store(**columns)
        with pytest.raises(ValueError, match=message):
            built(step, shard, {0: others[0]}, pad_token_id=0)


def test_rewards_that_are_missing_in_a_block():
    """They are one number per row there, as in `build_batch`."""
    options = {"pad_token_id": 0, "array_type": "numpy"}
    shard = fc.plan_step([3, 3]).shard(0, 0)

    def columns(*rewards):
        rows = {"prompts": [[1]] * 2, "responses": [[2, 3]] * 2}
        return {**rows, "rewards": fc.Field([*rewards], default=0.25)}

    for rewards in ((None, 2.0), (2.0, None)):
        given = columns(*rewards)
        batch, _ = through_blocks(split(given, [0, 1, 2]), lambda _: shard, options)
        assert_same(batch, fc.build_batch(**given, **options, shard=shard))
    with pytest.raises(ValueError, match=r"values per response in block 1 .*, but one number per"):
        through_blocks(split(columns(None, [1.0, 2.0]), [0, 1, 2]), lambda _: shard, options)


def test_dtypes_with_more_than_was_stored():
    columns = {"prompts": [[1]], "responses": [[2, 3]]}
    values = [[1 / 3, 2.0]]
    stores = {"float64": "float64", "float32": None, "float16": "float16", "int16": "int16"}
    for name, dtype in stores.items():
        rows = [[1, 2]] if name == "int16" else values
        block = {**columns, "fields": {"x": fc.Field(rows, dtype=dtype)}}
        step = store(**block)
        joined_step = join([step[0]], ["worker"])
        shard = fc.plan_step([3]).shard(0, 0)

        def build(asked, step=joined_step, parts=step[1], shard=shard):
            options = {"pad_token_id": 0, "dtypes": {"x": asked}, "array_type": "numpy"}
            return built(step, shard, {0: parts[0]}, **options)

        for asked in ("float64", "float32", "float16", "int32", "int16"):
            is_narrower = asked in ("float16", "float32") and name in ("float32", "float64")
            if name not in ("int16", asked) and not (is_narrower and asked < name):
                with raises(f"x is {asked}, but it is stored as {name}; put"):
                    build(asked)
                continue
            options = {"dtypes": {"x": asked}, "array_type": "numpy"}
            expected = fc.build_batch(**block, pad_token_id=0, shard=shard, **options)
            assert_same(build(asked), expected)


def test_built_in_fields_are_stored_as_float32():
    block = {"prompts": [[1]], "responses": [[2, 3]], "rewards": [[0.1, 0.2]], "logprobs": [[1, 2]]}
    table, parts = store(**block)
    step, shard = join([table], ["worker"]), fc.plan_step([3]).shard(0, 0)
    options = {"pad_token_id": 0, "array_type": "numpy"}
    for key in ("rewards", "logprobs"):
        with raises(f"dtype of {key} is float64, .* stored as float32; put"):
            built(step, shard, {0: parts[0]}, **options, dtypes={key: "float64"})
        built(step, shard, {0: parts[0]}, **options, dtypes={key: "float16"})


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_numbers_of_rows_keep_their_bits(dtype, kind):
    """Also unsigned ones beyond int64, and what float32 has not."""
    if kind == "torch":
        pytest.importorskip("torch")
    columns = [
        np.array([2**64 - 1, 1], np.uint64),
        np.array([2**63 - 1, -5]),
        np.array([1 + 2**-40, -1e300]),
        np.array([2**63, 2**63 + 2**41], np.uint64),
    ]
    for first, second in product(columns, columns):
        blocks = []
        for values in (first, second):
            if kind == "torch":
                import torch

                values = torch.from_numpy(values)
            field = fc.PerRow(values, dtype=dtype)
            blocks.append({"prompts": [[1]] * 2, "responses": [[2]] * 2, "fields": {"x": field}})
        options = {"pad_token_id": 0, "array_type": "numpy"}
        batch, _ = through_blocks(blocks, lambda _: fc.plan_step([2] * 4).shard(0, 0), options)
        with np.errstate(over="ignore"):
            single = np.concatenate([first, second]).astype("float64").astype(dtype)
        assert_same({"x": batch["x"]}, {"x": single})


def test_a_stream_of_arrow_is_read_once():
    """Also where ids are beyond 32 bits, for which they are written again."""
    pa = pytest.importorskip("pyarrow")
    ids, values = [[1, 2**40], [3]], [[0.5, 1.5], [2.5]]

    def once(rows, dtype):
        chunks = [pa.array([row], pa.list_(dtype)) for row in rows]
        batches = [pa.record_batch([chunk], ["x"]) for chunk in chunks]
        return pa.RecordBatchReader.from_batches(batches[0].schema, batches)

    def columns(ints, floats):
        return {
            "prompts": ints(ids),
            "responses": ints(ids),
            "rewards": floats(values),
            "logprobs": floats(values),
            "fields": {"x": fc.Field(floats(values)), "y": fc.PerRow(iter([1, 2]))},
        }

    streams = columns(lambda x: once(x, pa.int64()), lambda x: once(x, pa.float64()))
    batch, _ = through_blocks(
        [streams],
        lambda _: fc.plan_step([4, 2]).shard(0, 0),
        {"pad_token_id": 0, "array_type": "numpy"},
    )
    lists = columns(list, list)
    lists["fields"]["y"] = fc.PerRow([1, 2])
    shard = fc.plan_step([4, 2]).shard(0, 0)
    assert_same(batch, fc.build_batch(**lists, pad_token_id=0, shard=shard, array_type="numpy"))
    with pytest.raises(TypeError, match="responses is"):
        store([[1]], once([["a"]], pa.string()))


@NEEDS_TORCH
def test_numbers_are_rounded_once():
    """From 16 bits to others of as many they would be rounded twice."""
    table, parts = store([[1]], [[2, 3]], fields={"x": fc.Field([[1 / 3, 2.0]], dtype="float16")})
    shard = fc.plan_step([3]).shard(0, 0)
    with pytest.raises(ValueError, match=r"x is bfloat16, but it is stored as float16"):
        built(
            join([table], ["worker"]),
            shard,
            {0: parts[0]},
            pad_token_id=0,
            dtypes={"x": "bfloat16"},
        )


@pytest.mark.parametrize("empty", [0, 1])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_block_without_a_value_takes_the_shape_of_others(empty, rank):
    responses, values = [[2, 3], [2, 3]], [np.ones((2, 3)), np.ones((2, 3))]
    responses[empty], values[empty] = [], []
    options = {"pad_token_id": 0, "array_type": "numpy"}
    shard = fc.plan_step(([1, 1], list(map(len, responses))), dp_size=2).shard(0, rank)
    blocks = [
        {"prompts": [[1]], "responses": [response], "fields": {"x": fc.Field([value])}}
        for response, value in zip(responses, values, strict=True)
    ]
    batch, _ = through_blocks(blocks, lambda step: shard, options)
    values[empty] = np.ones((0, 3))
    fields = {"x": fc.Field(values)}
    assert_same(batch, fc.build_batch([[1], [1]], responses, fields=fields, shard=shard, **options))


def test_what_blocks_decide_together():
    """Compare results that depend on other blocks: dtypes, and the sources of merged values."""
    kinds = ["float32", "float32", "float64", "int64", "int64", "float32"]
    image = [np.full((n, 2), n, kind) for n, kind in enumerate(kinds)]
    routes = [np.full((2, 1, 2), most) for most in (3, 3, 3, 3, 3, 300)]
    columns = {
        "prompts": [[1], [1, 2, 3, 9], [1], [5], [5, 6], [5]],
        "responses": [[2, 3], [], [3], [6], [7], [1]],
        "rewards": [0.0, 2.0, 3.0, 0.0, 5.0, 6.0],
        "fields": {
            "number": fc.PerRow([1, 2, True, 1.5, 2, 2**53 + 1]),
            "images": fc.PerRow(image),
            "joined": fc.PerRow(image, concat=True),
            "lists": fc.PerRow([[1], [2], [3.5], [True], [1], [1]]),
            "routes": fc.RoutedExperts(routes, starts=[0] * 6),
        },
        "trajectory_ids": list("aabccd"),
    }
    types = ["numpy"] + ["torch"] * (find_spec("torch") is not None)
    for merge, array_type, rank in product([None, "realign"], types, range(3)):
        options = {"pad_token_id": 0, "array_type": array_type}
        shards = []

        def shard_of(step, rank=rank, shards=shards):
            lens = step.plan.prompt_lens, step.plan.response_lens
            shards.append(fc.plan_step(lens, dp_size=3, pad_rows="synthetic").shard(0, rank))
            return shards[0]

        # The last turn samples nothing: the reward goes to the token that was sampled last.
        columns["responses"][1] = [4] if merge is None else []
        batch, _ = through_blocks(split(columns, [0, 2, 3, 6]), shard_of, options, merge)
        expected = fc.build_batch(**columns, merge=merge, shard=shards[0], **options)
        assert_same(batch, expected)
        assert batch.merge_plan == expected.merge_plan


@NEEDS_TORCH
@pytest.mark.parametrize("concat", [False, True])
def test_tensors_per_row_that_numpy_lacks(concat):
    import torch

    images = [torch.full((count, 2), 1.5, dtype=torch.bfloat16) for count in (0, 2, 1)]
    columns = {**SMALL, "fields": {"images": fc.PerRow(images, concat=concat)}}
    shard = fc.plan_step([2, 4, 3]).shard(0, 0)
    batch, _ = through_blocks([columns], lambda step: shard, {"pad_token_id": 0})
    assert_same(batch, fc.build_batch(**columns, pad_token_id=0, shard=shard))
    table, _ = store(**columns)
    assert table.num_bytes == 9 * 4 + 3 * 4 + 3 * 2 * 2


@NEEDS_TORCH
@pytest.mark.parametrize("library", ["torch", "python"])
def test_objects_of_others_are_on_the_host(library):
    import torch

    with torch.device("meta"):
        empty = ArrayKind(library, "int64", (2,)).empty("torch")
    assert_same({"a": empty}, {"a": np.zeros((0, 2), np.int64)})


def test_blocks_merged_by_plans():
    """Plans with options, of which each block has its own: some trajectories are dropped."""
    turns = {
        "prompts": [[1], [1, 2, 3], [4], [5], [5, 6, 7], [8]],
        "responses": [[2], [], [], [6, 9], [1], [2]],
        "trajectory_ids": list("aabccd"),
    }
    how = {"policy": fc.planning.Merge("realign", max_drift_tokens=2), "drop_untrainable": True}
    options = {"pad_token_id": 0, "array_type": "numpy"}
    whole = fc.merge_turns(**turns, **how)
    blocks = [
        {**columns, "merge": fc.merge_turns(**columns, **how)}
        for columns in split(turns, [0, 3, 6])
    ]
    put = [store(**columns) for columns in blocks]
    step = join([table for table, _ in put], ["one", "two"])
    assert step.merge_plan.report.dropped == [1]
    assert step.merge_plan == whole
    shard = fc.plan_step(whole).shard(0, 0)
    batch = built(step, shard, {0: put[0][1][0], 1: put[1][1][0]}, **options)
    expected = fc.build_batch(**turns, merge=whole, shard=shard, **options)
    assert_same(batch, expected)
    assert str(batch.merge_plan.report) == str(expected.merge_plan.report)
    again = batch.gather(batch.response_mask, align="response", per="turn", missing=-1)
    assert again == expected.gather(
        expected.response_mask, align="response", per="turn", missing=-1
    )


@pytest.mark.parametrize("layout", ["left", "two_segment", "right", "jagged"])
@share(2)
@given(data=st.data())
def test_shards_of_a_batch_come_apart_again(layout, data):
    types = ["numpy"] + ["torch"] * (find_spec("torch") is not None)
    array_type = data.draw(st.sampled_from(types))
    turns = data.draw(rollouts(max_long_len=20))
    more = data.draw(extras(turns, array_type))
    options = {"layout": layout, "pad_token_id": 7, "array_type": array_type}
    batch = fc.build_batch(**turns._asdict(), **more, **options)
    ranks = data.draw(st.integers(1, 3))
    how = {"pad_rows": data.draw(st.sampled_from(["copy_first", "synthetic"])), "dp_size": ranks}
    order = data.draw(st.sampled_from(["contiguous", "strided"]))
    plan = fc.plan_step((batch.plan.prompt_lens, batch.plan.response_lens), shard_by=order, **how)
    shards = [batch.select(plan.shard(0, rank)) for rank in range(ranks)]
    found = carried(spans.pack_arrays(batch, shards))
    for index, expected in enumerate(shards):
        again = spans.unpack(found, index, copy=data.draw(st.booleans()))
        assert_same(again, expected)
        assert again.plan == expected.plan
        for name in NAMES:
            assert getattr(again, name) == getattr(expected, name)


def test_adjacent_rows_are_carried_once():
    batch = fc.build_batch(
        [[1]] * 5, [[2, 3]] * 5, pad_token_id=0, loss_mask=[[1, 1]] * 5, array_type="numpy"
    )
    plan = fc.plan_step(batch, dp_size=3)  # the last rank has a padding row
    arrays, _ = spans.pack_arrays(batch, [batch.select(plan.shard(0, rank)) for rank in range(3)])
    assert len(arrays) == 2 * len(batch)
    for index, key in enumerate(batch):
        assert np.shares_memory(arrays[index], batch[key])
        assert [len(arrays[index]), len(arrays[index + len(batch)])] == [4, 2]


def test_copied_rows_of_a_mapping_do_not_train():
    data = {"loss_mask": np.ones((3, 2)), "labels": np.ones((3, 2), int), "scores": np.ones(3)}
    ((_, last),) = shards_of([(0, 3)], 2, "copy_first", 3)
    for masks in (("loss_mask",), ("labels",), ()):
        found = rows_of(data, last, masks)
        assert found["labels"].tolist() == [[1, 1], [-100, -100]]
        assert found["loss_mask"][1].tolist() == [0 if "loss_mask" in masks else 1] * 2
    for name in ("labels", "shift_labels"):
        for of_rows in (np.ones(3, int), np.ones((3, 2)), [[1, 1]] * 3):
            with pytest.raises(
                ValueError, match=r"no key of masks=\(\), so copied rows would train"
            ):
                rows_of({name: of_rows}, last, ())


def test_tables_and_plans_have_no_values():
    """What a driver holds does not grow with routes, captured indices and lists of tokens."""

    def held(layers, most):
        rows, tokens = 8, 50
        indices = np.zeros((rows * (10 + tokens), layers, 4), np.int32)
        indices = fc.Ragged(indices, np.arange(rows + 1) * (10 + tokens))
        counts = fc.Ragged(np.full(rows * tokens, most), np.arange(rows + 1) * tokens)
        values = fc.Ragged(
            np.zeros(rows * tokens * most, np.int32), np.arange(rows + 1) * tokens * most
        )
        prompts, responses = [[1] * 10] * rows, [[2] * tokens] * rows
        table, parts = store(
            prompts,
            responses,
            fields={
                "routed_experts": fc.RoutedExperts(indices),
                "chosen": fc.Captured(indices),
                "support": fc.Field((values, counts), ragged=True),
            },
            part_bytes=1 << 12,
        )
        step = join([table], [""])
        plan = fc.plan_step((step.plan.prompt_lens, step.plan.response_lens), dp_size=4)
        sizes = [len(pickle.dumps(one)) for one in (table, step, plan.shard(0, 0))]
        return np.array(sizes), len(pickle.dumps(parts))

    small, few = held(1, 1)
    large, many = held(64, 64)
    assert many > 30 * few
    # Each row may be a part of its own: a row number for each.
    assert (large < small + 500).all()
