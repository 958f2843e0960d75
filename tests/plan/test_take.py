"""A bin plan joins the rows of each bin, without new numbers."""

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastcollate as fc


def taken(plan, rows):
    """Give the items of each bin, piece by piece."""
    pieces = list(zip(plan.indices, plan.starts, plan.lengths, strict=True))
    return [
        [item for row, first, count in pieces[start:end] for item in rows[row][first:][:count]]
        for start, end in pairwise(plan.offsets)
    ]


@given(
    st.lists(st.integers(0, 30), max_size=30),
    st.sampled_from(["ffd", "mffd", "bfd", "next_fit", "concat"]),
    st.sampled_from([1, 4]),
)
def test_rows_are_joined(lengths, algorithm, multiple_of):
    if algorithm == "mffd":
        lengths = [length + 1 for length in lengths]
    layout = fc.Packed(20, algorithm=algorithm, oversize="split", multiple_of=multiple_of)
    plan = fc.planning.pack(lengths, layout)
    numbers = iter(range(1000, 10_000))
    rows = [[next(numbers) for _ in range(length)] for length in lengths]
    expected = taken(plan, rows)
    found = plan.take(rows)
    assert found == expected
    assert all(map(lambda a, b: a is b, chain(*found), chain(*expected)))
    assert plan.take(list(map(tuple, rows))) == expected
    arrays = [np.array(row, np.int32) for row in rows]
    for found, items in zip(plan.take(arrays), expected, strict=True):
        assert found.dtype == np.int32
        assert found.tolist() == items


def test_tensors_of_trailing_dimensions_are_joined():
    torch = pytest.importorskip("torch")
    plan = fc.planning.pack([1, 3, 2], fc.Packed(4))
    rows = [torch.rand(length, 2, requires_grad=True) for length in (1, 3, 2)]
    first, second = plan.take(rows)
    assert torch.equal(first, torch.cat([rows[1], rows[0]]))
    assert torch.equal(second, rows[2])
    first.sum().backward()
    assert rows[0].grad is not None


def test_shared_tokens_come_once():
    plan = fc.planning.prefix_tree([[1, 2, 3], [1, 2, 4]], [[5], [6]]).pack(fc.Tree(100))
    assert plan.take([[1, 2, 3, 5], [1, 2, 4, 6]]) == [[1, 2, 3, 5, 4, 6]]
    with pytest.raises(ValueError, match=r"rows\[1\] has 3 items, but row 1 of the plan has 4 tok"):
        plan.take([[1, 2, 3, 5], [1, 2, 4]])


def test_other_rows_are_refused():
    plan = fc.planning.pack([1, 2], fc.Packed(4))
    with pytest.raises(ValueError, match=r"rows has 1 row, but the plan has 2 sequences"):
        plan.take([[1]])
    with pytest.raises(ValueError, match=r"rows\[0\] has 2 items, but sequence 0 .* has 1 token;"):
        plan.take([[1, 1], [1, 2]])
    assert fc.planning.pack([], fc.Packed(4)).take([]) == []


def test_empty_bins_have_empty_rows():
    plan = fc.planning.BinPlan([0, 0, 1], [0], [0], [2], num_sequences=1, capacity=4)
    assert plan.take([[5, 6]]) == [[], [5, 6]]
    assert [row.tolist() for row in plan.take(np.array([[5, 6]]))] == [[], [5, 6]]
