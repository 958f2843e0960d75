"""Steps of trees: mini-batches share nothing, and each response token has one value in all."""

import pickle
import re
from itertools import pairwise, takewhile

import numpy as np
import pytest
from conftest import share
from hypothesis import given
from hypothesis import strategies as st
from raising import raises
from strategies import forks, merge_options, trajectories

import fastcollate as fc
from fastcollate.plan.tree_bins import TreeBins
from fastcollate.planning import Costs, StepPlan, prefix_tree
from fastcollate.testing.reference import assert_same


@st.composite
def steps(draw, **limits):
    """Draw rows that fork, in prompts, and the plan of a step of them."""
    data = draw(forks(**limits))
    prompts = [prompt or [3] for prompt in data.prompts]
    rows = list(zip(prompts, data.responses, strict=True))
    count = len(rows)
    uids = sorted(draw(st.lists(st.integers(0, 4), min_size=count, max_size=count)))
    longest = max(len(prompt) + len(response) for prompt, response in rows)
    layout = fc.Tree(
        draw(st.integers(longest + 4, 3 * longest + 20)),
        multiple_of=draw(st.sampled_from([1, 1, 5])),
        algorithm=draw(st.sampled_from(["ffd", "bfd", "next_fit"])),
        min_bins=draw(st.sampled_from([0, 0, 3])),
    )
    tree = prefix_tree(prompts, data.responses)
    plan = fc.plan_step(
        tree,
        uids=uids,
        layout=layout,
        prompts_per_mini_batch=draw(st.integers(1, len(set(uids)))),
        allow_partial=True,
        dp_size=draw(st.integers(1, 4)),
        shard_by=draw(st.sampled_from([None, "contiguous", "strided", "tokens", Costs(1, 0.1)])),
    )
    return {"prompts": prompts, "responses": data.responses}, uids, plan


