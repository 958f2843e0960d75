"""compat.skyrl merges turns as SkyRL does, and refuses what it refuses."""

import copy
from dataclasses import dataclass

import numpy as np
import pytest
from recorded import recorded

from fastcollate.compat.skyrl import merge_stepwise_output
from frameworks import skyrl as port
from frameworks.installed import real

KEYS = [
    *("prompt_token_ids", "response_ids", "rewards", "loss_masks", "stop_reasons"),
    *("rollout_logprobs", "rollout_expert_indices", "rollout_sample_support"),
    *("trajectory_generation_times", "trajectory_time_splits", "trajectory_ids", "is_last_step"),
    "rollout_metrics",
]
PER_TURN = [
    *("prompt_token_ids", "response_ids", "rewards", "loss_masks", "stop_reasons"),
    *("rollout_logprobs", "trajectory_ids", "is_last_step"),
]


@dataclass
class TrajectoryID:
    """As SkyRL's: equal by value, and so not hashable."""

    instance_id: str
    repetition_id: int

    def to_string(self):
        return f"{self.instance_id}_{self.repetition_id}"


def outcome(merge, generator_output):
    """Give all that is to be the same: values with their types and order, or the exception.

    Metrics are not: means that are computed in another order round apart.
    """
    before = repr(generator_output)
    try:
        merged = merge(generator_output)
    except (AssertionError, IndexError, KeyError, TypeError) as error:
        return type(error)
    finally:
        assert repr(generator_output) == before
    lists = [id(row) for row in nested_lists(generator_output)]
    assert not {id(row) for row in nested_lists(merged)} & set(lists)
    metrics = merged.pop("rollout_metrics")
    return repr(merged), list(metrics), pytest.approx(metrics)


def nested_lists(output):
    """Give all lists but those that are trajectory ids."""
    for key, column in output.items():
        if isinstance(column, list):
            yield column
            if key != "trajectory_ids":
                yield from (row for row in column if isinstance(row, list))


LATER = ("rollout_expert_indices", "rollout_sample_support", "trajectory_time_splits")
"""Keys that SkyRL always has, and recorded results may lack."""


def with_later_keys(merged):
    merged = dict.fromkeys(LATER) | merged
    return {key: merged[key] for key in KEYS}


def expected(merge, generator_output):
    """Return the result that `outcome` is compared with."""
    try:
        merged = merge(copy.deepcopy(generator_output))
    except (AssertionError, IndexError, KeyError, TypeError) as error:
        return type(error)
    metrics = merged.pop("rollout_metrics")
    return repr(merged), list(metrics), metrics


def merged_by_skyrl(generator_output):
    return with_later_keys(skyrl.merge_stepwise_output(generator_output))


skyrl = real("skyrl.train.generators.utils")
MERGES = [port.merge_stepwise_output, *([merged_by_skyrl] if skyrl else [])]


def check(generator_output):
    """Compare with the port, and with SkyRL 0.4.0 where `make peers` has it."""
    found = outcome(merge_stepwise_output, generator_output)
    for merge in MERGES:
        assert found == expected(merge, generator_output)
    return port.merge_stepwise_output(generator_output)


# Against SkyRL itself


def with_ids(output):
    """Make objects of the trajectory ids that are recorded as such."""
    ids = output.get("trajectory_ids") or []
    made = [TrajectoryID(**each) if isinstance(each, dict) else each for each in ids]
    return output | ({"trajectory_ids": made} if ids else {})


GOLDEN = recorded("skyrl_merge_stepwise")


@pytest.mark.parametrize("merge", [merge_stepwise_output, port.merge_stepwise_output])
@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_what_skyrl_itself_gave(case, merge):
    """Recorded results: neither may be wrong in the way of the other."""
    found = outcome(merge, with_ids(case["generator_output"]))
    if "raises" in case:
        assert found.__name__ == case["raises"]
    else:
        merged = with_later_keys(with_ids(case["result"]))
        metrics = merged.pop("rollout_metrics")
        assert found == (repr(merged), list(metrics), metrics)


