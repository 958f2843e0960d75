"""`fastcollate verify`: what is wrong is found, with its seed."""

import json
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given

import fastcollate as fc
from fastcollate.testing import batches, verify
from fastcollate.testing.verifying import running, subject_of
from fastcollate.testing.verifying.subjects import Peer, find_installed


@pytest.fixture(autouse=True)
def few_cases(monkeypatch):
    """Draw less, since `make parity` compares on thousands of cases."""
    monkeypatch.setattr(running, "CASES_PER_SEED", 2)


def test_nothing_differs():
    pytest.importorskip("torch")
    found = verify(0.01)
    assert not found.differences
    functions = {line.function: line.outcome for line in found.lines}
    assert functions.keys() >= subject_of("references").comparisons.keys()
    assert {"planning.pack", "plan_step", "merge_turns", "build_batch(layout=Tree)"} <= {*functions}
    for outcome in functions.values():
        assert outcome.missing is not None or outcome.cases >= 2 * running.CASES_PER_SEED
    assert fc.__version__ in found.machine["fastcollate"]
    assert np.__version__ in found.machine["libraries"]
    assert "cases  same" in repr(found)


def test_a_wrong_batch_is_found_again_by_its_seed(monkeypatch):
    right = fc.build_batch

    def wrong(*args, **kwargs):
        batch = right(*args, **kwargs)
        if batch.input_ids.size > 3:
            batch.loss_mask.flat[-1] += 1
        return batch

    monkeypatch.setattr(fc, "build_batch", wrong)
    monkeypatch.setattr(running, "CASES_PER_SEED", 20)
    comparison = subject_of("references").comparisons["build_batch"]
    found = running.compare(comparison, Peer(""), 0, seed=5).difference
    assert "the result['loss_mask']" in found
    seed = int(found.split()[1].rstrip(":"))
    assert running.compare(comparison, Peer(""), 0, seed).difference == found


@pytest.mark.parametrize("function", subject_of("references").comparisons)
def test_a_broken_function_is_found(function, monkeypatch):
    def broken(*args, **kwargs):
        raise SystemError("broken")

    path, _, name = function.partition("(")[0].rpartition(".")
    owner = {"": fc, "planning": fc.planning, "Batch": fc.Batch}[path]
    monkeypatch.setattr(owner, name, broken)
    comparison = subject_of("references").comparisons[function]
    found = running.compare(comparison, Peer(""), 0, seed=0).difference
    assert "SystemError: broken" in found


def test_memory_that_runs_out_is_no_difference(monkeypatch):
    def take(*args, **kwargs):
        raise MemoryError("none is left")

    monkeypatch.setattr(fc, "build_batch", take)
    for comparison in (subject_of("references").comparisons["build_batch"], take):
        with pytest.raises(MemoryError, match="none is left"):
            running.compare(comparison, Peer(""), 0, seed=0)


def test_the_command(monkeypatch, capsys):
    pytest.importorskip("typer")
    run = import_module("fastcollate.cli.app").run
    verification = import_module("fastcollate.testing.verifying.verification")
    monkeypatch.setattr(verification, "FRAMEWORKS", ())
    assert run(["verify", "--seconds", "0.01"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("comparing for 0.01 seconds, or longer until each function has 4 cases")
    assert "plain references" in shown
    assert "times as fast" in shown

    def broken(*args, **kwargs):
        raise SystemError("broken")

    monkeypatch.setattr(fc.planning, "pack", broken)
    assert run(["verify", "--seconds", "0.01"]) == 1
    shown = capsys.readouterr().out
    assert "plain references, planning.pack, --seed 0: " in shown
    assert run(["verify", "--seconds", "0.01", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"]
    wrong = [one["function"] for one in found["functions"] if one["difference"] is not None]
    assert wrong == ["planning.pack"]


def test_what_cannot_be_compared(capsys):
    pytest.importorskip("typer")
    run = import_module("fastcollate.cli.app").run
    assert run(["verify", "--framework", "slime"]) == 2
    assert "--framework is 'slime'; pass some of" in capsys.readouterr().err
    assert run(["verify", "--seconds", "0"]) == 2
    assert "--seconds is 0.0; pass a finite number of seconds above 0" in capsys.readouterr().err
    if find_installed("skyrl") is None:
        assert run(["verify", "--framework", "skyrl"]) == 1
        assert "SkyRL is not installed; install it" in capsys.readouterr().err


def test_ours_is_not_compared_with_ours():
    pytest.importorskip("transformers")
    with (
        import_module("fastcollate.compat.transformers").patch(),
        pytest.raises(RuntimeError, match="transformers is patched, so its functions are ours"),
    ):
        verify(0.01, frameworks=["transformers"])


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import fastcollate.testing; fastcollate.testing.verify", "pip install hypothesis"),
        ("from fastcollate.testing import batches", "pip install hypothesis"),
    ],
)
def test_hypothesis_is_missing(code, expected):
    code = f"import sys; sys.modules['hypothesis'] = None; {code}"
    run = subprocess.run(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False
    )
    assert run.returncode == 1
    assert expected in run.stderr.splitlines()[-1]


def test_torch_is_missing():
    def comparison(draw, peer):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    outcome = running.compare(comparison, Peer(""), 0, seed=0)
    assert (outcome.cases, outcome.difference, outcome.missing) == (0, None, "torch")


@given(batches(max_rows=3, max_len=2, max_long_len=4))
def test_batches_can_be_built(columns):
    assert 1 <= len(columns["prompts"]) <= 3
    batch = fc.build_batch(**columns, pad_token_id=0, array_type="numpy")
    assert len(batch.prompt_lens) == len(columns["prompts"])
