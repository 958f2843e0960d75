"""A merge plan and its report, identity of trajectories, and input that cannot be merged."""

import io
import logging
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raising import raises
from restored_plans import restore_merge
from strategies import merge_options, trajectories
from turns import check_plan, last_steps, origins_of, turns

import fastcollate as fc
from fastcollate.testing.reference import merge_turns_loops

# Two rows of 2 + 5 and 4 + 1 tokens, then one of 1 + 1; before, 3 + 6 + 5 + 2.
TURNS = ["ab>c", "abcx>de", "abqq>r", "y>z"]
IDS = ["s", "s", "s", "t"]


def merge(*texts, **options):
    """Merge turns of one trajectory, if nothing else is said."""
    if "trajectory_ids" not in options:
        options.setdefault("is_last_step", last_steps(len(texts)))
    return fc.merge_turns(**turns(*texts), **options)


class Letters:
    """A tokenizer of which every token is a letter."""

    def decode(self, ids):
        return "".join(map(chr, ids))


def test_the_report_written_out():
    report = merge(*TURNS, trajectory_ids=IDS).report
    assert (report.num_trajectories, report.num_turns, report.num_rows) == (2, 4, 3)
    assert (report.tokens_before, report.tokens_after) == (16, 13)
    assert (report.padded_tokens_before, report.padded_tokens_after) == (4 * 6, 3 * 6)
    assert report.masked_tokens == 0
    assert report.rows_per_trajectory.tolist() == [2, 1]
    assert report.dropped == []
    (found,) = report.breaks
    assert type(found).__name__ == "Break"
    assert found._asdict() == {
        "turn": 2,
        "trajectory": 0,
        "position": 2,
        "expected": ord("c"),
        "found": ord("q"),
        "kind": "diverged",
        "realigned": False,
        "expected_ids": tuple(map(ord, "abcxde")),
        "found_ids": tuple(map(ord, "abqq")),
        "expected_text": None,
        "found_text": None,
        "trajectory_id": IDS[2],
        "hint": None,
    }
    assert repr(report) == "MergeReport: 4 turns in 3 rows, 1 break"


def test_the_text_around_a_break():
    report = merge("abcdefgh>ijklmnop", "abcdefghijkX>y", tokenizer=Letters()).report
    assert (report.breaks[0].expected_text, report.breaks[0].found_text) == ("ghijklmnop", "ghijkX")
    assert "ghijklmnop" in str(report)
    assert "ghijkX" in str(report)


def test_the_report_as_text():
    report = merge("ab>c", "xy>z", "x>w", "xw>v", trajectory_ids=list("ssst")).report
    text = str(report)
    assert [found.kind for found in report.breaks] == ["diverged", "shorter"]
    assert 0 < text.index("diverged") < text.index("shorter")
    assert len(text.splitlines()) > 3
    assert str(merge("ab>c").report)
    assert repr(merge("ab>c"))


def test_the_text_of_many_breaks_is_short():
    plan = merge(*[f"{chr(97 + turn % 20)}>b" for turn in range(1000)])
    assert len(plan.report.breaks) == 999
    assert len(str(plan.report).splitlines()) < 200


def test_breaks_are_logged(caplog):
    texts = ["a>b", "c>d", "e>f", "g>h", "i>j"]
    with caplog.at_level(logging.INFO, logger="fastcollate"):
        merge(*texts)
    assert not caplog.records
    with caplog.at_level(logging.DEBUG, logger="fastcollate"):
        merge(*texts)
    assert 1 <= len(caplog.records) <= 3
    assert all(record.name.startswith("fastcollate") for record in caplog.records)


@given(drawn=st.data())
def test_plans_go_through_files(drawn):
    data = drawn.draw(trajectories())
    options = {"is_last_step": data.is_last_step, **drawn.draw(merge_options())}
    plan = fc.merge_turns(data.turns.prompts, data.turns.responses, **options)
    file = io.BytesIO()
    np.savez(file, **plan.to_dict())
    file.seek(0)
    again = restore_merge(dict(np.load(file)))
    assert again == plan
    assert {table.dtype for table in plan.to_dict().values()} == {np.dtype(np.int64)}
    for name in ("num_turns", "num_rows", "num_trajectories"):
        assert getattr(again, name) == getattr(plan, name)
    for name in ("sources", "trajectories", "prompt_lens", "response_lens"):
        assert getattr(again, name).tolist() == getattr(plan, name).tolist()
    assert origins_of(again) == origins_of(plan)

    pickled = pickle.loads(pickle.dumps(plan))
    assert pickled == plan
    check_plan(pickled, merge_turns_loops(data.turns.prompts, data.turns.responses, **options))
    assert str(pickled.report) == str(plan.report)


