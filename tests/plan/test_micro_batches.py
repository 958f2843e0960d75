"""micro_batches keeps the cap, gives ranks as many, and is what its reference makes."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raising import raises

import fastcollate as fc
from fastcollate import _fastcollate
from fastcollate.plan.partitioning import MicroBatches
from fastcollate.testing import reference

COSTS = {"flops": lambda length: 24_576 * length + length * length, "tokens": lambda length: length}


@st.composite
def problems(draw):
    """Draw lengths, a capacity and options."""
    capacity = draw(st.integers(1, 40))
    options = {
        "dp_size": draw(st.integers(1, 3)),
        "bins_multiple_of": draw(st.integers(1, 3)),
        "order": draw(st.sampled_from(["small_ends", "descending", "ascending"])),
        "min_bins": draw(st.integers(1, 3)),
        "cost": draw(st.sampled_from(sorted(COSTS))),
    }
    lengths = draw(st.lists(st.integers(0, capacity), max_size=25))
    return lengths, capacity, options


def expected_of(lengths, capacity, options):
    names = ("dp_size", "bins_multiple_of", "order", "min_bins")
    cost = COSTS[options["cost"]]
    return reference.micro_batches_loops(lengths, capacity, *map(options.get, names), cost)


@given(problems())
def test_the_reference(problem):
    lengths, capacity, options = problem
    expected = expected_of(lengths, capacity, options)
    if expected is None:
        with pytest.raises(ValueError, match="sequence"):
            fc.planning.micro_batches(lengths, capacity, **options)
        return
    micro = fc.planning.micro_batches(lengths, capacity, **options)
    assert [micro.of_rank(rank) for rank in range(options["dp_size"])] == expected
    parts = [part for of_rank in expected for part in of_rank]
    assert micro.num_bins == micro.per_rank * micro.dp_size == len(parts)
    assert micro.loads.tolist() == [sum(lengths[item] for item in part) for part in parts]
    flat = np.array([item for part in parts for item in part])
    assert flat[micro.inverse].tolist() == list(range(len(lengths)))
    assert micro == fc.planning.micro_batches(np.array(lengths), capacity, **options)


@pytest.mark.parametrize("min_bins", [1, 520])
def test_the_reference_where_numbers_are_left_out(min_bins):
    options = {"dp_size": 1, "bins_multiple_of": 1, "order": "ascending", "min_bins": min_bins}
    lengths = np.random.default_rng(1).lognormal(2, 1, 800).clip(1, 24).astype(int).tolist()
    expected = expected_of(lengths, 24, {**options, "cost": "flops"})
    micro = fc.planning.micro_batches(lengths, 24, **options)
    assert [micro.of_rank(0)] == expected
    assert micro.num_bins > 256


@pytest.mark.parametrize("dp_size", [1, 4])
@pytest.mark.parametrize("spread", [0.1, 0.5, 1, 2])
@pytest.mark.parametrize("cost", ["flops", "tokens"])
def test_the_number_exceeds_the_smallest_by_one_in_a_hundred_at_most(cost, spread, dp_size):
    most = 0.0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        lengths = rng.lognormal(6, spread, 6_000).clip(1, 4_096).astype(np.int64)
        costs = COSTS[cost](lengths)
        micro = fc.planning.micro_batches(lengths, 4_096, dp_size, cost=costs)
        parts = -(-int(lengths.sum()) // 4_096)
        parts = max(parts, int((2 * lengths > 4_096).sum()))
        first = -(-parts // dp_size) * dp_size
        found = _fastcollate.split_micro_batches(costs, lengths, 4_096, first, dp_size, True, None)
        most = max(most, micro.num_bins / (len(found[0]) - 1))
    assert most <= 1.01


def test_tables():
    micro = fc.planning.micro_batches([4, 3, 3, 2, 2, 2], 6, dp_size=2)
    assert pickle.loads(pickle.dumps(micro)) == micro
    assert MicroBatches(**vars(micro)) == micro
    assert repr(micro) == (
        "MicroBatches: 6 sequences in 2 micro-batches for each of 2 ranks, at most 5 of 6 tokens"
    )
    assert repr(fc.planning.micro_batches([1], 6)) == (
        "MicroBatches: 1 sequence in 1 micro-batch, at most 1 of 6 tokens"
    )
    with pytest.raises(ValueError, match="read-only"):
        micro.indices[0] = 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dp_size": 3}, "dp_size is 3, which does not divide 4 micro-batches; pass the tables"),
        ({"dp_size": 0}, "dp_size is 0, which does not divide 4 micro-batches"),
        ({"capacity": 4}, "micro-batch 0 has 5 tokens, but capacity is 4"),
        ({"indices": [0, 0, 1, 2, 3, 4]}, "sequence 5 is in no bin"),
        ({"indices": [0, 9, 1, 2, 3, 4]}, r"indices\[1\] is 9, but there are 6 sequences"),
        ({"indices": [0, 1]}, r"have \(2,\), \(6,\) and \(6,\)"),
        ({"indices": [0.0] * 6}, "indices is .*; pass an array of int64"),
        ({"offsets": [0, 2, 2, 4, 6]}, "offsets must rise, but go from 2 to 2; pass the tables"),
        ({"offsets": [0, 2]}, "offsets"),
        ({"offsets": []}, "offsets"),
        ({"lengths": [4, 3, 3, 2, 2, -2]}, r"lengths\[5\] is -2, but must be from 0"),
    ],
)
def test_tables_are_checked(changes, message):
    tables = vars(fc.planning.micro_batches([4, 3, 3, 2, 2, 2], 6, dp_size=2))
    with pytest.raises(ValueError, match=message):
        MicroBatches(**{**tables, **changes})


def test_rows_of_a_micro_batch(array_type):
    prompts = [[1] * n for n in (4, 3, 3, 2, 2, 2)]
    responses = [[10 * n + 10] for n in range(6)]
    batch = fc.build_batch(prompts, responses, pad_token_id=0, array_type=array_type)
    micro = fc.planning.micro_batches(batch.prompt_lens + batch.response_lens, 9, dp_size=2)
    results = []
    for rank in range(2):
        for index in range(micro.per_rank):
            shard = micro.shard(index, rank)
            part = batch.select(shard)
            again = fc.build_batch(
                prompts, responses, pad_token_id=0, array_type=array_type, shard=shard
            )
            assert np.asarray(part.input_ids)[:, -1].tolist() == [
                10 * row + 10 for row in micro.of_rank(rank)[index]
            ]
            assert np.asarray(again.input_ids)[:, -1].tolist() == [
                10 * row + 10 for row in micro.of_rank(rank)[index]
            ]
            results += np.asarray(part.input_ids)[:, -1].tolist()
    assert np.array(results)[micro.inverse].tolist() == [10, 20, 30, 40, 50, 60]
    other = fc.build_batch(prompts[:-1], responses[:-1], pad_token_id=0, array_type=array_type)
    with pytest.raises(ValueError, match="6"):
        other.select(micro.shard(0, 0))


def test_ranks_and_places_are_counted_from_0():
    micro = fc.planning.micro_batches([4, 3, 3, 2, 2, 2], 6, dp_size=2)
    for call in (
        lambda: micro.of_rank(2),
        lambda: micro.of_rank(-1),
        lambda: micro.shard(2, 0),
        lambda: micro.shard(0, 2),
    ):
        with pytest.raises(IndexError, match="but there are 2; pass an index from 0 to 1"):
            call()


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        (([7, 4], 6), {}, r"lengths\[0\] is 7, which exceeds capacity=6; pass a larger"),
        (([1], 0), {}, "capacity is 0; pass a number of tokens, 1 or more"),
        (([1], -5), {}, "capacity is -5"),
        (([1], 1.5), {}, "TypeError: capacity is 1.5"),
        (([1], 1, 0), {}, "dp_size is 0"),
        (([1], 1, 1, 0), {}, "bins_multiple_of is 0"),
        (([1], 1), {"min_bins": 0}, "min_bins is 0"),
        (([1], 1), {"order": "random"}, "order is 'random'; pass 'small_ends'"),
        (([1], 1), {"order": None}, "TypeError: order is None"),
        (([-1], 1), {}, r"lengths\[0\] is -1; pass lengths of 0 or more"),
        (([1.0], 1), {}, "TypeError: lengths.* is .*; pass an integer"),
        (([1], 1), {"cost": [float("nan")]}, "cost is nan for sequence 0"),
        (([1], 1), {"cost": "time"}, "cost is 'time'"),
        (([], 1), {}, "at least 1 micro-batch, but lengths has 0 items"),
        (([6, 6, 6], 6, 2), {}, "at least 2 micro-batches for each of 2 ranks, but lengths has 3"),
        (
            ([1, 1], 6),
            {"min_bins": 3},
            "at least 3 micro-batches.* smaller dp_size, bins_multiple_of or min_bins",
        ),
        (
            ([4, 4, 3], 6, 1, 2),
            {},
            "3 sequences into 2 micro-batches was found .* capacity=6, .*; pass a larger capacity",
        ),
    ],
)
def test_bad_input(args, options, message):
    with raises(message):
        fc.planning.micro_batches(*args, **options)
