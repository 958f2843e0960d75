"""Rewards and uids of merged turns: one number per turn, tokens that are masked, one uid each."""

import pickle
import re
import warnings

import numpy as np
import pytest
from conftest import share
from hypothesis import given
from hypothesis import strategies as st
from restored_plans import restore_merge
from strategies import merge_options, trajectories
from ways import by_builder, by_collator
from worker_blocks import through_blocks

import fastcollate as fc
from fastcollate.blocks.storing import store
from fastcollate.planning import Merge
from fastcollate.testing.reference import assert_same, build_merged_batch_loops, merge_turns_loops
from fastcollate.testing.reference.reading import is_number, readable, rows_of

# Three turns that go on from each other, and one of another trajectory.
PROMPTS = [[1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [7]]
RESPONSES = [[3], [5, 6], [8], [9]]
TURNS = {"prompts": PROMPTS, "responses": RESPONSES}
IDS = ["s", "s", "s", "t"]
METRIC = "generate/num_rewards_masked_by_merge"

# The first token of the response comes back as another one.
DRIFTED = {"prompts": [[1], [1, 8, 3, 4]], "responses": [[2, 3], [5]]}


def build(rewards, ids=IDS, turns=TURNS, **options):
    options = {"merge": "exact", "pad_token_id": 0, "array_type": "numpy", **options}
    return fc.build_batch(**turns, rewards=rewards, trajectory_ids=ids, **options)


def by_one_block(columns, merge, **options):
    """Build the batch that a rank reads from the parts that a worker has put."""
    return through_blocks(
        [columns], lambda step: fc.plan_step(step.merge_plan).shard(0, 0), options, merge
    )[0]


def by_call(columns, **options):
    return fc.build_batch(**columns, **options)


def of_turns(way):
    def build_by(turns, rewards, ids, **options):
        columns = {**turns, "rewards": rewards, "trajectory_ids": ids}
        return way(columns, pad_token_id=0, array_type="numpy", **options)

    return build_by


WAYS = [of_turns(way) for way in (by_call, by_builder, by_collator, by_one_block)]


@pytest.mark.parametrize("build_by", WAYS)
@pytest.mark.parametrize(("rule", "expected"), [("sum", [7.5, 9]), ("last", [4, 9])])
def test_one_number_per_turn(build_by, rule, expected):
    batch = build_by(TURNS, [1.5, 2, 4, 9], IDS, merge=Merge(rewards=rule))
    assert batch.rewards.tolist() == [[0, 0, 0, 0, expected[0]], [0, 0, 0, 0, expected[1]]]
    assert batch.merge_plan.merge_rewards == rule


@pytest.mark.parametrize("build_by", WAYS)
def test_a_number_that_would_be_dropped_is_an_error(build_by):
    message = re.escape("rewards[1] is 2.0, but the turn is not the last of row 0")
    with pytest.raises(ValueError, match=message) as error:
        build_by(TURNS, [0, 2, 4, 9], IDS, merge="exact")
    for way_out in ("turn 2", "rewards='sum'", "rewards='last'", "per response token"):
        assert way_out in str(error.value)
    batch = build_by(TURNS, [0, -0.0, 4, 9], IDS, merge="exact")
    assert batch.rewards[:, -1].tolist() == [4, 9]
    with pytest.raises(ValueError, match=re.escape("rewards[0] is NaN")):
        build_by(TURNS, [float("nan"), 0, 4, 9], IDS, merge="exact")


@pytest.mark.parametrize("build_by", WAYS)
def test_sums_are_rounded_once(build_by):
    """As float64 in the order of turns; rounded one by one, these are 0, 2**24 and inf."""
    ids = ["s"] * 3
    turns = {name: rows[:3] for name, rows in TURNS.items()}
    for numbers in ([2**24 + 1, -(2**24), 0], [2**24, 0.75, 0.75], [3e38, 3e38, -3e38]):
        batch = build_by(turns, numbers, ids, merge=Merge(rewards="sum"))
        assert batch.rewards[0, -1] == np.float32(sum(map(float, numbers)))
    batch = build(
        [0.1, 0.2, 0.3], ids, turns, merge=Merge(rewards="sum"), dtypes={"rewards": "float64"}
    )
    assert batch.rewards[0, -1] == 0.1 + 0.2 + 0.3


def count_masked_rewards(merged, rewards):
    """Count the rewards that are not 0 on tokens that realigning masked."""
    values = rows_of(rewards)
    count = 0
    for row in merged.rows:
        for turn in row.turns:
            places = range(merged.response_lens[turn])
            masked = [place for place in places if (turn, place) not in row.origins]
            if not is_number(values[0]):
                count += sum(float(readable(values[turn])[place]) != 0 for place in masked)
            elif merged.merge_rewards == "sum" and masked and masked[-1] == places[-1]:
                count += float(values[turn]) != 0
    return count


@pytest.mark.parametrize("build_by", WAYS)
@share(2)
@given(drawn=st.data())
@pytest.mark.filterwarnings("ignore:.*policy='realign' masked")
def test_equals_the_loops(build_by, drawn):
    data = drawn.draw(trajectories(max_trajectories=2, max_turns=5, max_long_len=8))
    options = drawn.draw(merge_options())
    # A builder takes no number for a turn that has no token.
    turns = {"prompts": data.turns.prompts, "responses": [r or [5] for r in data.turns.responses]}
    numbers = st.sampled_from([0, 0, -0.0, 0.1, 1e8 + 1, -1e8, 1e-9, float("inf")])
    rewards = [drawn.draw(numbers) for _ in data.trajectory_ids]
    ids = np.cumsum([0, *data.is_last_step[:-1]]).tolist()
    plan = fc.merge_turns(**turns, trajectory_ids=ids, **options)
    inputs = {**turns, "rewards": rewards, "trajectory_ids": ids}
    try:
        expected = build_merged_batch_loops(**inputs, pad_token_id=0, merge=options)
    except ValueError:
        with pytest.raises(ValueError, match="rewards"):
            build_by(turns, rewards, ids, merge=plan)
        return
    batch = build_by(turns, rewards, ids, merge=plan)
    assert_same({"rewards": batch.rewards}, {"rewards": expected["rewards"]})
    merged = merge_turns_loops(**turns, trajectory_ids=ids, **options)
    assert batch.metrics[METRIC] == count_masked_rewards(merged, rewards)
    assert plan.turn_rows.tolist() == [
        next(index for index, row in enumerate(merged.rows) if turn in row.turns)
        for turn in range(len(ids))
    ]


def test_of_dropped_trajectories_nothing_is_asked():
    masks = [[0], [0, 0], [0], [1]]
    plan = fc.merge_turns(**TURNS, trajectory_ids=IDS, loss_mask=masks, drop_untrainable=True)
    assert plan.turn_rows.tolist() == [-1, -1, -1, 0]
    assert build([1, 2, 4, 9], merge=plan, loss_mask=masks).rewards.tolist() == [[9]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"merge_rewards": [3]}, "merge_rewards"),
        ({"merge_rewards": []}, "merge_rewards"),
        ({"turn_rows": [0, 0, 0]}, "turn_rows"),
        ({"turn_rows": [0, 0, 0, -2]}, "turn_rows"),
        ({"turn_rows": [0, 0, 0, -1]}, "row 1"),
        ({"turn_rows": [0, 0, 1, 1]}, "row 0"),
        ({"turn_rows": [0, 1, 0, 1]}, "row 0 has a piece of turn 1"),
        ({"turn_rows": [0, 9, 0, 1]}, "row 0 has a piece of turn 1"),
    ],
)
def test_other_tables_are_no_plan(changes, message):
    tables = fc.merge_turns(**TURNS, trajectory_ids=IDS).to_dict()
    tables |= {name: np.array(values, np.int64) for name, values in changes.items()}
    with pytest.raises(ValueError, match=message):
        restore_merge(tables)


