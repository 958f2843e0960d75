"""Shards: the rows of one rank, built from the turns of a step or selected from its batch."""

import pickle

import numpy as np
import pytest
from conftest import NEEDS_TORCH, share
from hypothesis import assume, given
from hypothesis import strategies as st
from making import make_batch
from raising import raises
from step_shards import shard_of, shards
from strategies import as_inputs, extras, rollouts

import fastcollate as fc
from fastcollate.plan.shard import Shard
from fastcollate.testing.reference import assert_same, build_shard_loops

LAYOUTS = ["left", "two_segment", "right", "jagged"]


@st.composite
def cases(draw, layout):
    turns = draw(rollouts(max_long_len=30))
    options = {"layout": layout, "pad_token_id": 7, **draw(extras(turns, "numpy"))}
    if layout != "jagged" and draw(st.booleans()):
        kind = {"left": fc.Left, "right": fc.Right, "two_segment": fc.TwoSegment}[layout]
        options["layout"] = kind(multiple_of=draw(st.integers(1, 4)))
    return turns, draw(as_inputs(turns)), options, draw(shards(turns))


@pytest.mark.parametrize("layout", LAYOUTS)
@share(2)
@given(data=st.data())
def test_equals_the_loops(layout, data):
    turns, inputs, options, shard = data.draw(cases(layout))
    expected = build_shard_loops(**turns._asdict(), **options, shard=shard)
    batch = fc.build_batch(**inputs, **options, shard=shard, array_type="numpy")
    assert_same(batch, expected)
    assert batch.is_padding == shard.is_padding.tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
@share(2)
@given(data=st.data())
def test_selected_rows_are_those_built_from_turns(layout, data):
    turns, _, options, shard = data.draw(cases(layout))
    # A batch that is widened for synthetic rows has no record of the multiple of its widths.
    is_wide = any(turns.prompts) and any(turns.responses)
    assume(is_wide or isinstance(options["layout"], str))
    arguments = {**turns._asdict(), **options, "array_type": "numpy"}
    count = len(turns.prompts)
    arguments |= {"uids": list(range(count)), "is_last_step": [True] * count}
    whole = fc.build_batch(**arguments)
    before = pickle.dumps(dict(whole))
    built = fc.build_batch(**arguments, shard=shard)
    batch = whole.select(shard)
    assert_same(batch, built)
    assert batch.plan == built.plan
    for name in ("uids", "trajectory_ids", "is_last_step", "is_padding"):
        assert getattr(batch, name) == getattr(built, name), name
    assert pickle.dumps(dict(whole)) == before


