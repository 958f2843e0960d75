"""Long arrays and lists are read slice by slice: the same results as at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastcollate as fc
from fastcollate import planning
from fastcollate.common import arrays
from fastcollate.plan.costs import check_weights
from fastcollate.plan.grouping import group_numbers


def results(lengths, ids, costs):
    """Return everything that is read in slices."""
    packed = planning.pack(lengths, fc.Packed(64), keep_together=np.array(ids))
    step = fc.plan_step(lengths, dp_size=2, shard_by="flops")
    both = fc.plan_step((lengths, lengths[::-1]), dp_size=2, shard_by=lambda lens: lens + 0.5)
    micro = planning.micro_batches(lengths, 64)
    return (
        packed.bins,
        step.to_dict(),
        both.to_dict(),
        (micro.bins, micro.lengths.tolist()),
        planning.partition(costs, 2),
        group_numbers("ids", np.array(ids)).tolist(),
        check_weights("costs are", costs, "row").tolist(),
        check_weights("costs are", costs, "row").dtype,
    )


@given(
    st.lists(
        st.tuples(st.integers(1, 8), st.integers(0, 3), st.one_of(st.integers(0, 9), st.just(0.5))),
        min_size=2,
        max_size=12,
    ),
    st.integers(1, 4),
)
def test_slices_change_nothing(rows, piece):
    lengths, ids, costs = map(list, zip(*rows, strict=True))
    expected = results(lengths, ids, costs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "_PIECE", piece)
        found = results(lengths, ids, costs)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_equal(one, other)


@pytest.mark.parametrize("wrong", [None, "x", 2**70, [1]])
@pytest.mark.parametrize("at", [0, 3, 4])
def test_errors_name_the_item(wrong, at, monkeypatch):
    monkeypatch.setattr(arrays, "_PIECE", 2)
    lengths = [3, 4, 5, 6, 7]
    lengths[at] = wrong
    with pytest.raises((TypeError, ValueError), match=rf"lengths\[{at}\]"):
        planning.pack(lengths, fc.Packed(16))
