"""The comparison with frameworks covers all of compat, and finds and names what differs."""

import itertools
import os
import re
import subprocess
import sys
import types
from importlib import import_module

import numpy as np
import pytest
from hypothesis import strategies as st

from fastcollate.compat.versions import VERIFIED
from frameworks.parity import NAMES, framework, running
from frameworks.parity.__main__ import main
from frameworks.parity.differences import first_difference
from frameworks.parity.framework import Case, Framework, Peer
from frameworks.parity.running import CASES_PER_SEED, compare

pytest.importorskip("torch")
pytest.importorskip("pyarrow")

FRAMEWORKS = {name: framework(name) for name in NAMES}


def compat_of(name):
    return import_module(f"fastcollate.compat.{name}")


def peer_of(name):
    """Return the installed framework; for NeMo-RL, which is not on PyPI, our `compat` module."""
    if (peer := FRAMEWORKS[name].peer()) is not None:
        return peer
    if name != "nemo_rl":
        pytest.skip(f"needs `{FRAMEWORKS[name].download}`")
    module = types.SimpleNamespace(**vars(compat_of(name)))
    return Peer("none", "ours", lambda name: module)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_function_is_compared_or_a_reason_is_given(name):
    compared = {
        function for names in FRAMEWORKS[name].comparisons for function in names.split(", ")
    }
    not_compared = FRAMEWORKS[name].not_compared
    functions = set(compat_of(name).__all__) - {"patch", "unpatch"}
    assert functions <= compared | not_compared.keys()
    assert compared.isdisjoint(not_compared)
    assert VERIFIED.keys() == FRAMEWORKS.keys()


@pytest.fixture
def few_cases(monkeypatch):
    """Draw less, since `make parity` compares on thousands of cases."""
    monkeypatch.setattr(running, "CASES_PER_SEED", 4)


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize("name", NAMES)
def test_nothing_differs(name):
    peer = peer_of(name)
    for comparison in FRAMEWORKS[name].comparisons.values():
        outcome = compare(comparison, peer, 0, seed=0)
        assert outcome.difference is None
        assert outcome.cases >= 1


BREAKABLE = [
    (name, names, function)
    for name in NAMES
    for names in FRAMEWORKS[name].comparisons
    for function in names.split(", ")
    if function in compat_of(name).__all__
]


@pytest.mark.usefixtures("few_cases")
@pytest.mark.parametrize(("name", "names", "function"), BREAKABLE)
def test_a_broken_function_is_found(name, names, function, monkeypatch):
    peer = peer_of(name)

    def broken(*args, **kwargs):
        raise SystemError("broken")

    monkeypatch.setattr(compat_of(name), function, broken)
    outcome = compare(FRAMEWORKS[name].comparisons[names], peer, 0, seed=0)
    assert "ours raises" in outcome.difference


def test_a_wrong_value_is_named(monkeypatch, capsys):
    import pyarrow as pa

    peer = peer_of("trl")
    compat = compat_of("trl")
    right = compat.pack_dataset

    def wrong(table, seq_length, strategy):
        packed = right(table, seq_length, strategy)
        rows = packed["input_ids"].to_pylist()
        rows[0][-1] += 1
        column = pa.array(rows, packed["input_ids"].type)
        return packed.set_column(packed.column_names.index("input_ids"), "input_ids", column)

    monkeypatch.setattr(compat, "pack_dataset", wrong)
    assert main(["trl", "--seconds", "0.01", "--seed", "3"]) == 1
    printed = capsys.readouterr().out
    assert "DIFFERS" in printed
    expected = (
        "pack_dataset, --seed 3: the result['input_ids'][0][0]: theirs is 0, ours 1\n  input_"
    )
    assert f"TRL {peer.version}, {expected}" in printed


LISTS = Framework("Python", "python")


@LISTS.compares("sorted")
def sorted_lists(draw, python):
    values = draw(st.lists(st.integers(0, 9)))

    def ours():
        return sorted(values) if len(values) < 4 else sorted(values)[::-1]

    return Case(theirs=lambda: python("builtins").sorted(values), ours=ours, given={"it": values})


def test_a_difference_has_its_seed_and_its_smallest_case():
    python = Peer("3", "here", import_module)
    found = compare(sorted_lists, python, 60, seed=0).difference
    assert found.startswith("--seed ")
    assert found.endswith(": the result[0]: theirs is 0, ours 1\n  it=[0, 0, 0, 1]")
    seed = int(found.split()[1].rstrip(":"))
    again = compare(sorted_lists, python, 0, seed)
    assert again.difference == found
    assert again.cases < CASES_PER_SEED


def test_each_seed_has_its_own_cases(monkeypatch):
    drawn = set()

    def case(draw, peer):
        drawn.add(draw(st.integers(0, 2**60)))
        return Case(lambda: 0, lambda: 0, {})

    clock = itertools.count()  # 0 after the first case, then 1, 2, ... after each seed
    monkeypatch.setattr(running, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    assert compare(case, None, 3, seed=0).cases == 3 * CASES_PER_SEED
    assert len(drawn) > 2 * CASES_PER_SEED


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        (lambda: 1, lambda: 1 / 0, "ours raises ZeroDivisionError: division by zero"),
        (lambda: 1 / 0, lambda: 1, "theirs raises ZeroDivisionError: division by zero, ours does"),
        (lambda: 1 / 0, lambda: [][0], "theirs raises ZeroDivisionError.*, ours IndexError: list"),
        (lambda: 1 / 0, lambda: 2 / 0, "None"),
    ],
)
def test_errors_are_compared(theirs, ours, expected):
    outcome = compare(lambda draw, peer: Case(theirs, ours, {}), None, 0, seed=0)
    assert re.search(expected, str(outcome.difference))


