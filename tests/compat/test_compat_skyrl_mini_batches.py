"""compat.skyrl finds prompts and mini-batches as SkyRL does, and refuses what it refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from outcomes import outcome

from fastcollate.compat.skyrl import (
    compute_prompt_boundaries,
    compute_prompt_mini_batch_boundaries,
)
from frameworks import skyrl as port
from frameworks.installed import real

SKYRL = [each for each in (port, real("skyrl.train.dataset.preprocess")) if each]


def runs(counts):
    return [f"p{prompt}" for prompt, count in enumerate(counts) for _ in range(count)]


@given(
    st.one_of(
        st.lists(st.integers(1, 4), max_size=8).map(runs),
        st.lists(st.integers(1, 4), max_size=8).map(lambda c: runs([2] * len(c))),
        st.lists(st.sampled_from("abc"), max_size=6),
    ),
    st.integers(-2, 5),
    st.integers(-1, 8),
    st.booleans(),
    st.integers(0, 3),
)
def test_results_and_errors_are_those_of_skyrl(uids, size, train, is_stepwise, samples):
    found = outcome(compute_prompt_boundaries, uids)
    assert all(found == outcome(skyrl.compute_prompt_boundaries, uids) for skyrl in SKYRL)
    prompts = len(dict.fromkeys(uids))
    for train_batch_size in (train, prompts):
        args = (uids, size, train_batch_size, is_stepwise, samples)
        found = outcome(compute_prompt_mini_batch_boundaries, *args)
        for skyrl in SKYRL:
            assert found == outcome(skyrl.compute_prompt_mini_batch_boundaries, *args)


def test_the_uid_is_named_as_in_skyrl():
    message = "uid 'p0' appears in non-contiguous positions at index 3"
    with pytest.raises(AssertionError, match=message):
        compute_prompt_boundaries(["p0", "p0", "p1", "p0"])
    with pytest.raises(AssertionError, match=message):
        compute_prompt_mini_batch_boundaries(["p0", "p0", "p1", "p0"], 1, 2, True, 1)
