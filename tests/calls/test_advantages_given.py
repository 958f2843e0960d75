"""The argument ``advantages``: one number per row or values per token, against the loops."""

import pickle

import numpy as np
import pytest
from any_layout import layouts
from conftest import share
from hypothesis import given
from hypothesis import strategies as st
from merging_first import merge_of
from packings import lens_of, packed_options
from spreading import outcome, same
from step_shards import shards
from strategies import (
    as_inputs,
    merge_options,
    name_turns,
    rollouts,
    taking_numbers,
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

LAYOUTS = ["left", "two_segment", "right", "jagged"]
PROMPTS, RESPONSES, MASKS = [[1, 2], [3]], [[4], [5, 6, 7]], [[1], [0, 1, 1]]
ROWS = {"prompts": PROMPTS, "responses": RESPONSES, "pad_token_id": 0, "array_type": "numpy"}

pytestmark = pytest.mark.filterwarnings("ignore:.*policy=.realign. masked", "ignore:.*split")


@st.composite
def with_advantages(draw, data):
    """Give rollouts one number per row, as some kind of input, or leave them their values."""
    if draw(st.booleans()):
        return data
    numbers = draw(
        st.lists(st.floats(width=32), min_size=len(data.prompts), max_size=len(data.prompts))
    )
    return data._replace(advantages=numbers)


@pytest.mark.parametrize("layout", [*LAYOUTS, "packed"])
@share(5)
@given(drawn=st.data())
def test_equals_the_loops(layout, drawn, array_type):
    data = drawn.draw(rollouts(max_long_len=30).flatmap(with_advantages))
    if layout == "packed":
        how, reference = drawn.draw(packed_options(lens_of(data), shifts=["none"]))
    else:
        how = reference = {"layout": drawn.draw(layouts(layout, data))}
    options = {"pad_token_id": 7, "array_type": array_type}
    inputs = drawn.draw(as_inputs(data))
    batch = outcome(lambda: fc.build_batch(**inputs, **options, **how))
    loops = outcome(lambda: build_batch_loops(**data._asdict(), pad_token_id=7, **reference))
    there = drawn.draw(st.sampled_from(LAYOUTS))

    def check(batch):
        assert_same(pickle.loads(pickle.dumps(batch)), batch)
        if layout == "packed":
            return
        moved = batch.to_layout(there)
        assert_same(moved, build_batch_loops(**data._asdict(), pad_token_id=7, layout=there))
        assert_same(moved.to_layout("jagged").to_layout(how["layout"]), batch)

    same(batch, loops, check)


@given(drawn=st.data())
def test_merged_turns_equal_the_loops(drawn):
    trajectory = drawn.draw(trajectories(max_long_len=12))
    data = drawn.draw(with_advantages(trajectory.turns))
    merge = taking_numbers(drawn.draw(merge_options()), data.rewards)
    names = {"trajectory_ids": None, "is_last_step": None, **drawn.draw(name_turns(trajectory))}
    arguments = {**data._asdict(), **names, "pad_token_id": 7}
    here, there = drawn.draw(st.tuples(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS)))
    plan = merge_of(arguments, merge)
    batch = outcome(
        lambda: fc.build_batch(**arguments, merge=plan, layout=here, array_type="numpy")
    )
    loops = outcome(lambda: build_merged_batch_loops(**arguments, merge=merge, layout=here))

    def check(batch):
        expected = build_merged_batch_loops(**arguments, merge=merge, layout=there)
        assert_same(batch.to_layout(there), expected)

    same(batch, loops, check)


@given(drawn=st.data())
def test_shards_equal_the_loops(drawn):
    data = drawn.draw(rollouts(max_long_len=20).flatmap(with_advantages))
    shard, layout = drawn.draw(shards(data)), drawn.draw(st.sampled_from(LAYOUTS))
    options = {**data._asdict(), "pad_token_id": 7, "layout": layout}
    batch = outcome(lambda: fc.build_batch(**options, shard=shard, array_type="numpy"))
    loops = outcome(lambda: build_shard_loops(**options, shard=shard))
    whole = outcome(lambda: fc.build_batch(**options, array_type="numpy"))

    def check(batch):
        if whole is not None:
            assert_same(whole.select(shard), batch)

    same(batch, loops, check)