# Written out


@pytest.fixture
def steps():
    """Three turns that merge, two that do not, one that is alone."""
    return {
        "prompt_token_ids": [[1], [1, 2, 3, 4], [1, 2, 3, 4, 5], [6], [6, 8], [1]],
        "response_ids": [[2, 3], [5], [6, 7], [7], [9], [2]],
        "rewards": [0.0, 0.25, 1.0, -1.0, 2.0, 3.0],
        "loss_masks": [[1, 0], [1], [1, 1], [1], [0], [1]],
        "stop_reasons": ["stop", "stop", "length", "a", "b", "c"],
        "rollout_logprobs": [[-0.5, -1.0], [-2.0], [-3.0, -4.0], [-5.0], [-6.0], [-7.0]],
        "trajectory_ids": [*[TrajectoryID("x", 0)] * 3, *[TrajectoryID("x", 1)] * 2, "y"],
        "is_last_step": [False, False, True, False, True, True],
        "rollout_metrics": {"generate/x": 1.0},
    }


def test_the_first_reward_of_a_trajectory_tells_what_they_are(steps):
    """If the first is a number, a list is a reward like any other if its length is its row's."""
    for key in PER_TURN:
        steps[key] = steps[key][3:5]
    steps["response_ids"][0] = steps["loss_masks"][0] = steps["rollout_logprobs"][0] = []
    steps["prompt_token_ids"][1] = [6]
    steps["rewards"] = [0.5, [2.0]]
    assert check(steps)["rewards"] == [[2.0]]


def test_prompts_that_are_no_lists_are_merged_too(steps):
    expected = port.merge_stepwise_output(steps)
    for rows in (
        list(map(tuple, steps["prompt_token_ids"])),
        [np.array(row) for row in steps["prompt_token_ids"]],
    ):
        assert merge_stepwise_output(steps | {"prompt_token_ids": rows}) == expected


@pytest.mark.parametrize("key", ["loss_masks", "rollout_logprobs", "response_ids"])
@pytest.mark.parametrize(
    "as_rows", [tuple, np.array, lambda row: pytest.importorskip("torch").tensor(row)]
)
def test_values_that_are_no_lists_are_joined(steps, key, as_rows):
    """A list to which an array is added with += has all its values changed instead."""
    expected = port.merge_stepwise_output(steps)
    steps[key] = list(map(as_rows, steps[key]))
    merged = merge_stepwise_output(steps)
    assert all(type(row) is list for row in merged[key])
    assert [list(map(float, row)) for row in merged[key]] == expected[key]
    assert merged["rollout_metrics"] == pytest.approx(expected["rollout_metrics"])


def test_sample_support_is_joined_with_rows_of_padding_between(steps):
    lens = list(map(len, steps["response_ids"]))
    support = [np.full((n, 2), turn, np.int32) for turn, n in enumerate(lens)]
    merged = merge_stepwise_output(steps | {"rollout_sample_support": support})
    joined = merged["rollout_sample_support"]
    assert [rows[:, 0].tolist() for rows in joined] == [[0, 0, -1, 1, 2, 2], [3], [4], [5]]
    assert {rows.dtype for rows in joined} == {np.dtype(np.int32)}
    assert joined[1] is support[3]
    listed = [rows.tolist() for rows in support]
    expected = port.merge_stepwise_output(steps | {"rollout_sample_support": listed})
    assert [rows.tolist() for rows in joined] == expected["rollout_sample_support"]
    support[0] = support[0][:1]
    with pytest.raises(AssertionError, match=r"rollout_sample_support\[0:3\] have 5 items"):
        merge_stepwise_output(steps | {"rollout_sample_support": support})