@pytest.mark.parametrize("layout", LAYOUTS)
@share(2)
@given(data=st.data())
def test_shards_of_all_ranks_are_those_selected_one_by_one(layout, data):
    turns, _, options, _ = data.draw(cases(layout))
    count = len(turns.prompts)
    options = {**turns._asdict(), **options, "uids": [row // 3 for row in range(count)]}
    whole = fc.build_batch(**options, is_last_step=[True] * count, array_type="numpy")
    plan = fc.plan_step(
        whole,
        prompts_per_mini_batch=data.draw(st.integers(1, 3)),
        dp_size=data.draw(st.integers(1, 4)),
        allow_partial=True,
        shard_by=data.draw(st.sampled_from(["contiguous", "strided", "tokens"])),
        pad_rows=data.draw(st.sampled_from(["synthetic", "copy_first"])),
    )
    found = whole.shards(plan)
    assert [len(of_ranks) for of_ranks in found] == [plan.dp_size] * plan.num_mini_batches
    for batches, of_ranks in zip(found, plan.shards(), strict=True):
        for batch, shard in zip(batches, of_ranks, strict=True):
            expected = whole.select(shard)
            assert_same(batch, expected)
            assert batch.plan == expected.plan
            for name in ("uids", "trajectory_ids", "is_last_step", "is_padding"):
                assert getattr(batch, name) == getattr(expected, name), name


@NEEDS_TORCH
def test_shards_of_one_call_have_storages_of_their_own():
    rows = [[1], [2], [3], [4]]
    whole = make_batch(rows, rows, array_type="torch")
    plan = fc.plan_step(whole, dp_size=2, shard_by="strided")
    first, second = whole.shards(plan)[0]
    assert first.input_ids.untyped_storage().nbytes() == first.input_ids.nbytes
    first.loss_mask.zero_()
    assert second.loss_mask.all()
    assert second.loss_mask._version == 0
    with raises("TypeError: plan is Shard: 2 rows"):
        whole.shards(plan.shard(0, 0))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_that_follow_each_other_are_views(layout):
    prompts, responses = [[1], [2, 3], [4]], [[5, 6], [7], [8, 9]]
    whole = make_batch(
        prompts,
        responses,
        loss_mask=[[1, 1], [1], [1, 1]],
        fields={"image": fc.PerRow([np.ones((n, 2)) for n in (1, 2, 3)], concat=True)},
        layout=layout,
    )
    batch = whole.select(shard_of([1, 2], [False, False], prompts, responses))
    for key in ("input_ids", "loss_mask", "image"):
        assert np.shares_memory(batch[key], whole[key])
    assert batch["image_offsets"].tolist() == [0, 2, 5]
    other = whole.select(shard_of([2, 1], [False, False], prompts, responses))
    assert not np.shares_memory(other.input_ids, whole.input_ids)
    assert other["image_offsets"].tolist() == [0, 3, 5]


@pytest.mark.parametrize("layout", ["left", "jagged"])
def test_the_plan_of_a_view_is_made_when_it_is_read(layout):
    batch = fc.build_batch(
        [[1], [2, 3], [4]], [[5], [6], [7, 8]], pad_token_id=0, uids=["a", "b", "c"], layout=layout
    )
    plan = fc.plan_step(batch, dp_size=3)
    copies = []
    for select in (lambda view: view, pickle.dumps, lambda view: view.plan, repr):
        view = batch.select(plan.shard(0, 1))
        assert callable(view._state.made_by)
        select(view)
        copies.append(pickle.loads(pickle.dumps(view)))
        assert view.plan is view.plan
        assert view.prompt_lens.tolist() == [2]
        assert view.uids == ["b"]
        assert view.is_padding == [False]
    assert all(copy.plan == view.plan for copy in copies)
    # That a plan is of another batch is said at once.
    other = fc.plan_step([3, 4, 3], dp_size=3).shard(0, 1)
    with raises("shard is of a plan whose longest prompt.*; pass the rows"):
        batch.select(other)


def test_padding_rows_train_nothing():
    prompts, responses = [[1], [2, 3]], [[5, 6], [7]]
    shard = shard_of([1, 0, -1], [False, True, True], prompts, responses, first_pad=4)
    batch = fc.build_batch(
        prompts,
        responses,
        pad_token_id=9,
        rewards=[2.0, 3.0],
        loss_mask=[[1, 1], [1]],
        logprobs=[[-1.0, -2.0], [-3.0]],
        fields={
            "routes": fc.RoutedExperts([np.full((3, 1, 2), 5), np.full((3, 1, 2), 6)]),
            "gap": fc.Field([[1, 1], [1]], fill=-1, gap_fill=-2),
            "size": fc.PerRow([10, 20]),
        },
        uids=["a", "b"],
        trajectory_ids=["s", "t"],
        is_last_step=[False, True],
        labels="aligned",
        shard=shard,
        array_type="numpy",
    )
    expected = {
        "input_ids": [[2, 3, 7], [1, 5, 6], [9, 9, 9]],
        "attention_mask": [[1, 1, 1], [1, 1, 1], [0, 1, 1]],
        "response_mask": [[0, 1], [0, 0], [0, 0]],
        "loss_mask": [[0, 1], [0, 0], [0, 0]],
        "rewards": [[0, 3], [0, 0], [0, 0]],
        "logprobs": [[0, -3], [0, 0], [0, 0]],
        "labels": [[-100, -100, 7], [-100] * 3, [-100] * 3],
        "router_padding_mask": [[False] * 3, [True] * 3, [True] * 3],
        "gap": [[-1, 1], [-2, -2], [-1, -2]],
        "size": [20, 10, 0],
    }
    assert {key: batch[key].tolist() for key in expected} == expected
    assert batch.routes[:, :, 0].tolist() == [[[6, 6]] * 3, [[0, 1]] * 3, [[0, 1]] * 3]
    assert (batch.uids, batch.trajectory_ids) == (["b", "pad4", "pad5"], ["t", "pad4", "pad5"])
    assert (batch.is_last_step, batch.is_padding) == ([True] * 3, [False, True, True])
    # Of the turns, padding gives none back.
    assert batch.gather(batch.rewards, align="response", per="turn", missing=-9).to_list() == [
        [-9, -9],
        [3],
    ]


def test_shards_of_other_plans():
    prompts, responses = [[1], [2, 3]], [[5, 6], [7]]
    whole = fc.build_batch(prompts, responses, pad_token_id=0, array_type="numpy")
    for shard, message in [
        (Shard(np.array([0]), np.array([False]), 3, (2, 2, 3), 0), "plan for 3 rows, but there"),
        (Shard(np.array([0]), np.array([False]), 2, (2, 2, 4), 0), "longest prompt, response"),
        (Shard(np.array([2]), np.array([False]), 2, (2, 2, 3), 0), "has row 2, but there are 2"),
        (Shard(np.array([], int), np.array([], bool), 2, (2, 2, 3), 0), "no rows"),
    ]:
        with pytest.raises(ValueError, match=message):
            whole.select(shard)
        with pytest.raises(ValueError, match=message):
            fc.build_batch(prompts, responses, pad_token_id=0, shard=shard, array_type="numpy")
    plan = fc.plan_step(([2, 1], [1, 2]), dp_size=2)  # of the same rows in another order
    built = {"pad_token_id": 0, "array_type": "numpy"}
    for use in (
        whole.select,
        lambda shard: fc.build_batch(prompts, responses, **built, shard=shard),
    ):
        with pytest.raises(ValueError, match="1 prompt tokens in row 1, which has 2; pass the"):
            use(plan.shard(0, 1))
    plan = fc.plan_step(([2, 1], [2, 1]), dp_size=2)
    batch = fc.build_batch([[1], [2, 3]], [[5], [6, 7]], pad_token_id=0, array_type="numpy")
    for use in (batch.select, lambda shard: batch.select(pickle.loads(pickle.dumps(shard)))):
        with pytest.raises(ValueError, match="4 tokens in row 0, which has 2; pass the rows"):
            use(plan.shard(0, 0))
    with pytest.raises(TypeError, match=r"shard is \[0\] \(list\); call batch.select\(rows="):
        whole.select([0])
    with pytest.raises(TypeError, match=r"shard is .*; pass plan.shard"):
        whole.select("0")
    with pytest.raises(TypeError, match=r"shard is \[0\] \(list\); pass plan.shard"):
        fc.build_batch(prompts, responses, pad_token_id=0, shard=[0], array_type="numpy")


def test_padding_rows_do_not_count_in_metrics():
    prompts, responses = [[1], [2, 3]], [[5, 6], [7]]
    shard = shard_of([1, -1], [False, True], prompts, responses)
    metrics = make_batch(prompts, responses, shard=shard).metrics
    assert (metrics["batch/rows"], metrics["batch/tokens"]) == (1, 3)
    assert metrics["batch/padding_fraction"] == 0.5
    only_padding = shard_of([0], [True], prompts, responses)
    batch = make_batch(prompts, responses, shard=only_padding)
    assert batch.metrics["batch/longest_row"] == 0
    with pytest.raises(ValueError, match="rows is a Batch with padding rows"):
        fc.plan_step(batch)


@NEEDS_TORCH
def test_a_pickled_view_carries_its_own_rows_alone():
    prompts, responses = [[1] * 100] * 200, [[2] * 100] * 200
    whole = fc.build_batch(prompts, responses, pad_token_id=0)
    one = whole.select(shard_of([7], [False], prompts, responses))
    assert one.input_ids.untyped_storage().nbytes() > 100_000
    assert len(pickle.dumps(one)) < 20_000
    assert pickle.loads(pickle.dumps(one)).input_ids.tolist() == whole.input_ids[7:8].tolist()


def test_images_have_one_dtype_on_all_ranks():
    images = [np.ones((1, 2), kind) for kind in (np.float32, np.float64, np.int64)]
    prompts, responses = [[1]] * 3, [[2]] * 3
    fields = {"image": fc.PerRow(images, concat=True)}
    arguments = {"pad_token_id": 0, "fields": fields, "array_type": "numpy"}
    whole = fc.build_batch(prompts, responses, **arguments)
    for row in range(3):
        shard = shard_of([row], [False], prompts, responses)
        assert whole.select(shard).image.dtype == np.float64
        batch = fc.build_batch(prompts, responses, **arguments, shard=shard)
        assert batch.image.dtype == np.float64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([-1, 0], [False, False], 3), r"rows\[0\] is -1 and is_padding\[0\] is False; pass"),
        (([-2], [True], 3), r"rows\[0\] is -2 and is_padding\[0\] is True; pass rows of 0 or more"),
        (([0.5], [False], 3), "rows is float64 ndarray"),
        (([0, 1], [False], 3), "pass one flag per row"),
        (([[0]], [[False]], 3), "pass one flag per row"),
        (([0], ["no"], 3), "is_padding is"),
        (([0], [False], -1), "num_rows is -1"),
        (([0], [False], "x"), "num_rows is 'x'"),
        (([0], [False], 3, (1, 2)), "pass three lengths of 0 or more"),
        (([0], [False], 3, None, None), "first_pad is None"),
        (([0], [False], 3, None, 0, [1, 2]), r"lengths has shape \(2,\) and rows \(1,\); pass one"),
    ],
)
def test_shards_that_cannot_be(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Shard(*arguments)


def test_shards_keep_their_own_arrays():
    rows = np.array([0, 1])
    shard = Shard(rows, np.array([False, False]), 2)
    rows[:] = 5
    assert shard.rows.tolist() == [0, 1]
    with pytest.raises(ValueError, match="read-only"):
        shard.rows[0] = 1


def test_ranks_fail_together_where_a_width_is_too_small():
    prompts, responses = [[1], [2], [3]], [[4], [5, 6], [7]]
    plan = fc.plan_step(([1, 1, 1], [1, 2, 1]), dp_size=3)
    for layout in (fc.Left(pad_response_to=1), fc.Left(pad_to=2)):
        for rank in range(3):
            with raises("(row 1|a row of the step) has .*rows are not truncated; pass a larger"):
                make_batch(prompts, responses, shard=plan.shard(0, rank), layout=layout)


def planned(prompts, responses, rank, dp_size=2, **how):
    lens = [list(map(len, rows)) for rows in (prompts, responses)]
    return fc.plan_step(lens, dp_size=dp_size, **how).shard(0, rank)


def test_rows_of_other_shards_are_not_read():
    prompts, responses = [[1], [2, 3], [4], [5, 6]], [[7], [8, 9], [1, 2], [3]]
    shard = planned(prompts, responses, 1)
    expected = fc.build_batch(prompts, responses, pad_token_id=0, shard=shard, array_type="numpy")
    prompts[0], responses[1] = "not", object()
    rewards = [None, "no", 1.0, 2.0]
    batch = make_batch(prompts, responses, rewards=rewards, shard=shard)
    assert batch.input_ids.tolist() == expected.input_ids.tolist()
    assert batch.rewards.sum(1).tolist() == [1, 2]


@pytest.mark.parametrize("as_column", [list, tuple, fc.ragged])
def test_errors_of_a_shard_name_the_rows_of_the_step(as_column):
    prompts, responses = [[1], [2, 3], [4], [5, 6]], [[7], [8, 9], [1, 2], [3]]
    shard = planned(prompts, responses, 1)

    def build(prompts=prompts, responses=responses, **more):
        columns = as_column(prompts), as_column(responses)
        fc.build_batch(*columns, pad_token_id=0, shard=shard, **more)

    masks = as_column([[1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    for build_wrong, message in [
        (lambda: build(loss_mask=masks), r"loss_mask\[3\] has 2 items, but responses\[3\] has 1"),
        (lambda: build(prompts=[*prompts[:3], [5]]), "3 tokens in row 3, which has 2"),
        (lambda: build([*prompts[:3], [5]], [*responses[:3], [6, 3]]), "2 prompt tokens in row 3"),
        (lambda: build(prompts[:3], responses[:3]), "plan for 4 rows, but there are 3"),
        (lambda: build(responses=responses[:3]), "responses has 3 rows, but prompts has 4"),
        (lambda: build(rewards=[1.0, 1.0]), "rewards has 2 rows, but prompts has 4"),
        (lambda: build(fields={"x": fc.Field(masks)}), r"x\[3\] has 2 items"),
        (lambda: build(loss_mask=[[1], [1, 1], [1, -1], [1]]), r"loss_mask\[2\]\[1\] is -1"),
    ]:
        with pytest.raises(ValueError, match=message):
            build_wrong()


def test_the_plan_of_a_shard_has_its_own_turns():
    prompts, responses = [[1]] * 1000, [[2, 3]] * 1000
    shard = planned(prompts, responses, 3, dp_size=500)
    whole = fc.build_batch(prompts, responses, pad_token_id=0, array_type="numpy")
    batches = [
        fc.build_batch(prompts, responses, pad_token_id=0, array_type="numpy", shard=shard),
        whole.select(shard),
        make_batch(sequences=[[1, 2, 3]] * 1000, prompt_lens=[1] * 1000, shard=shard),
    ]  # fmt: skip
    for batch in batches:
        plan = batch.plan
        assert plan.sources.tolist() == [6, 7]
        assert plan.num_turns == 1000
        assert plan == batches[0].plan == pickle.loads(pickle.dumps(plan))
        assert len(pickle.dumps(plan)) < 5000
        assert plan.to_dict()["turns"].tolist() == [6, 7]
        turns = batch.gather(batch.loss_mask, align="response", per="turn", missing=0)
        assert turns.to_list()[5:9] == [[], [1, 1], [1, 1], []]
        assert len(turns) == 1000
        with pytest.raises(ValueError, match="the response tokens of turn 0 are in no row"):
            batch.gather(batch.loss_mask, align="response", per="turn")
    assert "turns" not in whole.plan.to_dict()
    tables = batches[0].plan.to_dict()
    for turns, num_turns in [([7, 6], 1000), ([6], 1000), ([6, 7], 2), ([6, 1000], 1000)]:
        wrong = {**tables, "turns": np.array(turns), "num_turns": np.array([num_turns])}
        with pytest.raises(ValueError, match="turns must rise to below num_turns"):
            type(batches[0].plan)._from_dict(wrong)
    wrong = {**tables, "turns": np.array([5, 7])}
    with pytest.raises(ValueError, match="row 0 has other lengths than its source"):
        type(batches[0].plan)._from_dict(wrong)


@pytest.mark.parametrize("merged", [False, True])
def test_lists_as_fields_are_read_by_the_rows_of_a_shard(merged):
    responses = [[row] * (row % 3 + 1) for row in range(12)]
    prompts = [[1]] * 2 + [[]] * 8 + [[2, 3]] * 2
    fields = {
        "along": [[0.5] * len(row) for row in responses],
        "names": fc.PerRow([f"row {row}" for row in range(12)]),
        "images": fc.PerRow([np.full((row % 2, 2), row) for row in range(12)]),
        "joined": fc.PerRow([[row] for row in range(12)], dtype="int32", concat=True),
        "numbers": fc.PerRow(list(range(12)), dtype="float64"),
        "counts": fc.PerRow([*range(11), 0.5]),
    }
    more = {"trajectory_ids": list(range(12))} if merged else {}
    merge = fc.merge_turns(prompts, responses, **more) if merged else None
    step = fc.plan_step(
        merge if merged else (list(map(len, prompts)), list(map(len, responses))), dp_size=6
    )
    options = {"pad_token_id": 0, "array_type": "numpy", "merge": merge, **more}
    whole = fc.build_batch(prompts, responses, fields=fields, **options)
    for rank in range(6):
        shard = step.shard(0, rank)
        built = fc.build_batch(prompts, responses, fields=fields, **options, shard=shard)
        assert_same(built, whole.select(shard))
    for key, values, message in (
        ("along", [[0.5]] * 12, r"fields\['along'\]"),
        ("names", fc.PerRow(["a", "b", 3] * 4), r"names\[2\] is a number"),
        ("images", fc.PerRow([None] * 12), r"images\[0\] is None"),
        ("numbers", fc.PerRow([0, 1.5] * 6, dtype="int64"), r"numbers\[3\]|numbers\[1\]"),
        ("numbers", fc.PerRow([0] * 11, dtype="int64"), "11"),
        ("names", fc.PerRow(["a"] * 11), "11"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            fc.build_batch(
                prompts, responses, fields={key: values}, **options, shard=step.shard(0, 1)
            )
