"""Ragged columns of lists, and their memory."""

import numpy as np
import pytest
from hypothesis import strategies as st


def address(values):
    """Return the address of an array's or tensor's first value."""
    return values.ctypes.data if isinstance(values, np.ndarray) else values.data_ptr()


def refuses(error, message, call, *args, **options):
    with pytest.raises(error, match=message):
        call(*args, **options)


ITEMS = {
    "integers": st.integers(-(2**63), 2**63 - 1),
    "floats": st.floats(width=64),
    "booleans": st.booleans(),
}


@st.composite
def ragged_lists(draw, min_rows=0, trailing=None):
    """Draw rows of one kind of items, and at times of pairs of them."""
    item = ITEMS[draw(st.sampled_from(sorted(ITEMS)))]
    if draw(st.booleans()) if trailing is None else trailing:
        item = st.tuples(item, item).map(list)
    return draw(st.lists(st.lists(item, max_size=4), min_size=min_rows, max_size=5))


def same(found, expected):
    """Compare nested lists, NaN equal to NaN, and the types of numbers."""
    return repr(found) == repr(expected)


ROWS = [[5, 6], [], [7, 8, 9]]


def make(values, array_type, dtype=None):
    """Make values a NumPy array or a torch tensor."""
    values = np.array(values, dtype)
    if array_type == "numpy":
        return values
    import torch

    return torch.from_numpy(values)
