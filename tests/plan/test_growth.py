"""Growth of processor time: ten times the work takes at most fifteen times as long."""

from time import process_time

import numpy as np
import pytest

import fastcollate as fc
from fastcollate.compat.trl import TreeRow


def column(rows, width):
    values = np.arange(rows * width, dtype=np.int32) * 7919 % 97
    return fc.Ragged(values, np.arange(rows + 1) * width)


def drop(items):
    """Make all items, and keep none: collecting garbage would take its own time."""
    for _ in items:
        pass


def all_shards(shards):
    step = fc.plan_step(np.full(2 * shards, 4), dp_size=shards)
    return lambda: drop(step.shard(0, rank) for rank in range(shards))


def audit_of_shards(shards):
    turns, responses = column(8 * shards, 2), column(8 * shards, 2)
    step = fc.plan_step(np.full(8 * shards, 4), dp_size=shards)
    taken = [step.shard(0, rank) for rank in range(shards)]
    return lambda: step.audit(taken, turns, responses)


def reports(trajectories):
    turns = 8 * trajectories
    ids = np.arange(turns) // 8
    return fc.merge_turns(
        column(turns, 6), column(turns, 4), trajectory_ids=ids, policy="branch"
    ).report


def all_breaks(trajectories):
    report = reports(trajectories)
    assert len(report.breaks) == 7 * trajectories
    return lambda: drop(report.breaks)


def all_trees(trajectories):
    report = reports(trajectories)
    return lambda: drop(report.tree(index) for index in range(trajectories))


def tree_rows(samples):
    """A star whose branches fork again: a scan of branches would be quadratic."""
    torch = pytest.importorskip("torch")
    made = [
        {
            "input_ids": torch.tensor([7, index // 2, index, 8]),
            "completion_mask": torch.ones(4, dtype=torch.bool),
            "old_log_probs": torch.zeros(4),
            "advantage": 1.0,
            "group_id": 0,
        }
        for index in range(samples)
    ]

    def plan():
        row = TreeRow()
        for sample in made:
            assert row.fits(sample, 4 * samples)
            row.add(sample)
        row.pack()

    return plan


def seconds(call):
    def once():
        start = process_time()
        call()
        return process_time() - start

    return min(once() for _ in range(4))


@pytest.mark.alone
@pytest.mark.parametrize(
    ("make", "count"),
    [
        (all_shards, 1500),
        (audit_of_shards, 400),
        (all_breaks, 1500),
        (all_trees, 1500),
        (tree_rows, 1000),
    ],
)
def test_growth(make, count):
    # Other programs may run meanwhile.
    ratios = (seconds(make(10 * count)) / seconds(make(count)) for _ in range(3))
    assert any(ratio <= 15 for ratio in ratios)
