"""A merge plan and its report, identity of trajectories, and input that cannot be merged."""

import io
import logging
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from restored_plans import restore_merge
from strategies import TrajectoryID, merge_options, trajectories
from turns import check_plan, last_steps, origins_of, turns

import fastcollate as fc
from fastcollate.testing.reference import merge_turns_loops

# Two rows of 2 + 5 and 4 + 1 tokens, then one of 1 + 1; before, 3 + 6 + 5 + 2.
TURNS = ["ab>c", "abcx>de", "abqq>r", "y>z"]
IDS = ["s", "s", "s", "t"]
FLAGS = [False, False, True, True]


def merge(*texts, **options):
    """Merge turns of one trajectory, if nothing else is said."""
    if "trajectory_ids" not in options:
        options.setdefault("is_last_step", last_steps(len(texts)))
    return fc.merge_turns(**turns(*texts), **options)


def raises(match, exception=ValueError):
    return pytest.raises(exception, match=match)


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


def test_metrics():
    metrics = merge(*TURNS, trajectory_ids=IDS).report.metrics
    assert metrics == {
        "generate/num_seq_before_merge": 4,
        "generate/num_seq_after_merge": 3,
        "generate/num_tokens_before_merge": 16,
        "generate/num_tokens_after_merge": 13,
        "generate/num_merge_breaks": 1,
        "generate/num_tokens_masked_by_merge": 0,
    }
    assert {type(value) for value in metrics.values()} == {float}


@pytest.mark.parametrize(("how", "masked"), [("tail", 3), ("response", 4), ("span", 1)])
def test_masked_tokens(how, masked):
    plan = merge("a>bcde", "abxde>f", policy=fc.planning.Merge("realign", mask_drift=how))
    assert plan.report.masked_tokens == masked
    assert plan.report.metrics["generate/num_tokens_masked_by_merge"] == masked


def test_the_ids_around_a_break():
    text = "abcdefghijklmnopqrstuvwxyz"
    found = merge(f"{text[:8]}>{text[8:]}", f"{text[:11]}X>y").report.breaks[0]
    assert found.position == 11
    assert bytes(found.expected_ids).decode() == text[6:17]
    assert bytes(found.found_ids).decode() == text[6:11] + "X"


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


def test_masked_tokens_do_not_train():
    texts, ids = ["a>b", "a>c", "d>e"], ["s", "s", "t"]
    options = {"policy": "realign", "trajectory_ids": ids, "drop_untrainable": True}
    plan = merge(*texts, **options, loss_mask=[[1], [0], [1]])
    assert plan.sources.tolist() == [2]
    assert plan.report.dropped == [0]
    with raises("drop_untrainable"):
        merge(*texts, **options, loss_mask=[[1], [0], [0]])


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


def test_plans_are_equal_by_what_they_say():
    plan = merge("ab>c", "abcx>de")
    assert plan == merge("ab>c", "abcx>de")
    assert plan == merge("AB>C", "ABCX>DE")  # there is no token in a plan
    assert plan != merge("ab>c", "abcxy>de")
    assert plan != merge("ab>c", "abxx>de")
    assert plan != "plan"


@pytest.mark.parametrize("name", ["pieces", "piece_offsets"])
def test_tables_that_are_no_plan(name):
    tables = merge(*TURNS, trajectory_ids=IDS).to_dict()
    with raises(name, (KeyError, TypeError, ValueError)):
        restore_merge({key: table for key, table in tables.items() if key != name})
    with pytest.raises((TypeError, ValueError)):
        restore_merge({**tables, name: tables[name] + 100})


@pytest.mark.parametrize(
    "make",
    [str, lambda index: index, lambda index: TrajectoryID("a", index), lambda index: [index]],
)
@pytest.mark.parametrize("outer", [list, tuple])
def test_ids_of_any_kind(make, outer):
    ids = outer([make(0), make(0), make(0), make(1)])
    plan = merge(*TURNS, trajectory_ids=ids)
    for names in ({"is_last_step": FLAGS}, {"trajectory_ids": ids, "is_last_step": FLAGS}):
        assert merge(*TURNS, **names) == plan
    assert plan.sources.tolist() == [1, 2, 3]
    assert plan.trajectories.tolist() == [0, 0, 1]


@pytest.mark.parametrize("outer", [list, tuple, np.array])
def test_flags_of_any_kind(outer):
    assert merge(*TURNS, is_last_step=outer(FLAGS)) == merge(*TURNS, trajectory_ids=IDS)


