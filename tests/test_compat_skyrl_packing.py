"""compat.skyrl packs sequences into the bins that SkyRL packs them into."""

import enum
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcollate.compat.skyrl import PackingStrategy, make_seq_packer
from fastcollate.testing.reference import skyrl_packing as reference

GOLDEN = json.loads((Path(__file__).parent / "golden" / "skyrl_seq_packing.json").read_text())
BUILTINS = {"ValueError": ValueError}


@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_what_skyrl_itself_gave(case):
    algorithm, *arguments = case["arguments"]
    if "raises" in case:
        with pytest.raises(BUILTINS[case["raises"]]):
            make_seq_packer(algorithm, *arguments).pack(case["lengths"])
    else:
        assert make_seq_packer(algorithm, *arguments).pack(case["lengths"]) == case["result"]


@st.composite
def sequences(draw):
    """Lengths, of which many are equal, and a capacity that most of them fit into."""
    longest = draw(st.sampled_from([3, 10, 100]))
    lengths = draw(st.lists(st.integers(0, longest), max_size=40))
    return lengths, draw(st.integers(max(1, longest - 1), 3 * longest))


@given(
    sequences(),
    st.sampled_from(["first_fit_decreasing", "balanced"]),
    st.none() | st.integers(0, 12),
    st.none() | st.integers(1, 5),
)
def test_bins_are_those_of_skyrl(drawn, algorithm, least, multiple):
    lengths, capacity = drawn
    arguments = (algorithm, capacity, least, multiple)
    try:
        expected = reference.pack_sequences(lengths, *arguments)
    except ValueError:
        with pytest.raises(ValueError, match=r"exceeds|no bin may be empty"):
            make_seq_packer(*arguments).pack(lengths)
        return
    packer = make_seq_packer(*arguments)
    assert packer.pack(lengths) == expected
    assert packer.pack(np.array(lengths, np.int32)) == expected


class OfSkyRL(enum.Enum):
    FIRST_FIT_DECREASING = "first_fit_decreasing"
    BALANCED = "balanced"


@pytest.mark.parametrize(
    "algorithm",
    ["balanced", "Balanced", PackingStrategy.BALANCED, OfSkyRL.BALANCED],
)
def test_an_algorithm_goes_by_any_name_it_has_there(algorithm):
    packer = make_seq_packer(algorithm, 10, bin_count_multiple=2)
    assert (packer.bin_capacity, packer.min_bin_count, packer.bin_count_multiple) == (10, None, 2)
    assert packer.pack([4, 5, 3]) == [[1, 0], [2]]
    assert packer.pack([20, 5, 3]) == [[0], [1, 2]]


def test_attributes_can_be_changed_as_there():
    packer = make_seq_packer("first_fit_decreasing", 10)
    assert packer.pack([5, 5]) == [[1, 0]]
    packer.min_bin_count = 2
    assert packer.pack([5, 5]) == [[1], [0]]
    packer.bin_capacity = 4
    with pytest.raises(ValueError, match=r"lengths\[0\] is 5, which exceeds capacity=4"):
        packer.pack([5, 5])


@pytest.mark.parametrize("algorithm", ["ffd", "", None, 3, ["balanced"]])
def test_other_algorithms_are_refused(algorithm):
    with pytest.raises(ValueError, match="pass one of FIRST_FIT_DECREASING, BALANCED"):
        make_seq_packer(algorithm, 10)
