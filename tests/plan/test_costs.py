"""Costs: of tokens, pairs in attention, sequences and bins, wherever costs are given."""

import itertools
import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raising import raises

import fastcollate as fc
from fastcollate.plan.layouts import layout_of
from fastcollate.planning import Costs

KINDS = [
    {},
    {"window": 3},
    {"window": 3, "window_share": 0.75},
    {"chunk": 4},
    {"window": 2, "window_share": 0.25, "chunk": 5, "chunk_share": 0.5},
]


def mask(length, window=None, chunk=None):
    """Say by brute force which token looks at which."""
    query, key = np.indices((length, length))
    seen = key <= query
    if window is not None:
        seen &= query - key < window
    if chunk is not None:
        seen &= query // chunk == key // chunk
    return seen


def seen_by(length, kind):
    """Count the tokens that each token attends to, averaged over all layers."""
    window, chunk = kind.get("window"), kind.get("chunk")
    shares = [
        kind.get(f"{name}_share", 1.0) if kind.get(name) else 0.0 for name in ("window", "chunk")
    ]
    masks = [(1 - sum(shares), {}), (shares[0], {"window": window}), (shares[1], {"chunk": chunk})]
    return sum(share * mask(length, **how).sum(1) for share, how in masks)


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_are_those_of_the_masks(kind):
    costs = Costs(per_pair=2.0, **kind)
    expected = [seen_by(length, kind).sum() for length in range(30)]
    np.testing.assert_allclose(costs.pairs(range(30)), expected)
    np.testing.assert_allclose(costs.of(range(30)), 2 * np.array(expected))


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    coefficients=st.tuples(*[st.integers(0, 5)] * 4).filter(any),
    kind=st.sampled_from(KINDS),
)
def test_costs_are_sums_over_tokens(lengths, coefficients, kind):
    token, pair, sequence, per_bin = coefficients
    costs = Costs(*coefficients, **kind)
    expected = [
        sequence + sum(token + pair * seen for seen in seen_by(length, kind)) for length in lengths
    ]
    np.testing.assert_allclose(costs.of(lengths), expected)
    # In every call they equal those of a function of the same lengths.
    for k in (1, min(3, len(lengths))):
        assert fc.planning.partition(lengths, k, cost=costs) == fc.planning.partition(
            lengths, k, cost=costs.of
        )
    found = fc.plan_step(lengths, dp_size=3, shard_by=costs)
    assert found == fc.plan_step(lengths, dp_size=3, shard_by=costs.of)
    micro = fc.planning.micro_batches(lengths, 100, cost=costs)
    assert micro == fc.planning.micro_batches(lengths, 100, cost=costs.of)
    limit = max(expected) * 2 + per_bin + 1
    options = {"capacity": 80, "max_cost": limit, "oversize": "split"}
    bins = fc.planning.pack(lengths, fc.Packed(cost=costs, **options))
    assert bins == fc.planning.pack(
        lengths, fc.Packed(cost=costs.of, **options | {"max_cost": limit - per_bin})
    )
    parts = costs.of(bins.lengths)
    for start, end in itertools.pairwise(bins.offsets.tolist()):
        assert parts[start:end].sum() + per_bin <= limit * (1 + 1e-12)


@given(
    rows=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8), min_size=1, max_size=8),
    kind=st.sampled_from(KINDS),
)
def test_trees_pay_for_new_tokens(rows, kind):
    costs = Costs(1.0, 0.5, 3.0, 2.0, **kind)
    tree = fc.planning.prefix_tree(rows, [[]] * len(rows))

    def cost(bin_):
        """Sum over the tokens that no row before it in the bin has."""
        known, total = set(), 2.0 + 3.0 * len(bin_)
        for row in bin_:
            for place, seen in enumerate(seen_by(len(rows[row]), kind)):
                if (path := tuple(rows[row][: place + 1])) not in known:
                    total += 1.0 + 0.5 * seen
                    known.add(path)
        return total

    largest = max(cost([row]) for row in range(len(rows)))
    for limit in (largest, largest * 1.5):
        bins = tree.pack(fc.Tree(64, max_cost=limit + 1e-9, cost=costs))
        assert max(map(cost, bins.bins)) <= limit + 1e-6
    # One bin does exactly if everything together costs no more.
    together = cost(list(range(len(rows))))
    assert tree.pack(fc.Tree(64, max_cost=together + 1e-9, cost=costs)).num_bins == 1
    if together > largest + 0.1:
        assert tree.pack(fc.Tree(64, max_cost=together - 0.1, cost=costs)).num_bins > 1


