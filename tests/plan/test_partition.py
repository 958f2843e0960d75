"""partition parts sequences as its reference does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raising import raises

import fastcollate as fc
from fastcollate.testing.reference import partitioning as reference

ALGORITHMS = {
    "karmarkar_karp": lambda *args: list(map(sorted, reference.karmarkar_karp_loops(*args))),
    "lpt": reference.lpt_loops,
    "lpt_swap": reference.lpt_swap_loops,
}
DTYPES = ["int64", "int32", "uint8", "float32", "float64"]


@st.composite
def problems(draw, dtypes=DTYPES, exact=False):
    """Draw weights, a number of parts, and whether these are of equal size."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    equal_size = draw(st.booleans())
    k = draw(st.integers(1, 6))
    # Few different numbers tie often; sums of many different floats depend on their order.
    few = st.integers(0, 3).map(float)
    many = st.integers(0, 200) if dtype.kind != "f" or exact else st.floats(0, 1e4, width=32)
    numbers = draw(st.sampled_from([few, many]))
    count = k * draw(st.integers(1, 5)) if equal_size else draw(st.integers(k, 25))
    weights = draw(st.lists(numbers, min_size=count, max_size=count))
    return np.array(weights).astype(dtype), k, equal_size


@given(problems())
def test_karmarkar_karp_is_the_reference(problem):
    weights, k, equal_size = problem
    # Items of an array are added in the array's dtype, integers without its limits.
    items = weights.astype(np.int64) if weights.dtype.kind in "iu" else weights
    expected = ALGORITHMS["karmarkar_karp"](list(items), k, equal_size)
    assert fc.planning.partition(weights, k, equal_size=equal_size) == expected


@given(problems(dtypes=["int64", "float64"], exact=True))
@pytest.mark.parametrize("algorithm", ["lpt", "lpt_swap"])
def test_largest_first_is_the_reference(algorithm, problem):
    weights, k, equal_size = problem
    found = fc.planning.partition(weights, k, algorithm=algorithm, equal_size=equal_size)
    assert found == ALGORITHMS[algorithm](weights.tolist(), k, equal_size)


@pytest.mark.parametrize("k", [1, 4_000, 19_000, 20_000])
def test_thousands_of_parts(k):
    lengths = np.random.default_rng(1).lognormal(7, 1, 20_000).astype(np.int64)
    for algorithm in ALGORITHMS:
        parts = fc.planning.partition(lengths, k, algorithm=algorithm)
        assert len(parts) == k
        loads = [int(lengths[part].sum()) for part in parts]
        assert sum(loads) == lengths.sum()
        # Greedy bounds: nothing heavier than a fair share and one more sequence.
        assert max(loads) <= lengths.sum() / k + lengths.max()


def test_costs():
    lengths = [5, 80_000, 40_000, 40_000, 7]
    by_tokens = fc.planning.partition(lengths, 2)
    assert by_tokens == fc.planning.partition(lengths, 2, cost="tokens")
    assert sorted(map(len, by_tokens)) == [2, 3]
    flops = [24_576 * length + length * length for length in lengths]
    assert fc.planning.partition(lengths, 2, cost="flops") == fc.planning.partition(flops, 2)
    seen = []

    def cost(found):
        seen.append(found)
        return found % 7

    assert fc.planning.partition(lengths, 2, cost=cost) == fc.planning.partition(
        [n % 7 for n in lengths], 2
    )
    assert seen[0].dtype == np.int64
    assert sorted(fc.planning.partition(lengths, 2, cost=[1, 1, 1, 1, 4])) == [[0, 1, 2, 3], [4]]
    assert fc.planning.partition(lengths, 5, cost=[0] * 5, algorithm="lpt") == [
        [0],
        [1],
        [2],
        [3],
        [4],
    ]


def test_integers_are_added_exactly():
    # As floats, the first two would weigh the same, and so would all sums.
    weights = [2**62 + 1, 2**62, 2**62, 2**62]
    parts = fc.planning.partition(weights, 2)
    assert parts == ALGORITHMS["karmarkar_karp"](weights, 2, False)
    weights = [255, 255, 255, 1]
    assert fc.planning.partition(np.array(weights, np.uint8), 2) == fc.planning.partition(
        weights, 2
    )


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        (([1, 2], 0), {}, "k is 0; pass a number of parts, 1 or more"),
        (([1, 2], -1), {}, "k is -1"),
        (([1, 2], 1.5), {}, "TypeError: k is 1.5"),
        (([1, 2], 3), {}, "k is 3, but lengths has 2 items .*; pass more"),
        (([], 1), {}, "k is 1, but lengths has 0 items"),
        (([1, 2, 3], 2), {"equal_size": True}, "k is 2, which does not.*; pass a divisor of 3 as"),
        (([1, -2], 1), {}, "lengths has -2 for sequence 1; pass numbers"),
        (([1, float("nan")], 1), {}, "lengths has nan for sequence 1"),
        (([float("inf"), 1], 1), {}, "lengths has inf for sequence 0"),
        (
            (np.array([1, 2**63], np.uint64), 1),
            {},
            "lengths has 9223372036854775808 for sequence 1",
        ),
        ((["a"], 1), {}, "TypeError: lengths has"),
        (([[1], [2, 3]], 1), {}, r"TypeError: lengths has \[\[1\], \[2, 3\]\]"),
        ((None, 1), {}, "TypeError: lengths has None"),
        ((5, 1), {}, "TypeError: lengths has 5"),
        (({1, 2}, 1), {}, "TypeError: lengths has"),
        ((np.ones((2, 2)), 1), {}, "TypeError: float64 ndarray of shape"),
        (([1], 1), {"algorithm": "kk"}, "algorithm is 'kk'; pass 'karmarkar_karp'"),
        (([1], 1), {"algorithm": 3}, "TypeError: algorithm is 3"),
        (([1], 1), {"equal_size": 1}, "TypeError: equal_size is 1"),
        (([1], 1), {"cost": "time"}, "cost is 'time'; pass 'tokens', 'flops'"),
        (([1], 1), {"cost": 3}, r"TypeError: cost is 3 \(int\)"),
        (([1], 1), {"cost": [float("nan")]}, "cost is nan for sequence 0"),
        (([1], 1), {"cost": [1, 2]}, "for 1 lengths; pass one number for each"),
        (([1], 1), {"cost": lambda n: -n}, "the function cost returned -1"),
        (([1.5], 1), {"cost": "tokens"}, "TypeError: ; pass an integer"),
        (([-1], 1), {"cost": "tokens"}, r"lengths\[0\] is -1; pass"),
    ],
)
def test_bad_input(args, options, message):
    with raises(message):
        fc.planning.partition(*args, **options)


def test_floats_whose_sum_does_not_fit():
    with pytest.raises(ValueError, match="sum does not fit float32; pass smaller"):
        fc.planning.partition(np.array([3e38, 3e38], np.float32), 2)
