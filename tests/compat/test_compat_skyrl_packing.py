"""compat.skyrl packs sequences into the bins that SkyRL packs them into."""

import enum

import pytest
from raising import raises
from recorded import recorded

from fastcollate.compat.skyrl import make_seq_packer
from frameworks.installed import as_installed, real

GOLDEN = recorded("skyrl_seq_packing")
BUILTINS = {"ValueError": ValueError}


@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_what_skyrl_itself_gave(case):
    algorithm, *arguments = case["arguments"]
    if "raises" in case:
        with pytest.raises(BUILTINS[case["raises"]]):
            make_seq_packer(algorithm, *arguments).pack(case["lengths"])
    else:
        assert make_seq_packer(algorithm, *arguments).pack(case["lengths"]) == case["result"]


class OfSkyRL(enum.Enum):
    FIRST_FIT_DECREASING = "first_fit_decreasing"
    BALANCED = "balanced"


@pytest.mark.parametrize(
    "algorithm",
    ["balanced", "Balanced", OfSkyRL.BALANCED],
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
    with raises(r"sequence_lengths\[0\] is 5, which exceeds bin capacity 4"):
        packer.pack([5, 5])


@pytest.mark.parametrize("algorithm", ["ffd", "", None, 3, ["balanced"]])
def test_other_algorithms_are_refused(algorithm):
    message = "Unknown packing algorithm: .* pass one of FIRST_FIT_DECREASING, BALANCED"
    with pytest.raises(ValueError, match=message):
        make_seq_packer(algorithm, 10)


def test_messages_are_those_of_skyrl():
    for arguments, message in [
        (([10, 20], 5, None), "Cannot create 5 bins with only 2 sequences"),
        (([10], None, 4), "Cannot create 4 bins with only 1 sequences"),
        (([150], None, None), r"sequence_lengths\[0\] is 150, which exceeds bin capacity 100"),
    ]:
        lengths, least, multiple = arguments
        with pytest.raises(ValueError, match=message):
            make_seq_packer("first_fit_decreasing", 100, least, multiple).pack(lengths)
    for arguments, message in [
        ({"min_bin_count": -1}, "min_bin_count must be nonnegative"),
        ({"bin_count_multiple": 0}, "bin_count_multiple must be positive"),
    ]:
        with pytest.raises(ValueError, match=message):
            make_seq_packer("balanced", 100, **arguments)


def test_packers_are_instances_of_skyrls_classes():
    theirs = real("skyrl.train.dataset.bin_packing")
    if theirs is None:
        pytest.skip("SkyRL is not in .peers")
    with as_installed("skyrl"):
        packer = make_seq_packer("first_fit_decreasing", 10)
        other = make_seq_packer("balanced", 10)
    assert isinstance(packer, theirs.FirstFitDecreasing)
    assert isinstance(packer, theirs.SeqPacker)
    assert isinstance(other, theirs.Balanced)
    assert not isinstance(other, theirs.FirstFitDecreasing)