def in_common(one, other):
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@given(drawn=steps())
@share(3)
def test_bins_are_trees_within_the_capacity(drawn):
    columns, _, plan = drawn
    streams = [p + r for p, r in zip(*columns.values(), strict=True)]
    layout, widest = plan.layout, 0
    bins = plan.bin_offsets
    for begin, end in zip(bins[:-1].tolist(), bins[1:].tolist(), strict=True):
        rows, shared = plan.rows[begin:end].tolist(), plan.shared[begin:end].tolist()
        if rows == [-1]:
            assert shared == [0]
            widest = max(widest, -(-2 // layout.multiple_of) * layout.multiple_of)
            continue
        of_bin = [streams[row] for row in rows]
        assert of_bin == sorted(of_bin)
        assert shared == [0, *(in_common(*pair) for pair in pairwise(of_bin))]
        places, size = [], 0
        for stream, common in zip(of_bin, shared, strict=True):
            if common == 0:
                places.append(0)
            places[-1] += len(stream) - common
        size = sum(-(-place // layout.multiple_of) * layout.multiple_of for place in places)
        assert size <= layout.capacity
        widest = max(widest, size)
    assert plan.bin_width == widest
    counts = np.diff(np.searchsorted(bins, plan.mini_batch_offsets))
    assert (counts % plan.dp_size == 0).all()
    assert (counts >= layout.min_bins).all()
    assert plan.tokens_per_rank.sum() == (plan.row_totals[plan.rows] - plan.shared).sum()


@given(drawn=steps(), given=st.data())
@share(3)
def test_every_token_has_one_value_on_one_rank(drawn, given, array_type):
    columns, uids, plan = drawn
    assert StepPlan.from_dict(plan.to_dict()) == plan == pickle.loads(pickle.dumps(plan))
    values = np.arange(sum(map(len, columns["responses"])), dtype=np.float32)
    offsets = np.cumsum([0, *map(len, columns["responses"])])
    ids = [values[a:b] for a, b in pairwise(offsets)]
    built = {"fields": {"number": fc.Field(ids, dtype="float32")}, "array_type": array_type}
    whole = fc.build_batch(**columns, uids=uids, pad_token_id=9, layout="jagged")
    normalizers = whole.loss_normalizers(plan)
    is_narrow = given.draw(st.booleans())
    found, batches = [], []
    for mini_batch in range(plan.num_mini_batches):
        first, last = plan.mini_batches[mini_batch]
        trained = 0
        for rank in range(plan.dp_size):
            shard = pickle.loads(pickle.dumps(plan.shard(mini_batch, rank)))
            one = shard.narrow() if is_narrow else shard
            batch = fc.build_batch(**columns, uids=uids, pad_token_id=9, shard=one, **built)
            batches.append(batch)
            assert is_narrow or batch.input_ids.shape[1] == plan.bin_width
            trained += float(batch.loss_mask.sum())
            number = np.asarray(batch.number)[np.asarray(batch.loss_mask) > 0]
            found.append(number)
            assert ((number >= offsets[first]) & (number < offsets[last])).all()
            check_shard(columns, shard, batch, plan)
        assert max(trained, 1) == normalizers.tokens[mini_batch]
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), values)


def check_shard(columns, shard, batch, plan):
    """Compare a shard with the batch of its rows alone, in the same bins, and its parts with it."""
    if not shard.is_padding.any():
        rows = shard.rows.tolist()
        lengths = np.array(
            [len(columns["prompts"][r]) + len(columns["responses"][r]) for r in rows]
        )
        multiple = plan.layout.multiple_of
        pieces = np.arange(len(rows)), shard.shared, lengths - shard.shared
        bins = TreeBins(shard.bin_offsets, *pieces, len(rows), 10_000, multiple)
        width = batch.input_ids.shape[1]
        expected = fc.build_batch(
            *([column[row] for row in rows] for column in columns.values()),
            pad_token_id=9,
            layout=fc.Tree(plan=bins, pad_to=width),
            array_type="numpy",
        )
        assert_same({key: np.asarray(batch[key]) for key in expected}, dict(expected))
    parts = [
        fc.build_batch(**columns, pad_token_id=9, shard=part) for part in shard.micro_batches()
    ]
    assert len(parts) == len(shard.bin_offsets) - 1
    for index, part in enumerate(parts):
        of_whole = np.asarray(batch.input_ids)[index]
        np.testing.assert_array_equal(of_whole, part.input_ids[0][: len(of_whole)])


def test_merged_turns_share_after_they_are_merged():
    prompts = [[1, 2], [1, 2, 3, 4], [1, 2], [1, 2, 5, 6]]
    responses = [[3], [7, 8], [5], [9]]
    turns = {"trajectory_ids": [0, 0, 1, 1], "uids": [0, 0, 0, 0]}
    merge = fc.merge_turns(prompts, responses, trajectory_ids=turns["trajectory_ids"])
    tree = prefix_tree(prompts, responses, merge=merge)
    assert tree.shared.tolist() == [0, 2]
    plan = fc.plan_step(tree, layout=fc.Tree(16), dp_size=2)
    batches = [
        fc.build_batch(
            prompts, responses, **turns, merge=merge, pad_token_id=0, shard=plan.shard(0, rank)
        )
        for rank in range(2)
    ]
    assert sum(float(batch.loss_mask.sum()) for batch in batches) == 5
    found = {tuple(row.tolist()) for batch in batches for row in batch.gather(batch.targets)}
    assert found == {(3, 4, 7, 8), (5, 6, 9)}


@given(data=trajectories(max_long_len=20), drawn=st.data())
def test_uids_of_merged_turns_are_those_of_a_merge_plan(data, drawn):
    """Per turn or per row; with or without trajectories beside them."""
    turns = data.turns.prompts, data.turns.responses
    merge = fc.merge_turns(*turns, is_last_step=data.is_last_step, **drawn.draw(merge_options()))
    uids = np.cumsum([0, *data.is_last_step[:-1]]) // drawn.draw(st.integers(1, 2))
    uids = drawn.draw(st.sampled_from([uids, uids.tolist(), uids[merge.sources]]))
    tree = prefix_tree(*turns, merge=merge)
    assert pickle.loads(pickle.dumps(tree)).merge == merge
    options = {
        "uids": uids,
        "prompts_per_mini_batch": drawn.draw(st.integers(1, 2)),
        "allow_partial": True,
    }
    alone = fc.plan_step(merge, **options)
    for plan in (fc.plan_step(tree, **options), fc.plan_step(tree, layout=fc.Tree(99), **options)):
        assert plan.prompt_offsets.tolist() == alone.prompt_offsets.tolist()
        assert plan.mini_batch_prompts.tolist() == alone.mini_batch_prompts.tolist()


def test_uids_that_are_neither_per_turn_nor_per_row():
    merge = fc.merge_turns([[1], [1, 2], [3]], [[2], [3], [4]], trajectory_ids=[0, 0, 1])
    tree = prefix_tree([[1], [1, 2], [3]], [[2], [3], [4]], merge=merge)
    message = r"uids has 4 items, but the plan has 2 rows of 3 turns; pass one per row or per turn"
    with pytest.raises(ValueError, match=message):
        fc.plan_step(tree, uids=[0] * 4)
    alone = tree.select([0, 1])
    assert alone.merge is None
    with pytest.raises(ValueError, match="uids has 3 items, but there are 2 rows"):
        fc.plan_step(alone, uids=[0] * 3)
    with pytest.raises(ValueError, match="merge has other rows than the tree plan"):
        type(tree)([0], [0], [1], [1], merge)


def test_planned_without_bins_the_rows_of_a_rank_share():
    prompts, responses = [[1, 2, 3]] * 3, [[4], [5], [6]]
    plan = fc.plan_step([4, 4, 4], dp_size=2)
    batch = fc.build_batch(
        prompts, responses, pad_token_id=0, shard=plan.shard(0, 1), layout="tree"
    )
    assert batch.input_ids.shape == (1, 6)
    assert batch.loss_mask.tolist() == [1.0, 0.0]


PROMPTS, RESPONSES = [[1, 2, 3], [1, 2, 3], [7]], [[4, 4], [5], [6]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": [5, 4, 2]}, "rows has no shared tokens; pass rows=fc.planning.prefix_t"),
        ({"layout": fc.Tree()}, "layout has no capacity, which bins need; pass fc.Tree(capacity="),
        ({"layout": "tree"}, "layout has no capacity"),
        ({"layout": fc.Tree(8, share="prompts")}, "layout has a share, but rows already has the"),
        (
            {"layout": fc.Tree(8, plan=prefix_tree(PROMPTS, RESPONSES))},
            "layout has a plan, but rows already has the shared",
        ),
        ({"keep_together": "prompt", "uids": [0, 0, 1]}, "keep_together is 'prompt', but a tree"),
        ({"layout": fc.Tree(4)}, "mini-batch 0, rows 0 to 2, cannot be packed: row 0 "),
        ({"dp_size": 4, "pad_rows": "error"}, "fills only 3 bins and needs 4"),
        ({"pad_rows": "copy_cycle"}, "which copies single rows, but layout is packed"),
    ],
)
def test_what_cannot_be_planned_is_refused(options, message):
    chosen = {"rows": prefix_tree(PROMPTS, RESPONSES), "layout": fc.Tree(8), **options}
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        fc.plan_step(**chosen)


def test_other_rows_than_planned_are_refused():
    plan = fc.plan_step(prefix_tree(PROMPTS, RESPONSES), layout=fc.Tree(8))
    shard = plan.shard(0, 0)
    build = {"pad_token_id": 0, "shard": shard}
    with raises("3 tokens in common for row 1 and row 0, but they differ at token 1"):
        fc.build_batch([[1, 2, 3], [1, 9, 3], [7]], RESPONSES, **build)
    with pytest.raises(ValueError, match="plan"):
        fc.build_batch([[1, 2, 3], [1, 2], [7]], RESPONSES, **build)
    images = {"pixels": fc.PerRow([np.zeros((1, 2))] * 3, concat=True)}
    with pytest.raises(ValueError, match="same_inputs"):
        fc.build_batch(PROMPTS, RESPONSES, fields=images, **build)
    layout = fc.Tree(8, same_inputs=[0, 0, 1])
    shard = fc.plan_step(prefix_tree(PROMPTS, RESPONSES), layout=layout).shard(0, 0)
    batch = fc.build_batch(PROMPTS, RESPONSES, fields=images, pad_token_id=0, shard=shard)
    assert batch.pixels.shape == (3, 2)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("shared", [0, 5, 0], "shared[1] is 5, but the row has 4 tokens and the one before it 5"),
        ("shared", [1, 3, 0], "shared[0] is 1, but must be 0 for the first row of a bin"),
        ("shared", [0, 3], "shared has 2 items, but must have one for each of 3 slots"),
        ("shared", None, "shared is None, but shared belongs to layout=fc.Tree(capacity=...)"),
        ("bin_offsets", None, "bin_offsets is None"),
    ],
)
def test_tables_that_are_no_trees_are_refused(name, value, message):
    tree = prefix_tree(PROMPTS, RESPONSES)
    tables = fc.plan_step(tree, layout=fc.Tree(8)).to_dict()
    order = np.argsort(tables["rows"], kind="stable")
    assert order.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=re.escape(message)):
        StepPlan.from_dict(tables | {name: value})
