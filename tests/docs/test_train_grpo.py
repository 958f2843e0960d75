"""The example trainer: merged and packed it learns the same as without, on any number of ranks."""

import os
import re
import sys
import tempfile
from dataclasses import replace
from datetime import timedelta
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from local_ray import local_ray

import fastcollate as fc
from grpo import command_line
from grpo.command_line import read_command_line
from grpo.game import PAD
from grpo.learning import Learner
from grpo.options import Options
from policy import response_log_probs
from train_grpo import train, train_ddp

# So large steps that what is learned shows in the losses at once.
OPTIONS = Options(
    steps=3, prompts=8, samples=4, prompts_per_mini_batch=2, learning_rate=0.01, dtype="float64"
)
EXAMPLES = Path(__file__).parents[2] / "examples"
PLAIN = {"merge": False, "pack": False}


@pytest.fixture(scope="module")
def plain():
    """Train on a padded row per turn."""
    reports = train(replace(OPTIONS, **PLAIN, prefetch=False))
    losses = [loss for report in reports for loss in report.losses]
    assert np.abs(losses).mean() > 0.02
    return reports


def assert_learned_the_same(reports, expected):
    assert len(reports) == len(expected)
    for report, other in zip(reports, expected, strict=True):
        assert (report.turns, report.reward) == (other.turns, pytest.approx(other.reward))
        assert report.losses == pytest.approx(other.losses, rel=0, abs=1e-9)


@pytest.mark.parametrize(("merge", "pack", "prefetch"), [*product([True, False], repeat=3)][:-1])
def test_losses_are_those_of_a_padded_row_per_turn(plain, merge, pack, prefetch):
    reports = train(replace(OPTIONS, merge=merge, pack=pack, prefetch=prefetch))
    assert_learned_the_same(reports, plain)
    for report, other in zip(reports, plain, strict=True):
        assert (report.rows < report.turns) == merge
        assert (report.positions < other.positions) == (merge or pack)


@pytest.mark.parametrize("merge", [True, False])
def test_trees_learn_the_same(plain, merge):
    assert_learned_the_same(train(replace(OPTIONS, merge=merge, tree=True)), plain)


@pytest.mark.parametrize("options", [PLAIN, {}, {"tree": True}], ids=["padded", "packed", "tree"])
def test_log_probs_are_those_that_the_player_had(options):
    chosen = replace(OPTIONS, **options)
    learner = Learner(chosen)
    columns = learner.play(0).columns(chosen.samples)
    batch = fc.build_batch(
        **columns,
        pad_token_id=PAD,
        merge=chosen.merging,
        layout=chosen.layout,
        position_ids="zero",
    )
    found = response_log_probs(learner.policy, batch) * batch.loss_mask
    torch.testing.assert_close(found, batch.logprobs.double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("options", [PLAIN, {}], ids=["padded", "packed"])
def test_losses_are_those_of_batches_as_wide_as_the_step(plain, options):
    reports = train(replace(OPTIONS, **options, narrow=True))
    assert_learned_the_same(reports, plain)
    as_wide = train(replace(OPTIONS, **options)) if options == {} else plain
    positions = [sum(report.positions for report in run) for run in (reports, as_wide)]
    assert positions[0] < positions[1]


def test_the_reward_rises():
    reports = train(replace(Options(), steps=30))
    rewards = [report.reward for report in reports]
    assert np.mean(rewards[-10:]) > np.mean(rewards[:10]) + 0.05


def test_two_processes_learn_the_same(plain, tmp_path, monkeypatch):
    folder = tmp_path / "100%20 sure"  # where processes meet, as some users' folders are called
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    assert_learned_the_same(train_ddp(replace(OPTIONS, ranks=2, narrow=True, balance=True)), plain)


@pytest.fixture(scope="module")
def cluster():
    """Start Ray on this machine alone, whose workers find the example."""
    paths = [str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        with local_ray(2) as ray:
            yield ray


ON_RAY = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")  # its own


@ON_RAY
def test_actors_of_ray_learn_the_same(plain, cluster):
    """Of padded turns, which differ most from what two processes have."""
    from grpo.on_ray import train_on_ray

    options = replace(OPTIONS, **PLAIN, prefetch=False, ranks=2, balance=False)
    assert_learned_the_same(train_on_ray(options), plain)


@ON_RAY
def test_trees_of_actors_of_ray_learn_the_same(plain, cluster):
    from grpo.on_ray import train_on_ray

    reports = train_on_ray(replace(OPTIONS, tree=True, ranks=2))
    assert_learned_the_same(reports, plain)


@ON_RAY
def test_waiting_for_actors_of_ray_ends(cluster, monkeypatch):
    from grpo import on_ray

    monkeypatch.setattr(on_ray, "TIMEOUT", timedelta(seconds=0.1))
    on_too_many_cpus = cluster.remote(num_cpus=100)(lambda: None)
    with pytest.raises(TimeoutError, match="a worker has not answered within 0:00:00"):
        on_ray.answers([on_too_many_cpus.remote()])


# The command line


def test_the_command_line(monkeypatch):
    given = ["--no-merge", "--ddp", "--steps", "7", "--dtype", "float64", "--narrow"]
    given += ["--no-balance"]
    monkeypatch.setattr(sys, "argv", ["train_grpo.py", *given])
    options = Options(merge=False, ranks=2, steps=7, dtype="float64", narrow=True, balance=False)
    assert read_command_line("") == (options, "ddp", None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--steps", "0"], "steps is 0; pass 1 or more"),
        (["--seconds", "-1"], "seconds is -1.0; pass 0 or more"),
        (["--seconds", "nan"], "seconds is nan; pass 0 or more"),
        (["--seed", "-1"], "seed is -1; pass 0 or more"),
        (["--device", "nowhere"], "--device: 'nowhere' cannot be used: "),
        (["--ray"], "--ray: Ray is not installed; pip install"),
        (["--plot", "run.png"], "--plot: .*matplotlib"),
    ],
)
def test_what_cannot_work_is_said_at_once(given, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train_grpo.py", *given])
    monkeypatch.setattr(command_line, "find_spec", lambda name: None)
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were missing
    with pytest.raises(SystemExit):
        read_command_line("")
    assert re.search(f"error: .*{message}", capsys.readouterr().err)
