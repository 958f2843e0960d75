"""Trees that share less than they could: forks one token early, and runs that pay alone."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import make_batch
from strategies import forks

import fastcollate as fc
from fastcollate.planning import Costs, TreePlan, prefix_tree

COSTS = st.builds(
    Costs,
    per_token=st.sampled_from([0.0, 1.0, 3.0]),
    per_pair=st.sampled_from([0.5, 1.0]),
    per_segment=st.sampled_from([0.25, 2.0, 7.0, 40.0]),
    per_key=st.sampled_from([0.0, 0.5, 2.0]),
)
LAYOUTS = st.builds(
    fc.Tree,
    capacity=st.just(1_000_000),
    fork_early=st.booleans(),
    min_shared=st.integers(1, 5),
    cost=st.just("flops") | COSTS,
)


def saved(costs, base, depth, times):
    """Say what sharing a run saves, in costs of tokens and of pairs."""
    pairs = sum(range(base + 1, depth + 1))
    return times * (costs.per_token * (depth - base) + costs.per_pair * pairs)


def limited(rows, shared, layout):
    """Say what rows share with the row before, run by run from the roots on."""
    shared, found = list(shared), [0] * len(rows)
    if layout.fork_early:
        pairs = enumerate(pairwise(rows), 1)
        for at, (before, row) in pairs:
            shared[at] -= shared[at] > 0 and not shared[at] == len(before) == len(row)
    costs = layout.cost if isinstance(layout.cost, Costs) else None

    def visit(begin, end, base, outer):
        if end - begin < 2:
            return
        depth = min(shared[begin + 1 : end])
        kept = base
        if depth > outer and depth - base >= layout.min_shared:
            gain = costs is None or saved(costs, base, depth, end - begin - 1) > (
                costs.per_segment + costs.per_key * depth
            )
            kept = depth if gain else base
        cuts = [row for row in range(begin + 1, end) if shared[row] == depth]
        for row in cuts:
            found[row] = kept
        for first, last in pairwise([begin, *cuts, end]):
            visit(first, last, kept, depth)

    visit(0, len(rows), 0, 0)
    return found


@given(forks(), LAYOUTS)
def test_rows_share_what_the_limits_allow(forked, layout):
    prompts, responses = forked[:2]
    tree = prefix_tree(prompts, responses)
    rows = [[*prompts[row], *responses[row]] for row in tree.order]
    expected = limited(rows, tree.shared.tolist(), layout)
    bins = tree.pack(layout)
    assert bins.num_bins == 1
    assert bins.fork_early == layout.fork_early
    assert sum(bins.starts) == sum(expected)

    def built(layout):
        return make_batch(prompts, responses, layout=layout)

    batch = built(layout)
    assert batch.plan.num_placed == sum(map(len, rows)) - sum(expected)
    for other in replace(layout, plan=tree), fc.Tree(plan=bins):
        np.testing.assert_array_equal(built(other).input_ids, batch.input_ids)
    jagged = built("jagged")
    np.testing.assert_array_equal(batch.to_layout("jagged").input_ids, jagged.input_ids)
    np.testing.assert_array_equal(batch.targets, jagged.targets)


@given(forks(), COSTS)
def test_what_costs_choose_costs_no_more_than_all_or_nothing(forked, costs):
    tree = prefix_tree(*forked[:2])

    def total(layout):
        batch = make_batch(*forked[:2], layout=layout)
        paths = batch.attention_paths()
        keys, queries = np.diff(paths.cu_seqlens_k), np.diff(paths.cu_seqlens_q)
        pairs = sum(sum(range(k - q + 1, k + 1)) for k, q in zip(keys, queries, strict=True))
        return (
            costs.per_token * batch.plan.num_positions
            + costs.per_pair * pairs
            + costs.per_segment * len(keys)
            + costs.per_key * keys.sum()
        )

    most = total(fc.Tree(cost=costs)) * (1 - 1e-9) - 1e-9
    lens = tree.prompt_lens, tree.response_lens
    shared = np.zeros_like(tree.shared)
    assert most <= total(fc.Tree(plan=TreePlan(tree.order, shared, *lens)))
    ends = tree.lengths[tree.order]
    if (tree.shared[1:] < np.minimum(ends[1:], ends[:-1])).all():  # no row ends inside another
        assert most <= total(fc.Tree())


@given(
    forks(),
    st.sampled_from(
        [
            fc.Tree(fork_early=True),
            fc.Tree(12, fork_early=True, oversize="own_bin"),
            fc.Tree(share="prompts", fork_early=True),
        ]
    ),
)
def test_forks_come_early_enough_for_one_label(forked, layout):
    prompts, responses = forked[:2]
    batch = make_batch(prompts, responses, layout=layout, labels="shifted")
    labels = {}
    for position, target, trains in zip(
        batch.predictors.tolist(), batch.targets.tolist(), batch.loss_mask.tolist(), strict=True
    ):
        if trains:
            assert labels.setdefault(position, target) == target
    expected = np.full(batch.input_ids.size, -100)
    for position, target in labels.items():
        expected[position] = target
    expected = expected.reshape(batch.input_ids.shape)
    np.testing.assert_array_equal(batch.shift_labels, expected, strict=True)
    np.testing.assert_array_equal(batch.model_inputs("dense")["shift_labels"], expected)
    assert "labels" not in batch.model_inputs("dense")
    if layout.share == "all" and layout.capacity is None:
        keys = set()
        for row in map(list.__add__, prompts, responses):
            keys |= {
                tuple(row[:end]) + (None,) * (end > len(row)) for end in range(2, len(row) + 2)
            }
        assert batch.plan.num_placed == len(keys)


ROWS = {"prompts": [[1, 2], [1, 2], [1, 2, 3]], "responses": [[3, 4], [3, 5], [4, 6]]}


def test_labels_of_their_own_train_each_position_once():
    layout = fc.Tree(fork_early=True)
    batch = fc.build_batch(**ROWS, pad_token_id=0, layout=layout, labels="shifted")
    assert batch.shift_labels.dtype == batch.input_ids.dtype
    message = (
        r"labels is 'aligned', but response token 0 of row 0 and response token 0 of row 1 "
        r"train position 1 of bin 0"
    )
    with pytest.raises(ValueError, match=message):
        fc.build_batch(**ROWS, pad_token_id=0, layout=layout, labels="aligned")
    masks = [[1, 1], [0, 1], [0, 1]]
    once = make_batch(**ROWS, layout=layout, labels="aligned", loss_mask=masks)
    inputs = once.model_inputs("dense")
    labels, moved = inputs["labels"], inputs["shift_labels"]
    assert (labels != -100).sum() == (moved != -100).sum() == 4
    is_label = labels != -100
    np.testing.assert_array_equal(labels[is_label], once.input_ids[is_label])
    assert once.labels.tolist() == labels.tolist()
    once = fc.build_batch(**ROWS, layout=layout, labels="aligned", loss_mask=masks, pad_token_id=0)
    once.loss_mask[2] = 1  # of a token that row 0 trains
    with pytest.raises(ValueError, match=message):
        once.model_inputs("dense")
    # A row that is the prefix of another ends alone, and equal rows end together.
    same = {"prompts": [[1], [1], [1]], "responses": [[2], [2, 3], [2, 3]]}
    batch = make_batch(**same, layout=layout)
    assert batch.input_ids.tolist() == [[1, 2, 2, 3]]


def test_labels_need_early_forks():
    for labels in "aligned", "shifted":
        with pytest.raises(ValueError, match=r"pass fc.Tree\(..., fork_early=True\)"):
            fc.build_batch(**ROWS, pad_token_id=0, layout=fc.Tree(), labels=labels)


def test_bins_know_their_forks():
    bins = prefix_tree(**ROWS).pack(fc.Tree(100, fork_early=True))
    for layout in fc.Tree(plan=bins), fc.Tree(plan=bins, fork_early=True):
        batch = fc.build_batch(**ROWS, pad_token_id=0, layout=layout, labels="shifted")
        assert batch.plan.num_placed == 8
    other = prefix_tree(**ROWS).pack(fc.Tree(100))
    with pytest.raises(ValueError, match="fork_early is given, but plan has its bins already"):
        fc.Tree(plan=other, fork_early=True)


def test_steps_share_within_the_limits():
    tree = prefix_tree(**ROWS)
    layout = fc.Tree(100, fork_early=True)
    plan = fc.plan_step(tree, dp_size=1, layout=layout)
    batch = fc.build_batch(**ROWS, pad_token_id=0, shard=plan.shard(0, 0), labels="shifted")
    assert batch.plan.num_placed == 8
    assert "shift_labels" in batch.model_inputs("dense")
    far = fc.plan_step(tree, dp_size=1, layout=fc.Tree(100, min_shared=3))
    whole = fc.build_batch(**ROWS, pad_token_id=0, shard=far.shard(0, 0))
    assert whole.plan.num_placed == 13 - 6