@given(data=rollouts(max_rows=4, max_long_len=20).flatmap(with_advantages))
def test_builders_collators_and_blocks_equal_a_batch(data):
    rows = {name: value for name, value in data._asdict().items() if value is not None}
    options = {"pad_token_id": 7, "array_type": "numpy"}
    expected = outcome(lambda: fc.build_batch(**rows, **options))
    names = {"prompts": "prompt", "responses": "response"}
    samples = [
        {names.get(name, name): rows[name][index] for name in rows}
        for index in range(len(data.prompts))
    ]

    def added():
        builder = fc.BatchBuilder(**options)
        for sample in samples:
            builder.add(**sample)
        return builder.finish()

    same(outcome(added), expected, lambda batch: None)
    if expected is None:
        return
    assert_same(fc.Collator(**options)(samples), expected)
    shard = fc.plan_step(expected, dp_size=1).shard(0, 0)
    batch, _ = through_blocks([rows], lambda _: shard, options)
    assert_same(batch, fc.build_batch(**rows, **options, shard=shard))


# Written out


def test_one_number_per_row(array_type):
    for numbers in ([1.5, -1], (1.5, -1), np.array([1.5, -1]), fc.Field([1.5, -1])):
        batch = fc.build_batch(
            **{**ROWS, "array_type": array_type}, loss_mask=MASKS, advantages=numbers
        )
        assert batch.advantages.tolist() == [[0, 0, 1.5], [0, -1, -1]]
        assert str(batch.advantages.dtype).endswith("float32")
    by_field = fc.build_batch(
        **ROWS, loss_mask=MASKS, fields={"advantages": fc.Field([1.5, -1], spread="trained")}
    )
    assert_same(by_field, fc.build_batch(**ROWS, loss_mask=MASKS, advantages=[1.5, -1]))


def test_one_value_per_token():
    """They are as given, also beside tokens that do not train, and after any change of layout."""
    values, left = [[1.5], [2, 3, 4]], [[0, 0, 1.5], [2, 3, 4]]
    along = [[9, 9, 1.5], [9, 2, 3, 4]]
    for rows in (values, fc.ragged(values), fc.Field(along, align="sequence")):
        batch = fc.build_batch(**ROWS, loss_mask=MASKS, advantages=rows)
        assert batch.advantages.tolist() == left
        for layout in ("jagged", "two_segment", fc.Packed(capacity=5)):
            there = batch.to_layout(layout)
            built = fc.build_batch(**ROWS, loss_mask=MASKS, advantages=rows, layout=layout)
            assert_same(there, built)
            assert_same(there.to_layout("left"), batch)
        shard = fc.plan_step(batch, dp_size=2).shard(0, 1)
        built = fc.build_batch(**ROWS, loss_mask=MASKS, advantages=rows, shard=shard)
        assert_same(batch.select(shard), built)


def test_each_turn_of_a_row_has_its_own_number():
    prompts, responses = [[1], [1, 2, 3, 7]], [[2, 3], [8, 9]]
    batch = fc.build_batch(
        prompts, responses, pad_token_id=0, merge="exact", trajectory_ids=[0, 0],
        loss_mask=[[1, 0], [1, 1]], advantages=[10, 20], array_type="numpy",
    )  # fmt: skip
    assert batch.advantages.tolist() == [[10, 0, 0, 20, 20]]


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_dtypes(dtype):
    batch = fc.build_batch(**ROWS, advantages=[0.1, -1], dtypes={"advantages": dtype})
    assert batch.advantages.dtype == dtype
    assert batch.advantages[0, -1] == np.array(0.1, dtype)


def test_a_tree(array_type):
    rows = {"prompts": [[1, 2], [1, 2]], "responses": [[3, 4], [3, 5, 6]], "pad_token_id": 0}
    batch = fc.build_batch(
        **rows, advantages=[1, 2], layout=fc.Tree(capacity=16), array_type=array_type
    )
    assert batch.advantages.tolist() == [1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"advantages": [1]}, r"advantages has 1 row"),
        ({"advantages": [[1], [2]]}, r"advantages\[1\] has 1 items, but responses\[1\] has 3"),
        ({"advantages": [1, [1, 2, 3]]}, r"advantages\[1\]"),
        ({"advantages": [1, "x"]}, r"advantages\[1\] is 'x'"),
        ({"advantages": [1, None]}, r"advantages\[1\]"),
        ({"advantages": [1, 2], "dtypes": {"advantages": "int64"}}, "advantages"),
        (
            {"advantages": fc.Field([1, 2], spread="trained")},
            r"advantages is an fc.Field with spread='trained', .*pass the numbers themselves",
        ),
        (
            {"advantages": [1, 2], "fields": {"advantages": fc.Field([[1], [1, 2, 3]])}},
            "'advantages': the argument advantages and fields",
        ),
    ],
)
def test_what_cannot_be(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        fc.build_batch(**ROWS, **arguments)


def test_rows_of_a_builder_have_one_kind():
    builder = fc.BatchBuilder(pad_token_id=0)
    builder.add([1], [2], advantages=1)
    with pytest.raises(TypeError, match=r"advantages\[1\] is one per resp.*\[0\] is one number"):
        builder.add([1], [2], advantages=[1.0])