def test_an_id_that_comes_back():
    with raises(r"'s'.*\b2\b|\b2\b.*'s'"):
        merge(*TURNS, trajectory_ids=["s", "t", "s", "t"])
    ids = [TrajectoryID("task", index) for index in (0, 1, 2, 1)]
    with raises(r"repetition_id=1.*\b3\b|\b3\b.*repetition_id=1"):
        merge(*TURNS, trajectory_ids=ids)


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


def test_neither_ids_nor_flags():
    with raises("trajectory_ids.*is_last_step|is_last_step.*trajectory_ids"):
        fc.merge_turns(**turns("a>b"))


@pytest.mark.parametrize("name", ["trajectory_ids", "is_last_step"])
@pytest.mark.parametrize("count", [0, 3, 5])
def test_different_counts(name, count):
    values = {"trajectory_ids": ["s"] * count, "is_last_step": last_steps(count)}
    with raises(rf"{name}\b.*\b{count}\b.*\b4\b|{name}\b.*\b4\b.*\b{count}\b"):
        merge(*TURNS, **{name: values[name]})


def test_different_counts_of_turns():
    both = turns("a>b", "c>d")
    with raises(r"responses\b.*\b1\b.*\b2\b"):
        fc.merge_turns(both["prompts"], both["responses"][:1], trajectory_ids=["s", "s"])


@pytest.mark.parametrize(
    ("options", "exception", "message"),
    [
        ({"mask_drift": "head"}, ValueError, "'head'; pass 'tail', 'response', 'span'"),
        ({"mask_drift": ["tail"]}, TypeError, "mask_drift is"),
        ({"max_drift_tokens": -1}, ValueError, "max_drift_tokens is -1"),
        ({"max_drift_tokens": 1.5}, TypeError, "max_drift_tokens is 1.5"),
        ({"mask_drift": "response", "fork_threshold": -1}, ValueError, "fork_threshold is -1"),
    ],
)
def test_options_of_realigning(options, exception, message):
    with pytest.raises(exception, match=message):
        fc.planning.Merge("realign", **options)


@pytest.mark.parametrize(
    ("options", "exception", "message"),
    [
        ({"policy": "greedy"}, ValueError, "policy is 'greedy'"),
        ({"policy": None}, (TypeError, ValueError), "policy is None"),
        ({"trajectory_ids": 5}, TypeError, "trajectory_ids"),
        ({"trajectory_ids": "stst"}, TypeError, "trajectory_ids"),
        ({"is_last_step": 5}, TypeError, "is_last_step"),
        ({"is_last_step": [None] * 4}, TypeError, r"is_last_step\[0\]"),
        ({"is_last_step": [False, "x", False, True]}, TypeError, r"is_last_step\[1\]"),
        (
            {"loss_mask": [[1], [1], [1], [1]], "drop_untrainable": True},
            ValueError,
            r"loss_mask\[1\]",
        ),
        ({"loss_mask": [[1], [1, 1]], "drop_untrainable": True}, ValueError, "loss_mask"),
        ({"tokenizer": 5}, (AttributeError, TypeError), "tokenizer|decode"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be(options, exception, message):
    with raises(message, exception):
        merge(*TURNS, **options)


@pytest.mark.parametrize("token", ["x", None, 1.5, 2**63])
@pytest.mark.parametrize(("name", "turn"), [("prompts", 1), ("responses", 0)])
def test_what_is_no_token(name, turn, token):
    both = turns(*TURNS)
    both[name][turn][0] = token
    with raises(rf"{name}\[{turn}\]\[0\]", (TypeError, ValueError)):
        fc.merge_turns(**both, trajectory_ids=IDS)


@pytest.mark.parametrize("rows", [None, 5, [1, 2], [[1], None]])
def test_what_are_no_rows(rows):
    for both in ((rows, [[1], [2]]), ([[1], [2]], rows)):
        with raises("prompts|responses", (TypeError, ValueError)):
            fc.merge_turns(*both, trajectory_ids=["s", "s"])


def test_uids_per_turn_of_a_step_are_those_of_trajectories():
    turns = [[1], [1, 2, 3], [4]], [[2], [5], [6]]
    plan = fc.merge_turns(*turns, trajectory_ids=[0, 0, 1])
    assert plan.num_rows == 2
    with pytest.raises(ValueError, match=r"uids\[1\] is 'b', but uids\[0\], of the same traj"):
        fc.plan_step(plan, uids=["a", "b", "c"], dp_size=1)
    assert fc.plan_step(plan, uids=["a", "a", "c"], dp_size=1).prompt_offsets.tolist() == [0, 1, 2]