@pytest.mark.parametrize(
    ("change", "exception", "message"),
    [
        ({"is_last_step": None}, TypeError, r"is_last_step is None"),
        ({"is_last_step": [False] * 5}, IndexError, r"is_last_step has 5 items.*\b6 turns"),
        ({"is_last_step": [False] * 6}, AssertionError, r"is_last_step.*\b6 turns"),
        ({"is_last_step": [0, 0, 1, 0, 1, 1]}, AssertionError, r"is_last_step\[2\] is 1\b.*True"),
        (
            {"is_last_step": [False, True, True, False, True, True]},
            AssertionError,
            r"is_last_step\[1\] is True.*x_0.*False",
        ),
        ({"trajectory_ids": None}, AssertionError, "trajectory_ids"),
        (
            {"trajectory_ids": ["x", "x", "y", "z", "z", "u"]},
            AssertionError,
            r"trajectory_ids\[2\] is 'y'.*turn 0.*'x'",
        ),
        ({"trajectory_ids": ["x", "x", "x", "y", "y", "x"]}, AssertionError, r"'x'.*turn 5"),
        ({"trajectory_ids": ["x"] * 6}, AssertionError, r"is_last_step\[2\] is True.*'x'"),
        (
            {"rollout_expert_indices": []},
            AssertionError,
            "rollout_expert_indices not supported",
        ),
        ({"pixel_values": [None] * 6}, AssertionError, "pixel_values"),
        ({"image_grid_thw": [None] * 6}, AssertionError, "image_grid_thw"),
        ({"response_ids": []}, AssertionError, r"is_last_step.*\b0 turns"),
        ({"response_ids": None}, TypeError, "NoneType"),
        ({"prompt_token_ids": None}, TypeError, "prompt_token_ids is None"),
        ({"prompt_token_ids": [[1]] * 5}, IndexError, r"prompt_token_ids.*\b6 turns"),
        ({"rewards": None}, TypeError, "rewards is None"),
        ({"rewards": [0.5] * 5}, IndexError, r"rewards.*\b6 turns"),
        ({"rewards": [0.5] * 5 + [None]}, TypeError, r"rewards\[5\] is None"),
        ({"rewards": [0.5] * 5 + [[1.0]]}, AssertionError, r"rewards\[5:6\].*lists.*numbers"),
        ({"rewards": [[1.0]] + [0.5] * 5}, TypeError, "float"),
        (
            {"rewards": [[1.0], [1.0], [1.0]] + [[0.5]] * 3},
            AssertionError,
            r"rewards\[0:3\] have 4 items.*\b6 tokens",
        ),
        ({"loss_masks": None}, TypeError, "loss_masks is None"),
        ({"loss_masks": [[1]] * 6}, AssertionError, r"loss_masks\[0:3\] have 4 items.*\b6 tokens"),
        ({"rollout_logprobs": []}, IndexError, r"rollout_logprobs.*\b6 turns"),
        (
            {"rollout_logprobs": [[0.0] * 2] * 6},
            AssertionError,
            r"rollout_logprobs\[0:3\] have 7 items.*\b6 tokens",
        ),
        ({"extra": 5}, TypeError, r"extra is 5.*\b6 turns"),
        ({"extra": {"llm": [0.5] * 5}}, IndexError, r"extra\['llm'\] has 5 items.*\b6 turns"),
        ({"extra": "abc"}, IndexError, r"extra has 3 items.*\b6 turns"),
    ],
)
def test_what_is_refused(steps, change, exception, message):
    steps |= change
    with pytest.raises(exception) as expected:
        port.merge_stepwise_output(copy.deepcopy(steps))
    with pytest.raises(exception, match=message) as caught:
        merge_stepwise_output(steps)
    assert type(caught.value) is type(expected.value) is exception


@pytest.mark.parametrize(
    "key",
    ["prompt_token_ids", "response_ids", "rewards", "loss_masks", "is_last_step", "trajectory_ids"],
)
def test_a_key_that_is_missing(steps, key):
    del steps[key]
    with pytest.raises(AssertionError if key == "trajectory_ids" else KeyError, match=key):
        merge_stepwise_output(steps)
