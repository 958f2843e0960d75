"""compat.nemo_rl packs and measures as NeMo-RL does."""

import abc
import random
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raising import raises
from recorded import recorded

from fastcollate.compat.nemo_rl import (
    ConcatenativePacker,
    PackingAlgorithm,
    SequencePacker,
    get_packer,
)
from frameworks import nemo_rl as port

ALGORITHMS = [algorithm.value for algorithm in PackingAlgorithm]
GOLDEN = recorded("nemo_rl_packing")
RAISED = {"ValueError": ValueError, "ZeroDivisionError": ZeroDivisionError}


WITHOUT_EMPTY = [
    case for case in GOLDEN["cases"] if "raises" in case or [] not in case["result"]["bins"]
]
"""The version that gave them kept empty bins."""


@pytest.mark.parametrize("case", WITHOUT_EMPTY)
def test_what_nemo_rl_itself_gave(case):
    lengths = case["lengths"]
    random.seed(case["seed"])
    if "raises" in case:
        with pytest.raises(RAISED[case["raises"]]):
            get_packer(*case["arguments"]).pack(lengths)
        return
    packer, expected = get_packer(*case["arguments"]), case["result"]
    bins = packer.pack(lengths)
    assert bins == expected["bins"]
    # Before Python 3.11, deviations are rounded in another way.
    metrics = pytest.approx(
        expected["metrics"], rel=1e-15 if sys.version_info < (3, 11) else 0, abs=0
    )
    assert packer.compute_metrics(lengths, bins) == metrics
    if packer.collect_metrics:
        if expected["aggregated"]["total_bins"] == 2 * len(bins) > 0:
            packer.pack(lengths)
        assert packer.get_aggregated_metrics() == expected["aggregated"]


@st.composite
def sequences(draw):
    """Lengths, also just at the borders between the classes of sizes, and a capacity."""
    capacity = draw(st.sampled_from([1, 6, 7, 12, 60, 100, 101]))
    borders = [
        border for part in (1, 2, 3, 6) for border in (capacity // part, capacity // part + 1)
    ]
    length = st.integers(0, capacity) | st.sampled_from([min(b, capacity) for b in borders])
    lengths = draw(st.lists(length, max_size=40))
    if draw(st.integers(0, 9)) > 0:
        lengths = [max(length, 1) for length in lengths]
    return lengths, draw(st.sampled_from([capacity] * 9 + [max(capacity - 1, 1)]))


@given(
    sequences(),
    st.sampled_from(ALGORITHMS),
    st.none() | st.integers(0, 12),
    st.none() | st.integers(1, 5),
    st.sampled_from([-1, -1, 0, 1, 2, -3]),
    st.integers(0, 3),
)
def test_bins_and_metrics_are_those_of_nemo_rl(drawn, algorithm, least, multiple, most, seed):
    lengths, capacity = drawn
    packer = get_packer(algorithm, capacity, False, least, multiple)
    packer.max_sequences_per_bin = most
    try:
        random.seed(seed)
        expected = port.pack_sequences(lengths, algorithm, capacity, least, multiple, most)
    except ValueError:
        random.seed(seed)
        with raises(r"exceeds bin capacity|Cannot create|must be positive"):
            packer.pack(lengths)
        return
    random.seed(seed)
    bins = packer.pack(lengths)
    assert bins == expected
    try:
        stats = port.packing_stats(lengths, bins, capacity)
    except ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):
            packer.compute_metrics(lengths, bins)
    else:
        assert packer.compute_metrics(lengths, bins) == stats
        assert packer.get_aggregated_metrics() == {}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_messages_are_those_of_nemo_rl(algorithm):
    with pytest.raises(ValueError, match="Cannot create 3 bins with only 2 sequences"):
        get_packer(algorithm, 100, min_bin_count=3).pack([50, 50])
    with pytest.raises(ValueError, match="Cannot create 4 bins with only 2 sequences"):
        get_packer(algorithm, 100, bin_count_multiple=4).pack([60, 50])
    with pytest.raises(ValueError, match=r"sequence_lengths\[1\] is 150, which exceeds bin cap"):
        get_packer(algorithm, 100).pack([50, 150, 30])
    with pytest.raises(ValueError, match="min_bin_count must be nonnegative"):
        get_packer(algorithm, 100, min_bin_count=-1)
    with pytest.raises(ValueError, match="bin_count_multiple must be positive"):
        get_packer(algorithm, 100, bin_count_multiple=0)
    with pytest.raises(ValueError, match="Unknown packing algorithm"):
        get_packer("best", 100)


def test_printed_metrics(capsys):
    get_packer("concatenative", 10).print_metrics()
    assert "collect_metrics=True" in capsys.readouterr().out
    packer = get_packer("concatenative", 10, collect_metrics=True)
    packer.print_metrics()
    assert "No packing" in capsys.readouterr().out
    packer.pack([5, 10])
    packer.print_metrics()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["total_bins", "2"] in lines
    assert ["average_utilization", "0.7500"] in lines


def test_at_most_so_many_sequences_can_be_said_for_the_class(monkeypatch):
    monkeypatch.setattr(ConcatenativePacker, "max_sequences_per_bin", 2)
    assert get_packer(PackingAlgorithm.CONCATENATIVE, 10).pack([1] * 5) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("algorithm", ["ffd", "", None, 3])
def test_other_algorithms_are_refused(algorithm):
    with pytest.raises(ValueError, match="pass one of CONCATENATIVE, FIRST_FIT_DECREASING"):
        get_packer(algorithm, 10)


def test_the_base_packs_nothing():
    with pytest.raises(NotImplementedError, match="get_packer"):
        SequencePacker(10).pack([1])


def test_packers_are_instances_of_nemo_rls_classes(monkeypatch):
    module = types.ModuleType("nemo_rl.data.packing.algorithms")
    module.SequencePacker = abc.ABCMeta("SequencePacker", (), {})
    name = "FirstFitDecreasingPacker"
    setattr(module, name, type(module.SequencePacker)(name, (module.SequencePacker,), {}))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    packer = get_packer("first_fit_decreasing", 10)
    assert isinstance(packer, module.FirstFitDecreasingPacker)
    assert isinstance(packer, module.SequencePacker)
    assert not isinstance(get_packer("concatenative", 10), module.SequencePacker)