@pytest.mark.parametrize(
    ("flags", "turn"), [([False, True, True, True], 1), ([False, False, False, True], 2)]
)
def test_flags_that_contradict_ids(flags, turn):
    with raises(rf"\b{turn}\b"):
        merge(*TURNS, trajectory_ids=IDS, is_last_step=flags)


def test_a_last_trajectory_without_a_last_step():
    flags = [False, False, True, False]
    for names in ({"is_last_step": flags}, {"is_last_step": flags, "trajectory_ids": IDS}):
        with raises("allow_unfinished=True"):
            merge(*TURNS, **names)
        plan = merge(*TURNS, **names, allow_unfinished=True)
        assert plan == merge(*TURNS, trajectory_ids=IDS)
    with raises("allow_unfinished=True"):
        merge("a>b", is_last_step=[False])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask_drift": "head"}, "'head'; pass 'tail', 'response', 'span'"),
        ({"mask_drift": ["tail"]}, "TypeError: mask_drift is"),
        ({"max_drift_tokens": -1}, "max_drift_tokens is -1"),
        ({"max_drift_tokens": 1.5}, "TypeError: max_drift_tokens is 1.5"),
        ({"mask_drift": "response", "fork_threshold": -1}, "fork_threshold is -1"),
    ],
)
def test_options_of_realigning(options, message):
    with raises(message):
        fc.planning.Merge("realign", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "greedy"}, "policy is 'greedy'; pass 'exact', 'branch', 'realign'"),
        ({"policy": None}, "TypeError: policy is None"),
        ({"policy": ["realign"]}, "TypeError: policy is"),
        ({"policy": np.array(["exact", "branch"])}, "TypeError: policy is"),
        ({"drop_untrainable": "no"}, "TypeError: drop_untrainable is 'no'; pass True or False"),
        ({"allow_unfinished": 2}, "TypeError: allow_unfinished is 2; pass True or False"),
        ({"tokenizer": 5}, "TypeError: tokenizer is 5"),
        ({"trajectory_ids": 5}, "TypeError: trajectory_ids is 5"),
        ({"trajectory_ids": "stst"}, "TypeError: trajectory_ids is 'stst'"),
        ({"trajectory_ids": np.array(3)}, "TypeError: trajectory_ids is"),
        ({"trajectory_ids": ["s"] * 3}, "trajectory_ids has 3 rows, but prompts has 4"),
        ({"is_last_step": last_steps(5)}, "is_last_step has 5 rows, but prompts has 4"),
        ({"is_last_step": 5}, "TypeError: is_last_step is 5"),
        ({"is_last_step": bytearray(4)}, "TypeError: is_last_step is"),
        ({"is_last_step": [None] * 4}, r"TypeError: is_last_step\[0\]"),
        ({"is_last_step": [0, 1, 1.0, 1]}, r"TypeError: is_last_step\[2\] is 1.0"),
        ({"is_last_step": [False, "x", False, True]}, r"TypeError: is_last_step\[1\]"),
        ({"is_last_step": None}, "trajectory_ids and is_last_step are None, so .*; pass one"),
        ({"loss_mask": [[1]] * 4, "drop_untrainable": True}, r"loss_mask\[1\]"),
        ({"loss_mask": [[1], [1, 1]], "drop_untrainable": True}, "loss_mask has 2"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be(options, message):
    with raises(message):
        merge(*TURNS, **options)


def test_uids_per_turn_of_a_step_are_those_of_trajectories():
    turns = [[1], [1, 2, 3], [4]], [[2], [5], [6]]
    plan = fc.merge_turns(*turns, trajectory_ids=[0, 0, 1])
    assert plan.num_rows == 2
    with pytest.raises(ValueError, match=r"uids\[1\] is 'b', but uids\[0\], of the same traj"):
        fc.plan_step(plan, uids=["a", "b", "c"], dp_size=1)
    assert fc.plan_step(plan, uids=["a", "a", "c"], dp_size=1).prompt_offsets.tolist() == [0, 1, 2]


ANEW = [[1, 2], [31], [32]]


@pytest.mark.parametrize("policy", ["exact", "branch", "realign"])
def test_prompts_without_the_turns_before_them_are_warned_of(policy):
    """As when each turn has its new observation alone."""
    responses, given = [[3, 4], [5, 6, 7], [7, 2]], {"trajectory_ids": ["a"] * 3}
    message = "merging joined none of 3 turns: every prompt is shorter than the turn before it"
    with pytest.warns(UserWarning, match=message):
        fc.merge_turns(ANEW, responses, policy=policy, **given)
    with pytest.warns(UserWarning, match=message):
        fc.build_batch(ANEW, responses, pad_token_id=0, merge=policy, **given)


def test_other_turns_that_are_not_joined_are_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merge("ab>c", "abxyz>d")  # longer: the turn was changed
        merge("ab>c", "abc>d", "x>d")  # some are joined
        fc.merge_turns(ANEW, ANEW, trajectory_ids=[1, 2, 3])
