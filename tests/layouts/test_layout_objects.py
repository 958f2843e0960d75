"""Layouts as objects: arguments, attributes, text and comparison."""

import copy
import json
import pickle

import numpy as np
import pytest
from raising import raises
from small_input import build

import fastcollate as fc
from fastcollate.plan.layouts import BY_NAME, layout_of
from fastcollate.plan.tree_bins import TreeBins

NAMES = ["left", "right", "two_segment", "jagged", "tree"]
TREE = fc.planning.prefix_tree([[1, 2], [3], [1, 2]], [[4], [5, 6], [4, 5, 6]])
BINS = fc.planning.pack([3, 3, 5], fc.Packed(8, multiple_of=2))
LAYOUTS = [
    fc.Left(),
    fc.Left(pad_to=64, multiple_of=8),
    fc.Left(pad_response_to=3),
    fc.Right(pad_to=16),
    fc.TwoSegment(),
    fc.TwoSegment(pad_prompt_to=4, pad_response_to=6, multiple_of=2),
    fc.Jagged(),
    fc.Packed(64),
    fc.Packed(64, algorithm="bfd", max_sequences=3, min_bins=2, bins_multiple_of=2),
    fc.Packed(64, oversize="split", max_cost=1e6, cost="tokens", multiple_of=8, pad_to=128),
    fc.Packed(plan=BINS, shift="next_token"),
    fc.Packed(plan=[[2, 0], [1]], padding_as="no_segment"),
    fc.Packed.single_row(),
    fc.Packed.single_row(multiple_of=4, pad_to_multiple_of=6, shift="next_token"),
    fc.Tree(),
    fc.Tree(64, share="group", same_inputs=["a", "b", "a"], multiple_of=4, pad_to=128),
    fc.Tree(64, multiple_of=3, pad_to_multiple_of=8),
    fc.Tree(
        64, algorithm="bfd", max_sequences=3, min_bins=2, bins_multiple_of=2, oversize="own_bin"
    ),
    fc.Tree(64, max_cost=1e6, cost="tokens", share="prompts"),
    fc.Tree(64, plan=TREE, same_inputs=np.array([5, 5, 6])),
    fc.Tree(plan=TREE.pack(fc.Tree(64, multiple_of=2))),
]

TREE_PLANS = (fc.planning.TreePlan, TreeBins)


def doubled(lengths):
    return 2 * lengths


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_layouts_are_values(layout):
    same = [pickle.loads(pickle.dumps(layout)), copy.deepcopy(layout)]
    if isinstance(getattr(layout, "plan", None), (fc.planning.BinPlan, fc.planning.TreePlan)):
        with pytest.raises(TypeError, match=r"plan is a plan, .*pickle the layout"):
            layout.to_dict()
    else:
        same += [layout_of(layout.to_dict()), layout_of(json.loads(json.dumps(layout.to_dict())))]
    for other in same:
        assert type(other) is type(layout)
        assert other == layout
        assert repr(other) == repr(layout)
    assert sum(layout == other for other in LAYOUTS) == 1
    assert not hasattr(layout, "__dict__")


@pytest.mark.parametrize("layout", [fc.Left(pad_to=4), fc.Packed(8), fc.Packed(plan=[[0]])])
def test_equal_layouts_have_one_hash(layout):
    assert hash(copy.deepcopy(layout)) == hash(layout)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", ["pad_to", "multiple_of", "spec", "anything"])
def test_nothing_changes_a_layout(layout, name):
    with pytest.raises((AttributeError, TypeError)):
        setattr(layout, name, 1)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_what_is_printed_makes_the_layout_again(layout):
    if not isinstance(getattr(layout, "plan", None), (fc.planning.BinPlan, *TREE_PLANS)):
        assert eval(f"fc.{layout!r}") == layout