@pytest.mark.parametrize("row", [-1, 1, 2])
def test_a_turn_without_tokens_is_in_a_row_of_its_trajectory(row):
    turns = {**TURNS, "responses": [[3], [], [8], [9]]}
    turns["prompts"] = [[1, 2], [1, 2, 3, 4], [1, 2, 3, 4], [7]]
    tables = fc.merge_turns(**turns, trajectory_ids=IDS).to_dict()
    tables["turn_rows"][1] = row
    with pytest.raises(ValueError, match="turn 1 is in a row of other turns; pass the tables"):
        restore_merge(tables)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rewards": "mean"}, "rewards is 'mean'; pass 'error', 'sum', 'last'"),
        ({"rewards": 1}, "rewards is 1"),
        ({"policy": "greedy"}, "policy is 'greedy'; pass 'exact', 'branch', 'realign'"),
        ({"rewards": None}, "rewards is None"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Merge(**options)


@pytest.mark.parametrize("merge", ["sum", 1, {"rewards": "sum"}, [Merge()]])
def test_merges_that_cannot_be(merge):
    message = re.escape(f"merge is {merge!r}"[:9]) + ".*; pass 'exact', 'branch', 'realign'"
    with pytest.raises(ValueError, match=message):
        build([1, 2, 4, 9], merge=merge)
    with pytest.raises(ValueError, match=message):
        fc.BatchBuilder(pad_token_id=0, merge=merge)
    with pytest.raises(ValueError, match=message):
        fc.Collator(pad_token_id=0, merge=merge)


@pytest.mark.parametrize("build_by", WAYS)
@pytest.mark.parametrize(("realign", "masked"), [("tail", 2), ("response", 2), ("span", 1)])
def test_a_reward_on_a_masked_token(build_by, realign, masked):
    plan = fc.merge_turns(
        **DRIFTED, trajectory_ids=[1, 1], policy=Merge("realign", mask_drift=realign)
    )
    rewards = [[1, 2], [4]]
    with pytest.warns(UserWarning, match=f"{masked} rewards? lies? on") as seen:
        batch = build_by(DRIFTED, rewards, [1, 1], merge=plan)
    assert "policy='realign'" in str(seen[0].message)
    assert batch.metrics[METRIC] == masked
    assert batch.rewards.sum() == {2: 4, 1: 6}[masked]
    assert pickle.loads(pickle.dumps(batch)).metrics[METRIC] == masked
    assert batch.to_layout("right").metrics[METRIC] == masked
    whole = fc.plan_step([5]).shard(0, 0)
    assert batch.select(whole).metrics[METRIC] == masked


@pytest.mark.parametrize("build_by", WAYS)
def test_nothing_is_said_where_the_reward_is_0(build_by):
    plan = fc.merge_turns(
        **DRIFTED, trajectory_ids=[1, 1], policy=Merge("realign", mask_drift="span")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = build_by(DRIFTED, [[0, 2], [4]], [1, 1], merge=plan)
    assert batch.metrics[METRIC] == 0


@pytest.mark.parametrize("build_by", WAYS)
def test_a_number_whose_token_is_masked_is_added_with_a_warning(build_by):
    plan = fc.merge_turns(**DRIFTED, trajectory_ids=[1, 1], policy=Merge("realign", rewards="sum"))
    with pytest.warns(UserWarning, match="1 reward lies on a token"):
        batch = build_by(DRIFTED, [3, 4], [1, 1], merge=plan)
    assert batch.rewards.sum() == 7
    assert batch.metrics[METRIC] == 1
    options = {"policy": Merge("realign", rewards="sum", mask_drift="span")}
    spared = fc.merge_turns(**DRIFTED, trajectory_ids=[1, 1], **options)
    for rewards, merge in (([0, 4], plan), ([3, 4], spared)):
        assert build_by(DRIFTED, rewards, [1, 1], merge=merge).metrics[METRIC] == 0


def test_the_metric_without_rewards():
    plan = fc.merge_turns(**DRIFTED, trajectory_ids=[1, 1], policy="realign")
    batch = fc.build_batch(**DRIFTED, pad_token_id=0, merge=plan, array_type="numpy")
    assert batch.metrics[METRIC] == 0
    plain = fc.build_batch(**DRIFTED, pad_token_id=0, array_type="numpy")
    assert METRIC not in plain.metrics


def test_turns_of_a_trajectory_have_one_uid():
    message = re.escape("uids[2] is 'v', but uids[1], of the same trajectory 's', is 'u'")
    uids = ["u", "u", "v", "v"]
    for merge in "exact", fc.merge_turns(**TURNS, trajectory_ids=IDS):
        with pytest.raises(ValueError, match=message):
            build([0, 0, 1, 1], uids=uids, merge=merge)
    with pytest.raises(ValueError, match="of the same trajectory 0, is 'u'"):
        build([0, 0, 1, 1], None, uids=uids, is_last_step=[False, False, True, True])
    with pytest.raises(ValueError, match=message):
        store(**TURNS, uids=uids, trajectory_ids=IDS, merge="exact")
    assert build([0, 0, 1, 1], uids=list("uuuv")).uids == ["u", "v"]
    assert build([0, 0, 1, 1], uids=list("uvwx"), merge=None).uids == list("uvwx")
