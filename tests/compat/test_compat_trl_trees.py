"""compat.trl.TreeRow holds samples as TRL's class does."""

from itertools import pairwise

import pytest
from conftest import NEEDS_TORCH
from hypothesis import given
from hypothesis import strategies as st
from raising import raises
from recorded import recorded

from fastcollate.compat.trl import TreeRow

pytestmark = NEEDS_TORCH


def sample(ids, mask=None, logps=None, **fields):
    import torch

    mask = [1] * len(ids) if mask is None else mask
    logps = [0.0] * len(ids) if logps is None else logps
    return {
        "input_ids": torch.tensor(ids, dtype=torch.int64),
        "completion_mask": torch.tensor(mask),
        "old_log_probs": torch.tensor(logps),
        "advantage": 1.0,
        "group_id": 0,
        **fields,
    }


def row_of(*streams):
    row = TreeRow()
    for ids in streams:
        added(row, sample(ids))
    return row


def added(row, given):
    row.add(given)
    return row


@pytest.mark.parametrize("array_type", ["torch", "numpy"])
@pytest.mark.parametrize("case", recorded("trl_tree_rows")["cases"])
def test_what_trl_itself_gave(case, array_type):
    row, fits = TreeRow(), []
    for fields in case["samples"]:
        fields = dict(fields)
        ids, mask, logps = map(fields.pop, ("input_ids", "completion_mask", "old_log_probs"))
        given = sample(ids, mask, logps, **fields)
        if array_type == "numpy":
            given |= {name: given[name].numpy() for name in given if name not in fields}
        fits.append(row.fits(given, case["budget"]))
        if fits[-1] or not row.samples:
            row.add(given)
    assert fits == case["fits"]
    packed = {
        name: {"dtype": str(value.dtype).removeprefix("torch."), "values": value.tolist()}
        for name, value in row.pack().items()
    }
    assert packed == case["result"]
    assert list(packed) == list(case["result"])
    for name in ("tokens", "load", "trained"):
        assert getattr(row, name) == case[name]
    assert sorted(row.groups) == case["groups"]


streams = st.lists(st.integers(-1, 1), min_size=1, max_size=6)


@given(st.lists(streams, min_size=1, max_size=8))
def test_paths_are_the_samples(rows):
    """Each sample is the path of its last segment, and tokens with one label are there once."""
    row = row_of(*rows)
    packed = row.pack()
    ids, keys = packed["input_ids"].tolist(), packed["tree_kv_index"].tolist()
    offsets = packed["tree_cu_seqlens_k"].tolist()
    paths = [keys[begin:end] for begin, end in pairwise(offsets)]
    found = {tuple(ids[position] for position in path) for path in paths}
    assert set(map(tuple, rows)) <= found
    nodes = {
        (*ids[:end], *ids[end : end + 1], end == len(ids))
        for ids in rows
        for end in range(1, len(ids) + 1)
    }
    assert len(ids) == len(row.tokens) == len(nodes)
    assert row.load == sum(len(node) - 2 + node[-1] for node in nodes)


def test_forks_are_one_token_early():
    row = row_of([5, 6, 7], [5, 6, 8], [5, 6], [5, 6])
    assert row.tokens == [5, 6, 7, 6, 8, 6]
    packed = row.pack()
    assert packed["shift_labels"].tolist() == [6, 7, -100, 8, -100, -100]
    assert packed["token_index"].tolist() == [0, 1, 0, 3, 0, 0]
    assert packed["segment_id"].tolist() == [0, 0, 1, 1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": []}, "pass the ids of at least one token"),
        ({"mask": [1, 1]}, r"samples\[1\] has 2 values of completion_mask, but 3 tokens"),
        ({"logps": [0.0] * 4}, r"samples\[1\] has 4 values of old_log_probs, but 3"),
        ({"ids": [1.0, 2.0]}, "TypeError: pass the ids of at least one token"),
    ],
)
def test_bad_samples(changes, message):
    import torch

    row = row_of([1, 2])
    given = sample(**{"ids": [1, 2, 3], **changes})
    if changes.get("ids"):
        given["input_ids"] = torch.tensor(changes["ids"])
    with raises(message):
        added(row, given).pack()


def test_a_sample_that_is_refused_is_not_added():
    row = row_of([1, 2])
    for broken in ({"group_id": []}, {"completion_mask": None}):
        with pytest.raises((TypeError, AttributeError)):
            row.add(sample([1, 3]) | broken)
    assert (row.tokens, row.load, row.trained, row.groups, len(row.samples)) == (
        [1, 2],
        3,
        2,
        {0},
        1,
    )
    with pytest.raises(ValueError, match="the row has no samples; add at least one"):
        TreeRow().pack()