def test_only_what_differs_is_printed():
    assert repr(fc.Left()) == "Left()"
    assert repr(fc.Right(pad_to=8, multiple_of=1)) == "Right(pad_to=8)"
    assert repr(fc.Packed(16, shift="next_token")) == "Packed(capacity=16, shift='next_token')"
    assert repr(fc.Packed.single_row(pad_to=9)) == "Packed.single_row(pad_to=9)"
    assert repr(fc.Packed(plan=BINS)) == f"Packed(plan=<{BINS!r}>)"
    many = repr(fc.Packed(plan=[[row] for row in range(1000)]))
    assert len(many) < 80


def test_numbers_are_kept_as_ints():
    layout = fc.Left(pad_to=np.int64(8), multiple_of=np.int32(4))
    assert type(layout.pad_to) is type(layout.multiple_of) is int
    packed = fc.Packed(np.int64(8), max_sequences=np.int8(2), max_cost=np.float32(3))
    assert [type(value) for value in (packed.capacity, packed.max_sequences)] == [int, int]
    assert type(packed.max_cost) is float
    bins = fc.Packed(plan=[np.array([1, 0]), (np.int32(2),)])
    assert bins == fc.Packed(plan=((1, 0), (2,)))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_stands_for_the_defaults(name):
    assert BY_NAME[name].name == name
    assert build(layout=name).input_ids.tolist() == build(layout=BY_NAME[name]).input_ids.tolist()


