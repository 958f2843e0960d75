"""Merging of many turns: breaks that are not read, and Ctrl-C."""

import os
import pickle
import signal
import subprocess
import time
from functools import cache

import numpy as np
import pytest

import fastcollate as fc
from fastcollate.plan import merge_report


@cache
def storm(turns, trajectories=1):
    """Make turns of which each has the response before it otherwise, as one column of memory."""
    prompts, responses = [], []
    for _ in range(trajectories):
        prompt = [1]
        for turn in range(turns):
            prompts.append(np.array(prompt))
            responses.append(np.array([2, 2]))
            prompt = [*prompt, 2, 3 + turn]
    ids = np.repeat(np.arange(trajectories), turns)
    return {"prompts": prompts, "responses": responses, "trajectory_ids": ids}


def test_sizes_make_no_break(monkeypatch):
    """Metrics, the forms of a batch and of its report count breaks without making them."""
    made = []
    make = merge_report.make_break
    monkeypatch.setattr(merge_report, "make_break", lambda *entry: made.append(1) or make(*entry))
    turns = storm(50, trajectories=4)
    batch = fc.build_batch(**turns, pad_token_id=0, merge="exact", array_type="numpy")
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


@cache
def many(turns):
    """Make turns of one token, a thousand to a trajectory."""
    columns = {"prompts": [np.array([1])] * turns, "responses": [np.array([2])] * turns}
    return {**columns, "trajectory_ids": np.arange(turns) // 1000}


class Interrupted(Exception):
    """Exception of the signal handler."""


def wait_after_signal(call, after):
    """Send SIGINT the given seconds into a call; return the time that it then goes on."""

    is_called = True

    def handler(*_):
        if is_called:
            raise Interrupted

    before = signal.signal(signal.SIGINT, handler)
    # Another process: threads of this one may wait for the interpreter as long as the call does.
    script = f"sleep {after:.3f}; date +%s.%N; kill -INT {os.getpid()}"
    try:
        with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as kill:
            try:
                call()
                is_called = False
                return None
            except Interrupted:
                return time.time() - float(kill.stdout.read())
    finally:
        signal.signal(signal.SIGINT, before)


OPTIONS = [
    {"policy": "exact"},
    {"policy": "branch"},
    {"policy": fc.planning.Merge("realign", fork_threshold=None)},
    {"policy": fc.planning.Merge("realign", mask_drift="span")},
]


@pytest.mark.parametrize("kind", ["arrays", "lists"])
@pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda options: "-".join(map(str, options.values()))
)
@pytest.mark.parametrize("shape", ["storm", "many"])
def test_signals_are_answered(shape, options, kind):
    """At any time of the call: wherever in it the signal comes, it ends within 0.2 s."""
    turns = storm(3000) if shape == "storm" else many(100_000)
    if kind == "lists":
        lists = {name: [row.tolist() for row in turns[name]] for name in ("prompts", "responses")}
        turns = {**turns, **lists}
    fc.merge_turns(**turns, **options)
    start = time.perf_counter()
    fc.merge_turns(**turns, **options)
    took = time.perf_counter() - start
    waits = [
        wait_after_signal(lambda: fc.merge_turns(**turns, **options), took * part)
        for part in (0.1, 0.6)
    ]
    assert any(wait is not None for wait in waits) or took < 0.02
    # Under 0.2 seconds where nothing else runs.
    assert max(wait for wait in [*waits, 0.0] if wait is not None) < 1
