"""Merging of many turns: breaks that are not read, and Ctrl-C."""

import pickle
from functools import partial

import numpy as np
import pytest
from interrupting import NEEDS_TIMERS, longest_wait

import fastcollate as fc
from fastcollate.plan import merge_report


def test_sizes_make_no_break(monkeypatch):
    """Metrics, the forms of a batch and of its report count breaks without making them."""
    made = []
    make = merge_report.make_break
    monkeypatch.setattr(merge_report, "make_break", lambda *entry: made.append(1) or make(*entry))
    prompts = [np.append(1, np.tile([2, 3], turn)) for turn in range(50)]  # responses are [2, 2]
    batch = fc.build_batch(
        prompts * 4,
        [[2, 2]] * 200,
        trajectory_ids=np.repeat(range(4), 50),
        pad_token_id=0,
        merge="exact",
        array_type="numpy",
    )
    assert batch.metrics["generate/num_merge_breaks"] == 196
    report = batch.merge_plan.report
    assert "196 breaks" in repr(report)
    assert repr(batch)
    assert (len(report.breaks), report.breaks.kinds) == (196, [("drift", 196)])
    assert made == []
    assert "breaks: 196 (196 drift)" in str(report)
    assert len(made) == merge_report.SHOWN_BREAKS
    assert report.breaks[-1] == list(report.breaks)[195]
    assert report.breaks[49].trajectory == 1
    assert report.breaks[1:3] == [report.breaks[1], report.breaks[2]]
    assert [one.turn for one in report.breaks.firsts(2)] == [
        first + turn for first in range(0, 200, 50) for turn in (1, 2)
    ]
    with pytest.raises(IndexError):
        report.breaks[196]
    again = pickle.loads(pickle.dumps(batch.merge_plan))
    assert again.report.breaks == report.breaks


OPTIONS = [
    {"policy": "exact"},
    {"policy": "branch"},
    {"policy": fc.planning.Merge("realign", fork_threshold=None)},
    {"policy": fc.planning.Merge("realign", mask_drift="span")},
]


@NEEDS_TIMERS
@pytest.mark.parametrize("kind", [list, np.array])
@pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda options: "-".join(map(str, options.values()))
)
def test_signals_are_handled_all_along(options, kind):
    """A signal at any time of a call of a second is handled within 0.2 s of processor time."""
    turns = 1_000_000
    columns = [kind([1])] * turns, [kind([2])] * turns, np.arange(turns) // 1000
    names = ("prompts", "responses", "trajectory_ids")
    merge = partial(fc.merge_turns, **dict(zip(names, columns, strict=True)), **options)
    assert any(longest_wait(merge) < 0.2 for _ in range(3))