@pytest.mark.parametrize(
    ("make", "message"),
    [  # test_pack.py has the options of packing
        (lambda: fc.Left(pad_to=-1), "pad_to is -1; pass a number of tokens, 0 or"),
        (lambda: fc.Left(pad_to=1.5), "TypeError: pad_to is 1.5; pass a number of tokens"),
        (lambda: fc.Right(multiple_of=0), "multiple_of is 0; pass .*, 1 or more"),
        (lambda: fc.Right(multiple_of=None), "TypeError: multiple_of is None"),
        (
            lambda: fc.Left(pad_to=100, multiple_of=64),
            "pad_to is 100, but multiple_of is 64; pass a multiple of 64 as pad_to",
        ),
        (
            lambda: fc.TwoSegment(pad_response_to=3, multiple_of=2),
            "pad_response_to is 3, but multiple_of is 2; pass a multiple of 2 as pad_response_to",
        ),
        (lambda: fc.TwoSegment(pad_prompt_to="4"), "TypeError: pad_prompt_to is '4'"),
        (
            lambda: fc.Left(4),
            "TypeError: Left takes nothing without a name; pass others by name: pad_to",
        ),
        (lambda: fc.Left(pad_prompt_to=4), "TypeError: pad_prompt_to"),
        (lambda: fc.TwoSegment(pad_to=4), "TypeError: pad_to"),
        (lambda: fc.Jagged(pad_to=4), "TypeError: pad_to"),
        (lambda: fc.Left(shift="next_token"), "TypeError: shift"),
        (lambda: fc.Packed(), r"capacity and plan are None; pass fc.Packed\("),
        (lambda: fc.Packed(8, plan=[[0]]), "capacity is given, but plan"),
        (lambda: fc.Packed(plan=[[0]], algorithm="ff"), "leave algorithm out"),
        (lambda: fc.Packed("8"), "TypeError: capacity is '8'"),
        (
            lambda: fc.Packed(8, max_cost=1, cost=[1, 2]),
            "TypeError: plan=fastcollate.planning.pack",
        ),
        (lambda: fc.Packed(8, keep_together=[1]), "TypeError: keep_together"),
        (lambda: fc.Packed(8, shift="last"), "shift is 'last'; pass 'none'"),
        (lambda: fc.Packed(8, shift=None), "TypeError: shift is None"),
        (lambda: fc.Packed(8, padding_as="cut"), "padding_as is 'cut'"),
        (lambda: fc.Packed(plan=5), "TypeError: plan is 5"),
        (lambda: fc.Packed(plan="both"), "TypeError: plan is 'both'"),
        (lambda: fc.Packed(plan=[[0.5]]), "TypeError: plan"),
        (lambda: fc.Packed(plan=[[-1]]), "plan"),
        (lambda: fc.Packed(plan=BINS, multiple_of=8), "made with multiple_of=2"),
        (lambda: fc.Packed.single_row(capacity=8), "TypeError: capacity"),
        (lambda: fc.Tree(0), "capacity is 0"),
        (lambda: fc.Tree(max_sequences=2), "max_sequences is given, but capacity is"),
        (lambda: fc.Tree(8, share="some"), "share is 'some'; pass 'all'"),
        (lambda: fc.Tree(8, plan=BINS), "TypeError: plan is BinPlan.*prefix_tree"),
        (lambda: fc.Tree(8, plan=TREE, share="group"), "share is given, but plan"),
        (lambda: fc.Tree(8, plan=TREE.pack(fc.Tree(9))), "capacity is given.*TreePlan.pack"),
        (
            lambda: fc.Tree(plan=TREE.pack(fc.Tree(9, multiple_of=2)), multiple_of=4),
            "plan was made with multiple_of=2",
        ),
        (lambda: fc.Tree(8, algorithm="concat"), "algorithm='concat' splits rows"),
        (lambda: fc.Tree(8, oversize="split"), "oversize='split' splits rows"),
        (lambda: fc.Tree(8, max_cost=1, cost=[1, 2]), "cost has one number per row"),
        (lambda: fc.Tree(8, same_inputs=5), "TypeError: same_inputs"),
        (lambda: fc.Tree(8, grow_by="split"), "TypeError: Tree has no argument 'grow_by'"),
        (lambda: fc.Tree(8, shift="next_token"), "TypeError: Tree has no argument 'shift'"),
        (lambda: fc.Tree(pad_to=3, multiple_of=2), "pass a multiple of 2 as pad_to"),
        (lambda: fc.Packed.single_row(pad_to=3, multiple_of=2), "pass a multiple of 2 as pad_to"),
        (
            lambda: fc.Tree(pad_to=12, pad_to_multiple_of=8),
            "pad_to is 12, but pad_to_multiple_of is 8; pass a multiple of 8 as pad_to",
        ),
        (lambda: fc.Packed(8, pad_to_multiple_of=0), "pad_to_multiple_of is 0"),
        (lambda: fc.Tree(fork_early=1), r"TypeError: fork_early is 1 \(int\); pass True or False"),
        (lambda: fc.Tree(min_shared=0), "min_shared is 0; pass a number of tokens"),
        (lambda: fc.Tree(min_shared=2.5), "TypeError: min_shared is 2.5"),
    ],
)
def test_options_that_cannot_be(make, message):
    with raises(message):
        make()


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("middle", "layout is 'middle'; pass 'left'"),
        ("packed", r"which rows share .* pass layout=fc.Packed\(capacity="),
        (5, r"TypeError: layout is 5 \(int\); pass 'left'"),
        (fc.Left, "TypeError: layout is .*Left.* pass 'left'"),
        ({"layout": "left"}, "TypeError: layout is"),
    ],
)
def test_what_is_no_layout(layout, message):
    for call in (
        lambda: build(layout=layout),
        lambda: build().to_layout(layout),
        lambda: fc.BatchBuilder(pad_token_id=0, layout=layout),
        lambda: fc.Collator(pad_token_id=0, layout=layout),
        lambda: fc.plan_step([1, 2], layout=layout),
    ):
        with raises(message):
            call()


@pytest.mark.parametrize("layout", [None, *NAMES[:-1], *LAYOUTS[:7]], ids=str)
def test_a_shard_carries_the_layout_of_its_step(layout):
    lens = [3, 3, 5]
    plan = fc.plan_step(lens, dp_size=2, layout=layout)
    expected = BY_NAME.get(layout, layout)
    assert plan.layout == expected
    for other in (pickle.loads(pickle.dumps(plan)), fc.planning.StepPlan.from_dict(plan.to_dict())):
        assert other == plan
        assert other.layout == expected
    shard = plan.shard(0, 1)
    assert shard.layout == expected
    bare = fc.plan_step(lens, dp_size=2).shard(0, 1)
    found = build(shard=shard, loss_mask=None)
    wanted = build(shard=bare, loss_mask=None, layout=expected or "left")
    assert dict(found).keys() == dict(wanted).keys()
    for key in found:
        assert np.array_equal(found[key], wanted[key]), key
    if expected is not None:
        assert build(shard=shard, layout=expected).plan.layout == expected.name
        message = r"layout is Right\(pad_to=99\), but the step was planned with layout="
        with pytest.raises(ValueError, match=message):
            build(shard=shard, layout=fc.Right(pad_to=99))
        with pytest.raises(ValueError, match=r"planned with layout=.* plan the step without"):
            build(layout="two_segment" if expected.name == "jagged" else "jagged").select(shard)


