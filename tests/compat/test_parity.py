"""The comparison with frameworks covers all of compat, and finds and names what differs."""

import re
import types
from importlib import import_module

import numpy as np
import pytest
from hypothesis import strategies as st

from fastcollate.compat.versions import VERIFIED
from fastcollate.testing.reference.comparing import first_difference
from fastcollate.testing.verifying import FRAMEWORKS as NAMES
from fastcollate.testing.verifying import running, subject_of
from fastcollate.testing.verifying.running import CASES_PER_SEED, compare
from fastcollate.testing.verifying.subjects import Case, Peer, Subject
from frameworks import parity
from frameworks.parity import find_peer, main

pytest.importorskip("torch")
pytest.importorskip("pyarrow")

FRAMEWORKS = {name: subject_of(name) for name in NAMES}


def compat_of(name):
    return import_module(f"fastcollate.compat.{name}")


def peer_of(name):
    """Return the installed framework; for NeMo-RL, which is not on PyPI, our `compat` module."""
    if (peer := find_peer(name)) is not None:
        return peer
    if name != "nemo_rl":
        pytest.skip(f"needs {name}")
    module = types.SimpleNamespace(**vars(compat_of(name)))
    return Peer("none", lambda name: module)


NOT_COMPARED = {
    "patch": "no function of a framework",
    "unpatch": "no function of a framework",
    "to_tensordict": "no function of verl's",
    "upsample_batch": "verl's reads and writes a transfer queue",
    "token_logprobs": "of fastcollate; compared with rows one by one",
    "register_tree_attention": "of fastcollate; compared with dense masks",
    "add_fused_lm_head": "compared in TRL's trainers, under patch(layout=...)",
    "shuffle_sequence_dict": "compared in TRL's trainers, under patch(layout=...)",
}


@pytest.mark.parametrize("name", NAMES)
def test_every_public_function_is_compared_or_a_reason_is_given(name):
    compared = {
        function for names in FRAMEWORKS[name].comparisons for function in names.split(", ")
    }
    functions = set(compat_of(name).__all__)
    assert functions <= compared | NOT_COMPARED.keys()
    assert compared.isdisjoint(NOT_COMPARED)
    assert VERIFIED.keys() == FRAMEWORKS.keys()


@pytest.fixture
def few_cases(monkeypatch):
    """Draw less, since `make parity` compares on thousands of cases."""
    monkeypatch.setattr(running, "CASES_PER_SEED", 4)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_differs(name, monkeypatch):
    monkeypatch.setattr(running, "CASES_PER_SEED", 10)
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


@pytest.mark.usefixtures("few_cases")
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
    found = (
        r"pack_dataset, --seed 3: the result\['input_ids'\]\[0\]\[0\]: expected \d+, found \d+\n"
    )
    assert re.search(rf"TRL {peer.version}, {found}  input_ids=", printed)


LISTS = Subject("Python", "python")


@LISTS.compares("sorted")
def sorted_lists(draw, python):
    values = draw(st.lists(st.integers(0, 9)))

    def ours():
        return sorted(values) if len(values) < 4 else sorted(values)[::-1]

    return Case(theirs=lambda: python("builtins").sorted(values), ours=ours, given={"it": values})


def test_a_difference_has_its_seed_and_its_smallest_case():
    python = Peer("3")
    found = compare(sorted_lists, python, 60, seed=0).difference
    assert found.startswith("--seed ")
    assert found.endswith(": the result[0]: expected 0, found 1\n  it=[0, 0, 0, 1]")
    seed = int(found.split()[1].rstrip(":"))
    again = compare(sorted_lists, python, 0, seed)
    assert again.difference == found
    assert again.cases < CASES_PER_SEED


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
    outcome = compare(lambda draw, peer: Case(theirs, ours, {}), Peer(""), 0, seed=0)
    assert re.search(expected, str(outcome.difference))


def test_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(parity, "find_peer", lambda name: None)
    assert main(["trl"]) == 1
    assert capsys.readouterr().err.endswith(
        "TRL is not installed; install it in this environment, or name another\n"
    )
    assert main(["slime"]) == 1
    assert "frameworks has 'slime'; pass some of 'nemo_rl', " in capsys.readouterr().err


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
    ({"a": 1}, {"b": 1}, "it: expected the keys ['a'], found ['b']"),
    ({"a": 1}, [1], "it: expected a <class 'dict'>, found a <class 'list'>"),
    ({"a": [1, 2]}, {"a": [1, 3]}, "it['a'][1]: expected 2, found 3"),
    ([1, 2], [1], "it: expected a length of 2, found 1"),
    ([1], [1.0], "it[0]: expected a <class 'int'>, found a <class 'float'>"),
    (ints([1]), ints([1], np.int32), "it: expected int64 (1,) on cpu, found int32 (1,) on cpu"),
    (ints([1]), ints([[1]]), "it: expected int64 (1,) on cpu, found int64 (1, 1) on cpu"),
    (
        ints([[1, 2], [3, 4]]),
        ints([[1, 2], [5, 6]]),
        "it[1, 0]: expected 3, found 5 (2 of 4 differ)",
    ),
    (ints([0.0], float), ints([-0.0], float), "it[0]: expected 0.0, found -0.0 (1 of 1 differ)"),
    (nested([[1, 2], [3]]), nested([[1, 2], [4]]), "it[1][0]: expected 3, found 4 (1 of 1 differ)"),
    (table([[1]]), table([[2]]), "it['a'][0][0]: expected 1, found 2"),
    (table([1]), table([1.0]), "it: expected the schema a: int64, found a: double"),
    (table([[1]]), {"a": [[1]]}, "it: expected a <class 'pyarrow.lib.Table'>, found a <class"),
]


@pytest.mark.parametrize(("theirs", "ours", "expected"), DIFFERENT)
def test_what_differs(theirs, ours, expected):
    assert first_difference(theirs, ours, "it").startswith(expected)
