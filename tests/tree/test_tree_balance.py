"""Tree steps do not wait: the slowest rank against the bound, and against the packed step."""

from time import process_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tree_bounds import bound_of

import fastcollate as fc
from fastcollate.planning import Costs, TreePlan
from rollouts import load_rollouts

COSTS = Costs(per_token=1.0, per_pair=5e-5)


def plan_of(shared, prompt_lens, response_lens):
    return TreePlan(np.arange(len(shared)), shared, prompt_lens, response_lens)


def groups(rng, count, size, prompt_len, response_len, longest):
    """Draw groups of samples of one prompt, with log-normal lengths."""

    def draw(median, spread, shape, most):
        return rng.lognormal(np.log(median), spread, shape).astype(np.int64).clip(16, most)

    prompts = draw(prompt_len, 0.5, count, longest // 2).repeat(size)
    responses = draw(response_len, 0.8, count * size, longest // 2)
    shared = prompts.copy()
    shared[::size] = 0
    return plan_of(shared, prompts, responses)


def conversations(rng, count, longest):
    """Draw chains of turns, few of them long: each turn is a row that continues the one before."""
    shared, prompts, responses = [], [], []
    for _ in range(count):
        shared.append(0)
        at = int(rng.integers(200, 1500))
        for _ in range(int(rng.lognormal(2.3, 0.9)) + 1):
            response = int(rng.integers(20, 200))
            if at + response > longest:
                break
            prompts.append(at)
            responses.append(response)
            shared.append(at + response)
            at += response + int(rng.lognormal(5, 1))
        shared.pop()
    return plan_of(shared, prompts, responses)


def recorded():
    rollouts = load_rollouts()
    turns = {"trajectory_ids": rollouts.trajectory_ids, "is_last_step": rollouts.is_last_step}
    merge = fc.merge_turns(rollouts.prompts, rollouts.responses, **turns)
    return fc.planning.prefix_tree(rollouts.prompts, rollouts.responses, merge=merge)


def step_of(tree, ranks, layout):
    rows = tree if isinstance(layout, fc.Tree) else tree.lengths
    plan = fc.plan_step(rows, layout=layout, dp_size=ranks, shard_by=COSTS)
    return plan, plan.forecast(COSTS, computes_padding=False).time


CASES = {
    "prompts as long as responses": lambda rng, rows, longest: groups(
        rng, rows // 8, 8, 1000, 1000, longest
    ),
    "groups of 16": lambda rng, rows, longest: groups(rng, rows // 16, 16, 1000, 1000, longest),
    "long prompts": lambda rng, rows, longest: groups(rng, rows // 8, 8, 3000, 500, longest),
    "heavy tail": lambda rng, rows, longest: groups(rng, rows // 4, 4, 300, 2000, longest),
    "conversations": lambda rng, rows, longest: conversations(rng, rows // 4, longest),
    "recorded": lambda rng, rows, longest: recorded(),
}


@pytest.mark.parametrize("capacity", [8_192, 16_384])
@pytest.mark.parametrize(("ranks", "rows"), [(8, 128), (8, 512), (64, 1024), (64, 4096)])
@pytest.mark.parametrize("case", CASES)
def test_the_slowest_rank_is_near_the_bound(case, ranks, rows, capacity):
    """At most 1.05 times the bound, or 1.10 times with one bin a rank."""
    tree = CASES[case](np.random.default_rng(rows), rows, capacity)
    plan, time = step_of(tree, ranks, fc.Tree(capacity))
    most = 1.05 if len(plan.bin_offsets) - 1 > ranks else 1.10
    assert time <= most * bound_of(tree, COSTS, ranks, capacity)
    packed = step_of(tree, ranks, fc.Packed(capacity))[1]
    assert time <= packed * (1 + 1e-12)


@pytest.mark.alone
@pytest.mark.parametrize("ranks", [8, 64])
def test_many_short_rows_are_planned_in_the_time_of_a_packed_step(ranks):
    tree = groups(np.random.default_rng(0), 12_500, 8, 40, 60, 16_384)

    def seconds(layout):
        def once():
            start = process_time()
            step_of(tree, ranks, layout)
            return process_time() - start

        return min(once() for _ in range(5))

    assert seconds(fc.Tree(16_384)) <= 3 * seconds(fc.Packed(16_384))


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 30), st.integers(0, 60)), min_size=1
    ),
    ranks=st.integers(1, 5),
    capacity=st.integers(60, 150),
    drawn=st.data(),
)
def test_no_tree_step_is_slower_than_the_packed_step(rows, ranks, capacity, drawn):
    """With any costs: of models, of a table of lengths, with and without a cost of bins."""
    shared, before = [], 0
    for prompt, response, common in rows:
        shared.append(min(common, prompt + response, before))
        before = prompt + response
    tree = plan_of(shared, [row[0] for row in rows], [row[1] for row in rows])
    table = np.array(drawn.draw(st.lists(st.integers(0, 99), min_size=61, max_size=61)))
    costs = st.builds(
        Costs,
        *map(st.integers, [1] * 4, [9] * 4),
        per_segment=st.integers(0, 99),
        per_key=st.integers(0, 9),
    )
    shard_by = drawn.draw(costs | st.sampled_from(["tokens", "flops", lambda n: table[n]]))
    options = {"dp_size": ranks, "shard_by": shard_by}
    if isinstance(shard_by, Costs):
        step = fc.plan_step(tree, layout=fc.Tree(capacity), **options)
        packed = fc.plan_step(tree.lengths, layout=fc.Packed(capacity), **options)
        times = [one.forecast(shard_by, computes_padding=False).time for one in (step, packed)]
        assert times[0] <= times[1] * (1 + 1e-12)
    else:
        step = fc.plan_step(tree, layout=fc.Tree(capacity), **options)
    assert sorted(row for row in step.rows.tolist() if row >= 0) == list(range(len(rows)))
    bins = np.diff(np.searchsorted(step.bin_offsets, step.mini_batch_offsets))
    assert (bins % ranks == 0).all()
    assert (
        np.add.reduceat(step.row_totals[step.rows] - step.shared, step.bin_offsets[:-1]) <= capacity
    ).all()