@pytest.mark.parametrize("layout", LAYOUTS[:7], ids=str)
def test_rows_are_selected_in_the_layout_of_the_step(layout):
    shard = fc.plan_step([3, 3, 5], dp_size=2, layout=layout).shard(0, 1)
    batch = build(layout=layout, loss_mask=None)
    found, expected = batch.select(shard), build(shard=shard, loss_mask=None)
    assert dict(found).keys() == dict(expected).keys()
    for key in found:
        assert np.array_equal(found[key], expected[key]), key


def test_rows_of_another_width_than_the_step_has():
    shard = fc.plan_step([3, 3, 5], dp_size=2, layout="left").shard(0, 1)
    message = r"layout of their batch, 'left' with rows of 16 positions in place of 5; plan the st"
    with pytest.raises(ValueError, match=message):
        build(layout=fc.Left(pad_to=16)).select(shard)
    shard = fc.plan_step([3, 3, 5], dp_size=2, layout="left").shard(0, 1)
    with pytest.raises(ValueError, match=r"layout of their batch, 'right'; plan the step without"):
        build(layout="right").select(shard)


def test_plans_with_another_layout_differ():
    plans = [fc.plan_step([1, 2], layout=layout) for layout in (None, "left", fc.Left(pad_to=4))]
    assert sum(a == b for a in plans for b in plans) == len(plans)


def test_a_step_in_one_row_per_rank():
    plan = fc.plan_step([3, 3, 5], dp_size=2, layout=fc.Packed.single_row(shift="next_token"))
    assert plan.bin_offsets is None
    found = [build(shard=plan.shard(0, rank)) for rank in range(2)]
    assert [batch.input_ids.shape for batch in found] == [(1, 6), (1, 7)]
    assert found[0].input_ids.tolist() == [[1, 2, 7, 3, 8, 9]]
    assert found[0].loss_mask.tolist() == [[0, 0.5, 0, 1, 2, 0]]


def test_a_step_cannot_have_bins_of_its_own():
    with pytest.raises(ValueError, match=r"packs each mini-batch by itself.*capacity"):
        fc.plan_step([1, 2], layout=fc.Packed(plan=[[0, 1]]))


def test_a_function_goes_by_pickle_alone():
    layout = fc.Packed(64, max_cost=100.0, cost=doubled)
    assert pickle.loads(pickle.dumps(layout)) == layout
    plan = fc.plan_step([5, 6], layout=layout)
    assert pickle.loads(pickle.dumps(plan)) == plan
    for kept in (layout, plan):
        with pytest.raises(TypeError, match=r"cost is a function.* pickle the layout or the plan"):
            kept.to_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (5, "TypeError: options is 5"),
        ({}, r"options\['layout'\] is None; pass the dict"),
        ({"layout": "middle"}, r"options\['layout'\] is 'middle'"),
        ({"layout": ["left"]}, r"options\['layout'\] is \['left'\]"),
        ({"layout": "left", "width": 5}, "TypeError: width"),
        ({"layout": "left", "pad_to": -1}, "pad_to is -1"),
    ],
)
def test_what_is_no_layout_as_a_dict(options, message):
    with raises(message):
        layout_of(options)
    tables = {**fc.plan_step([1, 2]).to_dict(), "layout": options}
    with pytest.raises(ValueError, match="not a valid step plan: layout cannot be read: "):
        fc.planning.StepPlan.from_dict(tables)