def test_they_are_values():
    costs = Costs(1, 2.5, window=4096, window_share=0.5)
    assert repr(costs) == "Costs(per_token=1.0, per_pair=2.5, window=4096, window_share=0.5)"
    assert Costs.from_dict(json.loads(json.dumps(costs.to_dict()))) == costs
    assert pickle.loads(pickle.dumps(costs)) == costs
    assert costs != Costs(1, 2.5)
    assert len({costs, Costs(1, 2.5, window=4096, window_share=0.5)}) == 1
    layout = fc.Packed(64, max_cost=1e6, cost=costs)
    assert layout_of(json.loads(json.dumps(layout.to_dict()))) == layout
    assert pickle.loads(pickle.dumps(layout)) == layout
    plan = fc.plan_step([3, 4, 5], dp_size=2, layout=layout)
    assert fc.planning.StepPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        ((), {}, "per_token, per_pair, per_sequence, per_bin are all 0; pass one"),
        ((-1.0,), {}, "per_token is -1.0; pass a finite number of 0 or more"),
        ((1, math.nan), {}, "per_pair is nan"),
        ((2**2000,), {}, "per_token is an integer of 2001 bits"),
        ((1, 1, math.inf), {}, "per_sequence is inf"),
        ((1, 1, 1, "2"), {}, "TypeError: per_bin is .*; pass a number"),
        ((True,), {}, "TypeError: per_token is "),
        ((1,), {"window": 0}, "window is 0; pass a number of tokens"),
        ((1,), {"chunk": 2.5}, "TypeError: chunk is 2.5"),
        ((1,), {"window": 2, "window_share": 1.5}, "window_share is 1.5"),
        ((1,), {"window_share": 0.5}, "window_share is 0.5, but window is None"),
        ((1,), {"chunk_share": 0.5}, "chunk_share is 0.5, but chunk is None"),
        ((1,), {"window": 2, "chunk": 2}, "chunk_share is 1.0, .* 2 of all"),
        ((1,), {"per_tokens": 2}, "TypeError: per_token"),
    ],
)
def test_what_cannot_be(args, options, message):
    with raises(message):
        Costs(*args, **options)


def test_bins_that_cost_too_much():
    costs = Costs(per_token=1, per_bin=5)
    with raises("max_cost is 5; pass a number above 5, the per_bin of Co"):
        fc.planning.pack([1], fc.Packed(8, max_cost=5, cost=costs))
    with pytest.raises(ValueError, match=r"lengths\[1\] is 4.* 9.*max_cost=8"):
        fc.planning.pack([1, 4], fc.Packed(8, max_cost=8, cost=costs))
    with raises("cost is 'work'; pass 'tokens', 'flops', fc.planning.Costs"):
        fc.planning.partition([1, 2], 1, cost="work")


def test_each_sequence_is_a_segment_with_its_path():
    costs = Costs(2.0, 0.5, 3.0, per_segment=7.0, per_key=0.25)
    apart = Costs(2.0, 0.5, 3.0)
    lengths, shared = np.array([0, 4, 9]), np.array([0, 3, 5])
    np.testing.assert_array_equal(costs.of(lengths), apart.of(lengths) + 7 + lengths / 4)
    added = apart.of_added(lengths, shared) + 7 + lengths / 4
    np.testing.assert_array_equal(costs.of_added(lengths, shared), added)


def test_ranks_get_as_many_segments():
    """By tokens alone, one row would have a rank of its own."""
    for costs, most in (Costs(1.0), 10), (Costs(1.0, per_segment=1000.0), 6):
        step = fc.plan_step([100, *[10] * 10], layout=fc.Packed(400), shard_by=costs, dp_size=2)
        assert np.diff(step.bin_offsets).max() == most


def test_costs_may_be_those_of_segments_alone():
    costs = Costs(per_segment=2.0)
    assert costs.of([3, 50]).tolist() == [2.0, 2.0]