def test_a_case_that_cannot_be_made_is_reported():
    def moved(draw, peer):
        return peer("no_such_module")

    found = compare(moved, Peer("3", "here", import_module), 0, seed=5).difference
    assert found == (
        "--seed 5: no comparison: ModuleNotFoundError: No module named 'no_such_module'"
    )


def test_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(Framework, "peer", lambda self: None)
    assert main(["trl"]) == 1
    assert main([]) == 1
    line = "TRL: nothing to compare with; install it, or run `make peers`\n"
    assert capsys.readouterr().out.count(line) == 2
    with pytest.raises(SystemExit):
        main(["slime"])
    assert "unknown framework slime; pass some of nemo_rl," in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_times_that_are_not_positive_and_finite(seconds, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["trl", "--seconds", seconds])
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.endswith(f"seconds is {float(seconds)}; pass a number above 0")


def test_ctrl_c(monkeypatch):
    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Framework, "peer", interrupt)
    assert main(["trl"]) == 130


WITHOUT = """
import sys
sys.modules[{name!r}] = None  # Python then acts as if it were not installed
from frameworks.parity.__main__ import main
sys.exit(main(["verl", "--seconds", "0.01"]))
"""


def run_python(*arguments, **options):
    """Run Python where this process finds its modules."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    options = {"stderr": subprocess.PIPE, "env": environment, "text": True, **options}
    return subprocess.run([sys.executable, *arguments], check=False, **options)


@pytest.mark.parametrize("name", ["hypothesis", "pyarrow", "torch"])
def test_missing_packages(name):
    run = run_python("-c", WITHOUT.format(name=name))
    assert run.returncode == 2
    expected = f"error: {name} is not installed; run: pip install {name}"
    assert run.stderr.splitlines()[-1] == f"python -m frameworks.parity: {expected}"
    assert "Traceback" not in run.stderr


def test_a_closed_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    run = run_python("-m", "frameworks.parity", "nemo_rl", "--seconds", "0.01", stdout=writer)
    os.close(writer)
    assert (run.returncode, run.stderr) == (1, "")


def ints(values, dtype=np.int64):
    return np.array(values, dtype)


def nested(rows):
    import torch

    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


def table(column):
    import pyarrow as pa

    return pa.table({"a": column})


SAME = [
    ({"a": ints([1]), "b": [1, "x", None]}, {"b": [1, "x", None], "a": ints([1])}),
    (float("nan"), float("nan")),
    (ints([np.nan, 1], float), ints([-np.nan, 1], float)),
    ((1, [2]), (1, [2])),
    (table([[1]]), table([[1]])),
    (nested([[1, 2], [3]]), nested([[1, 2], [3]])),
]


@pytest.mark.parametrize(("theirs", "ours"), SAME)
def test_what_is_the_same(theirs, ours):
    assert first_difference(theirs, ours) is None


DIFFERENT = [
    ({"a": 1}, {"b": 1}, "it: theirs has the keys ['a'], ours ['b']"),
    ({"a": 1}, [1], "it: theirs is of <class 'dict'>, ours of <class 'list'>"),
    ({"a": [1, 2]}, {"a": [1, 3]}, "it['a'][1]: theirs is 2, ours 3"),
    ([1, 2], [1], "it: theirs is of length 2, ours of length 1"),
    ([1], [1.0], "it[0]: theirs is of <class 'int'>, ours of <class 'float'>"),
    (ints([1]), ints([1], np.int32), "it: theirs is int64 (1,) on cpu, ours int32 (1,) on cpu"),
    (ints([1]), ints([[1]]), "it: theirs is int64 (1,) on cpu, ours int64 (1, 1) on cpu"),
    (
        ints([[1, 2], [3, 4]]),
        ints([[1, 2], [5, 6]]),
        "it[1, 0]: theirs is 3, ours 5 (2 of 4 differ)",
    ),
    (ints([0.0], float), ints([-0.0], float), "it[0]: theirs is 0.0, ours -0.0 (1 of 1 differ)"),
    (nested([[1, 2], [3]]), nested([[1, 2], [4]]), "it[1][0]: theirs is 3, ours 4 (1 of 1 differ)"),
    (table([[1]]), table([[2]]), "it['a'][0][0]: theirs is 1, ours 2"),
    (table([1]), table([1.0]), "it: theirs is of schema a: int64, ours of schema a: double"),
    (table([[1]]), {"a": [[1]]}, "it: theirs is of <class 'pyarrow.lib.Table'>, ours of <class"),
]


@pytest.mark.parametrize(("theirs", "ours", "expected"), DIFFERENT)
def test_what_differs(theirs, ours, expected):
    assert first_difference(theirs, ours, "it").startswith(expected)
