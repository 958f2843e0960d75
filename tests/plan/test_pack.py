"""Sequences are packed as frameworks pack them, and nothing is lost."""

import math
import pickle
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from packings import pack, tables_of
from raising import raises
from recorded import recorded

import fastcollate as fc
from fastcollate.plan.layouts import layout_of
from fastcollate.testing.reference import pack_loops
from fastcollate.testing.reference.packing import adjust_bin_count_loops, split_heaviest_loops
from frameworks.installed import real

WHOLE = ["ffd", "stable_ffd", "ff", "bfd", "mffd", "next_fit", "balanced"]
ALGORITHMS = [*WHOLE, "concat"]
GOLDEN = recorded("packing")

COSTS = {
    "square": lambda length: length * length,
    "rounded": lambda length: 0.1 * length + 0.7,  # sums depend on their order
    "free": lambda length: 0.0 * length,
}


def pieces_of(plan):
    """Give the pieces of each bin: sequence, start, tokens."""
    columns = (plan.indices, plan.starts, plan.lengths)
    pieces = list(zip(*(column.tolist() for column in columns), strict=True))
    return [pieces[start:end] for start, end in pairwise(plan.offsets.tolist())]


def lengths_up_to(longest, max_size=30):
    return st.lists(st.integers(0, longest), max_size=max_size)


@st.composite
def problems(draw, algorithms=tuple(ALGORITHMS)):
    """Give lengths, a capacity, and options of the library and of the reference."""
    algorithm = draw(st.sampled_from(algorithms))
    capacity = draw(st.integers(1, 40))
    longest = draw(st.sampled_from([capacity // 3 + 1, capacity, 2 * capacity]))
    lengths = draw(lengths_up_to(longest))
    multiple = draw(st.sampled_from([1, 1, 2, 3, 8]))
    both = {
        "algorithm": algorithm,
        "max_sequences": draw(st.none() | st.integers(1, 5)),
        "min_bins": draw(st.sampled_from([0, 0, 3, 7])),
        "bins_multiple_of": draw(st.sampled_from([1, 1, 2, 3])),
        "allow_fewer_bins": draw(st.booleans()),
        "grow_by": draw(st.sampled_from(["move", "split"])),
    }
    ours = {**both, "multiple_of": multiple}
    theirs = {**both, "multiple": multiple, "oversize": "split"}
    if both["grow_by"] == "split":
        cost = COSTS[draw(st.sampled_from(sorted(COSTS)))]
        ours["cost"] = lambda lengths: cost(lengths.astype(float))
        theirs["cost"] = lambda length: cost(float(length))
    if algorithm == "concat":
        assume(multiple <= capacity)
        return lengths, capacity, ours, theirs
    ours["oversize"] = draw(st.sampled_from([None, "error", "own_bin", "split"]))
    theirs["oversize"] = ours["oversize"] or ("own_bin" if algorithm == "balanced" else "error")
    if draw(st.booleans()):
        names = st.sampled_from(range(max(1, 2 * len(lengths))))
        groups = [draw(names) for _ in lengths]
        ours["keep_together"] = theirs["groups"] = groups
    if draw(st.booleans()):
        cost = COSTS[draw(st.sampled_from(sorted(COSTS)))]
        max_cost = draw(st.sampled_from([capacity * capacity / 3, 2.5 * capacity, 1.4]))
        ours.update(max_cost=max_cost, cost=lambda lengths: cost(lengths.astype(float)))
        theirs.update(max_cost=max_cost, cost=lambda length: cost(float(length)))
    return lengths, capacity, ours, theirs


@given(problems())
def test_is_as_the_reference(problem):
    lengths, capacity, ours, theirs = problem
    try:
        expected = pack_loops(lengths, capacity, **theirs)
    except ValueError:
        with pytest.raises(ValueError, match=r"exceeds|no bin may be empty|no token fits"):
            pack(lengths, capacity, **ours)
        return
    plan = pack(lengths, capacity, **ours)
    assert pieces_of(plan) == expected
    assert plan.sequence_lengths.tolist() == lengths
    tables = (plan.offsets, plan.indices, plan.starts, plan.lengths, plan.loads)
    assert {table.dtype for table in tables} == {np.dtype(np.int64)}
    for same in (pickle.loads(pickle.dumps(plan)), fc.planning.BinPlan(**tables_of(plan))):
        assert same == plan
        assert same.sequence_lengths.tolist() == lengths
    assert plan != pack(lengths, capacity + 1, oversize="own_bin")


def test_the_costliest_bin_is_split():
    """As in prime-rl, where attention is the cost of a bin."""
    lengths = [6, 4, 5, 5]  # 52 and 50; both have 10 tokens
    options = {"algorithm": "stable_ffd", "min_bins": 3, "grow_by": "split"}
    squares = pack(lengths, 10, **options, cost=lambda lengths: lengths**2)
    assert squares.bins == [[0], [2, 3], [1]]
    assert pack(lengths, 10, **options, costs=[1, 1, 2, 2]).bins == [[0, 1], [2], [3]]
    assert pack(lengths, 10, **options).bins == squares.bins
    assert pack(lengths, 10, **options, cost="tokens").bins == [[0, 1], [2], [3]]


def test_splitting_many_bins_takes_no_longer_than_packing():
    lengths = np.zeros(200_000, np.int64)
    lengths[:3] = 1 << np.arange(3)
    options = {"grow_by": "split", "min_bins": 150_000, "algorithm": "ff"}
    plan = pack(lengths, 100, **options)
    assert plan.num_bins == 150_000
    assert len(np.unique(plan.indices)) == len(lengths)


def test_splitting_needs_the_cost_of_pieces():
    options = {"grow_by": "split", "min_bins": 4, "oversize": "split", "costs": [1, 2]}
    with pytest.raises(ValueError, match="cost"):
        pack([30, 3], 10, **options)
    with pytest.raises(ValueError, match="pass both, or grow_by='split'"):
        pack([3], 10, cost="tokens")
    with pytest.raises(ValueError, match="grow_by is 'halving'; pass 'move', 'split'"):
        pack([3], 10, grow_by="halving")


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["source"].split()[0])
def test_is_as_frameworks_do(case):
    options = {"algorithm": case["algorithm"], **case["options"]}
    if case["bins"] is None:
        with pytest.raises(ValueError, match="no bin may be empty"):
            pack(case["lengths"], case["capacity"], **options)
        return
    plan = pack(case["lengths"], case["capacity"], **options)
    is_of_pieces = isinstance(case["bins"][0][0], list)
    found = [[list(p) for p in b] for b in pieces_of(plan)] if is_of_pieces else plan.bins
    assert found == case["bins"]


axolotl = real("axolotl.utils.samplers.multipack")


@pytest.mark.skipif(axolotl is None, reason="axolotl was not downloaded (make peers)")
@given(lengths_up_to(20), st.integers(20, 40), st.integers(1, 5))
def test_ff_and_next_fit_are_those_of_axolotl(lengths, capacity, most):
    there = axolotl.pack_group(np.array(lengths, np.int64), 0, capacity, len(lengths), most)
    assert pack(lengths, capacity, algorithm="ff", max_sequences=most).bins == there
    there, *_ = axolotl.allocate_sequentially(np.array(lengths, np.int64), 0, capacity, 1)
    assert pack(lengths, capacity, algorithm="next_fit").bins == there


@given(st.data(), st.integers(0, 12), st.integers(1, 4), st.booleans())
def test_existing_bins_grow_as_in_the_reference(data, min_bins, multiple, is_few):
    count = data.draw(st.integers(0, 9))
    order = data.draw(st.permutations(range(count)))
    cuts = data.draw(st.sets(st.integers(0, count), max_size=4))
    bins = [order[start:end] for start, end in pairwise(sorted({0, *cuts, count}))]
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    name = data.draw(st.sampled_from(sorted(COSTS)))
    how = {"min_bins": min_bins, "bins_multiple_of": multiple, "allow_fewer_bins": is_few}
    plan = fc.planning.grow(bins, lengths)
    assert plan.bins == bins
    assert plan.sequence_lengths.tolist() == lengths
    assert plan.capacity == max([1, *(sum(lengths[i] for i in bin_) for bin_ in bins)])
    cost = [float(COSTS[name](float(length))) for length in lengths]
    split = {"grow_by": "split", "cost": cost}
    move = adjust_bin_count_loops, (bins,)
    for grown_by, (loops, values) in ({}, move), (split, (split_heaviest_loops, (bins, cost))):
        try:
            expected = loops(*values, min_bins, multiple, allow_fewer=is_few)
        except ValueError:
            for given_bins in (bins, lengths), (plan,):
                with pytest.raises(ValueError, match="no bin may be empty; pass a smaller"):
                    fc.planning.grow(*given_bins, **how, **grown_by)
            continue
        for given_bins in (bins, lengths), (plan,):
            grown = fc.planning.grow(*given_bins, **how, **grown_by)
            assert grown.bins == expected
            assert grown.sequence_lengths.tolist() == lengths
            assert grown.capacity == plan.capacity


def test_split_sequences_grow_by_pieces():
    plan = pack([25, 4], 10, oversize="split", multiple_of=2)
    assert pieces_of(plan) == [[(0, 10, 10)], [(0, 0, 10)], [(0, 20, 5), (1, 0, 4)]]
    grown = fc.planning.grow(plan, min_bins=4, grow_by="split", cost="tokens")
    assert pieces_of(grown) == [[(0, 10, 10)], [(0, 0, 10)], [(0, 20, 5)], [(1, 0, 4)]]
    assert (grown.capacity, grown.multiple_of) == (10, 2)
    with pytest.raises(ValueError, match="at least 5 bins, but there are only 4 pieces"):
        fc.planning.grow(plan, min_bins=5)


@pytest.mark.parametrize(
    ("bins", "lengths", "options", "message"),
    [
        ([[0], [0]], [1], {}, "sequence 0 is 2 times in bins; pass each"),
        ([[0], []], [1], {}, r"bins\[1\] is empty; leave it out"),
        ([[1]], [1, 2], {}, "sequence 0 is 0 times in bins; pass each"),
        ([[2**31]], [1], {}, f"have sequence {2**31}, but lengths has 1 item; pass"),
        ([[0], [0.5]], [1], {}, r"TypeError: bins\[1\]\[0\] is 0.5; pass an integer"),
        ([[0]], None, {}, "lengths is None, but bins are lists; pass the tokens"),
        ("ab", [1], {}, "TypeError: bins is 'ab'|bins is a str"),
        (pack([1], 2), [1], {}, "bins is a plan, which has them; leave it out"),
        ([[0]], [1], {"cost": "tokens"}, "grow_by is 'move'; leave cost out"),
        ([[0]], [1], {"grow_by": "cut"}, "grow_by is 'cut'; pass 'move', 'split'"),
        ([[0]], [1], {"min_bins": -1}, "min_bins is -1; pass a number of bins, 0 or"),
        ([[0]], [1], {"allow_fewer_bins": 1}, "TypeError: allow_fewer_bins is 1; pass True or"),
        (
            [[0, 1]],
            [1, 2],
            {"grow_by": "split", "cost": [1.0]},
            r"cost is .* for 2 lengths; pass one number for each",
        ),
    ],
)
def test_wrong_bins_to_grow(bins, lengths, options, message):
    with raises(message):
        fc.planning.grow(bins, lengths, **options)


def test_trees_do_not_grow_by_moving():
    tree = fc.planning.prefix_tree([[1, 2]] * 2, [[3], [4]])
    with pytest.raises(TypeError, match=r"rows share tokens; pass min_bins .* TreePlan.pack"):
        fc.planning.grow(tree.pack(fc.Tree(10)))
    bins = tree.pack(fc.Tree(10, bins_multiple_of=4, allow_fewer_bins=True))
    assert bins.num_bins == 2


@pytest.mark.parametrize(
    ("groups", "options", "message"),
    [
        (
            "aabbc",
            {"max_sequences": 1},
            "keep_together puts 2 sequences, of which 0 is the first, in one bin, which exceeds "
            "max_sequences=1; pass a larger max_sequences",
        ),
        (
            "aaabb",
            {},
            "keep_together puts 3 sequences, of which 0 is the first, in one bin, with 14 "
            "tokens, which exceeds capacity=10; pass oversize='own_bin', or a larger capacity",
        ),
        ("abcab", {"min_bins": 4}, "min_bins is 4, .* only 3 groups .*; pass a smaller min_bins"),
    ],
)
def test_groups_stay_together(groups, options, message):
    lengths = [4, 6, 4, 3, 2]
    # b has 9 tokens, a 8 and c 2.
    assert pack(lengths, 10, keep_together=list("ababc")).bins == [[1, 3], [0, 2, 4]]
    with pytest.raises(ValueError, match=message):
        pack(lengths, 10, keep_together=list(groups), **options)
    # Only what is alone in its group can be split.
    plan = pack([25, 4, 4], 10, keep_together=list("abb"), oversize="split")
    assert plan.bins == [[0], [0], [1, 2], [0]]
    assert pack([25, 4, 4], 10, keep_together=list("aab"), oversize="own_bin").num_bins == 2


class Unhashable:
    """An id that can only be compared."""

    __hash__ = None

    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return isinstance(other, Unhashable) and self.name == other.name


@pytest.mark.parametrize(
    "names",
    [
        ["b", "a", "b", "c", "a"],
        (7, 3, 7, 9, 3),
        [("b",), ("a",), ("b",), None, ("a",)],
        [["b"], ["a"], ["b"], ["c"], ["a"]],
        [2.5, 0.5, 2.5, 9.0, 0.5],
        np.array([7, 3, 7, 9, 3]),
        np.array(["b", "a", "b", "c", "a"]),
        np.array([0.5, 0.25, 0.5, np.nan, 0.25]),
        [Unhashable(name) for name in "babca"],
        [1, "a", 1, Unhashable("c"), "a"],
    ],
    ids=lambda names: f"{type(names).__name__} of {type(names[0]).__name__}",
)
def test_groups_have_names_of_any_kind(names):
    plan = pack([3, 3, 3, 3, 3], 6, keep_together=names, algorithm="ff")
    assert plan.bins == [[0, 2], [1, 4], [3]]


def test_groups_have_names_in_tensors_and_arrow():
    torch = pytest.importorskip("torch")
    names = torch.tensor([7, 3, 7, 9, 3])
    assert pack([3] * 5, 6, keep_together=names).bins == [[1, 4], [0, 2], [3]]
    assert pack([3] * 5, 6, keep_together=list(names)).bins == [[1, 4], [0, 2], [3]]
    arrow = pytest.importorskip("pyarrow").array(["b", "a", "b", "c", "a"])
    assert pack([3] * 5, 6, keep_together=arrow).bins == [[1, 4], [0, 2], [3]]


@pytest.mark.parametrize(
    "lengths",
    [
        [5, 3, 7],
        (5, 3, 7),
        np.array([5, 3, 7], np.uint8),
        np.array([0, 5, 0, 3, 0, 7])[1::2],
        np.array([5, 3, 7], ">i4"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lengths_of_any_kind(lengths, algorithm):
    assert pack(lengths, 10, algorithm=algorithm) == pack([5, 3, 7], 10, algorithm=algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nothing_to_pack(algorithm):
    for lengths in ([], np.array([], np.int64), ()):
        plan = pack(lengths, 10, algorithm=algorithm)
        assert plan.bins == []
        assert plan.efficiency == 1.0
        assert plan.metrics["pack/num_bins"] == 0.0
        assert "0 bins" in plan.describe()
    assert pack([], 10, algorithm=algorithm, bins_multiple_of=4).num_bins == 0
    with pytest.raises(ValueError, match=r"min_bins is 1, .* at least 1 bin, but there are only 0"):
        pack([], 10, algorithm=algorithm, min_bins=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": [3, -1]}, r"lengths\[1\] is -1; pass lengths of 0 or more"),
        ({"lengths": [1 << 40]}, r"lengths\[0\] is 1099511627776; pass lengths of at"),
        ({"lengths": [3, 4.0]}, "TypeError: lengths.* is .*; pass an integer"),
        ({"capacity": 9.0}, r"TypeError: capacity is 9.0, a float; pass int\(9.0\)"),
        ({"lengths": [[3], [4]]}, r"TypeError: lengths\[0\] is \[3\]; .*\[len\(ids\) for ids in"),
        ({"lengths": 3}, "TypeError: lengths is 3; pass the number of tokens"),
        ({"lengths": [True]}, "TypeError: lengths.* is .*; pass an integer"),
        ({"capacity": 0}, "capacity is 0; pass a number of tokens, 1 or more"),
        ({"capacity": -4}, "capacity is -4; pass a number of tokens, 1 or more"),
        ({"capacity": 4.5}, "TypeError: capacity is 4.5; pass a number of tokens"),
        ({"capacity": 1 << 70}, "capacity is .* which does not fit int64"),
        ({"lengths": [3, 9, 9, 5], "capacity": 2}, r"lengths\[1\] is 9, which exceeds"),
        (
            {"capacity": 4, "algorithm": "first_fit_decreasing"},
            "algorithm is 'first_fit_decreasing'; did you mean 'ffd'",
        ),
        (
            {"multiple_of": 8, "capacity": 7},
            r"lengths\[0\] is 5, rounded up to 8, which exceeds capacity=7",
        ),
        ({"algorithm": "best"}, "algorithm is 'best'; pass 'ffd', 'stable_ffd', 'ff'"),
        ({"algorithm": None}, "TypeError: algorithm is None .*; pass 'ffd'"),
        ({"oversize": "drop"}, "oversize is 'drop'; pass 'error', 'own_bin', 'split'"),
        ({"oversize": 3}, "TypeError: oversize is 3"),
        ({"max_sequences": 0}, "max_sequences is 0; pass a number of sequences"),
        ({"multiple_of": 0}, "multiple_of is 0; pass"),
        ({"multiple_of": 1 << 31}, "multiple_of .* not fit int32; pass a number"),
        ({"min_bins": -1}, "min_bins is -1; pass a number of bins, 0 or more"),
        ({"bins_multiple_of": 0}, "bins_multiple_of is 0; pass a number of bins"),
        (
            {"min_bins": 4},
            "min_bins is 4, so there must be at least 4 bins, but there are only 3 sequences and "
            "no bin may be empty; pass a smaller min_bins, more sequences, or allow_fewer",
        ),
        (
            {"min_bins": 3, "bins_multiple_of": 2},
            "min_bins is 3 and bins_multiple_of is 2, .* 4 bins.*; pass a smaller min_bins or",
        ),
        ({"bins_multiple_of": 4}, "is 4, .* 4 bins, but .* only 3 sequences"),
        ({"bins_multiple_of": 1 << 60}, "but there are only 3 sequences"),
        ({"keep_together": ["a", "b"]}, "keep_together has 2 items, but there are 3"),
        ({"keep_together": "abc"}, "TypeError: keep_together is 'abc'; pass a sequence"),
        (
            {"keep_together": [np.zeros(2), np.zeros(2), None]},
            r"TypeError: keep_together\[1\] is .* be compared .*; pass strings, integers",
        ),
        ({"max_cost": 0}, "max_cost is 0; pass a number above 0"),
        ({"max_cost": math.nan}, "max_cost is nan; pass a number above 0"),
        ({"max_cost": "8"}, "TypeError: max_cost is '8'"),
        ({"max_cost": True}, "TypeError: max_cost is True"),
        ({"max_cost": 9, "costs": [1, 2, math.nan]}, "costs is nan for sequence 2"),
        ({"max_cost": 9, "costs": [1, -2, 3]}, "costs is -2 for sequence 1"),
        ({"max_cost": 9, "costs": [1, 2]}, "for 3 lengths; pass one number for each"),
        ({"max_cost": 9, "cost": "bytes"}, "cost is 'bytes'; pass 'tokens', 'flops'"),
        ({"max_cost": 9, "cost": None}, "TypeError: cost is None"),
        ({"cost": "tokens"}, "cost is given, but max_cost is None; pass both"),
        (
            {"max_cost": 9, "costs": [9, 10, 9], "oversize": "split"},
            r"lengths\[1\] is 3 and has to be split, but cost has .*; pass cost as a name",
        ),
        (
            {"max_cost": 9, "oversize": "split"},
            r"lengths\[0\] is 5, but already 1 token cost 24,577, .*; pass a larger max_cost",
        ),
        (
            {"max_cost": 20, "cost": lambda x: 10.0 + (x == 3) * 90, "oversize": "split"},
            r"lengths\[1\] is 3, with a cost of 100, which exceeds max_cost=20",
        ),
        (
            {"oversize": "split", "capacity": 4, "multiple_of": 8},
            "multiple_of is 8, but capacity is 4, .*; pass a capacity of at least 8",
        ),
        ({"algorithm": "concat", "oversize": "own_bin"}, "oversize is 'own_bin', but"),
        ({"algorithm": "concat", "max_cost": 9}, "leave max_cost out, or pass another"),
        ({"algorithm": "concat", "keep_together": "abc"}, "TypeError: pass a sequence"),
        ({"algorithm": "concat", "keep_together": [1, 2, 3]}, "leave keep_together"),
        (
            {"algorithm": "concat", "multiple_of": 11},
            "multiple_of is 11, but capacity is 10, .*; pass a capacity",
        ),
        (
            {"algorithm": "concat", "lengths": [1 << 31], "capacity": 1},
            "sequences would be split into more than 67,108,864 pieces; pass a larger capacity",
        ),
        (
            {"lengths": [1 << 31], "capacity": 1, "oversize": "split"},
            "sequences would be split into more than 67,108,864 pieces",
        ),
    ],
)
def test_bad_input(changes, message):
    with raises(message):
        pack(**{"lengths": [5, 3, 7], "capacity": 10, **changes})


def test_a_plan_says_what_is_in_it():
    plan = pack([5, 3, 7, 2, 3], 10, multiple_of=2, algorithm="ff")
    assert plan.bins == [[0, 1], [2, 3], [4]]
    assert plan.loads.tolist() == [10, 10, 4]
    assert (plan.num_bins, plan.num_sequences, plan.is_split) == (3, 5, False)
    assert plan.efficiency == pytest.approx(20 / 30)
    assert repr(plan) == "BinPlan: 5 sequences in 3 bins of 10 tokens, 66.7% full"
    assert plan.metrics == {
        "pack/num_bins": 3.0,
        "pack/num_sequences": 5.0,
        "pack/num_tokens": 20.0,
        "pack/efficiency": pytest.approx(20 / 30),
        "pack/max_load": 10.0,
        "pack/min_load": 4.0,
        "pack/max_sequences": 2.0,
        "pack/bins_over_capacity": 0.0,
    }
    assert plan.describe().splitlines()[1:] == [
        "     per bin  least  mean  most",
        "      tokens      3   6.7     9",
        "with padding      4   8.0    10",
        "   sequences      1   1.7     2",
    ]
    over = pack([5, 3], 4, oversize="own_bin")
    assert over.metrics["pack/bins_over_capacity"] == 1.0
    assert over.metrics["pack/max_load"] == 5.0


def good_tables():
    return tables_of(pack([12, 3], 10, oversize="split"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"offsets": [0, 1, 2]},
            r"offsets must start at 0 and end at 3 \(.*\), but go from 0 to 2",
        ),
        ({"offsets": [1, 2, 3]}, r"\(the number of pieces\), but go from 1 to 3; pass the tables"),
        ({"offsets": []}, "but are empty"),
        ({"offsets": [0, 2, 1, 3]}, "offsets fall from 2 to 1 at index 2"),
        ({"offsets": [[0, 3]]}, r"offsets has shape \(1, 2\), but must be"),
        ({"offsets": [0.0, 3.0]}, "offsets is float64 .*; pass an array of int64"),
        ({"offsets": [0, [1]]}, "inhomogeneous"),
        ({"indices": [0, 1]}, r"have \(2,\), \(3,\) and \(3,\)"),
        ({"indices": [0, 1, 2]}, r"indices\[2\] is 2, but there are 2 sequences"),
        ({"indices": [0, -1, 1]}, r"indices\[1\] is -1, but"),
        ({"indices": [0, 0, 0]}, "sequence 1 is in no bin"),
        ({"starts": [0, 0, 9]}, "the pieces of sequence 0 have gaps or overlaps"),
        ({"starts": [1, 0, 10]}, "the pieces of sequence 0 have gaps or overlaps"),
        ({"lengths": [10, 3, -2]}, r"lengths\[2\] is -2, but must be from 0"),
        ({"lengths": [10, 3, 0]}, "the pieces of sequence 0 have gaps or overlaps"),
        ({"lengths": [9, 3, 2]}, "the pieces of sequence 0 have gaps or overlaps"),
        ({"num_sequences": 4}, "there are 4 sequences, but only 3 pieces"),
        ({"num_sequences": -1}, "num_sequences is -1, but must be 0 or more; pass the tables"),
        ({"num_sequences": "2"}, "num_sequences is '2'"),
        ({"capacity": 0}, "capacity is 0, but must be 1 or more"),
        ({"multiple_of": 0}, "multiple_of is 0, but must be 1 or more"),
        ({"multiple_of": 1 << 40}, "does not fit int32"),
    ],
    ids=str,
)
def test_plans_are_checked(changes, message):
    tables = good_tables()
    assert pieces_of(fc.planning.BinPlan(**tables)) == [[(0, 0, 10)], [(1, 0, 3), (0, 10, 2)]]
    with pytest.raises(ValueError, match=f"this is not a valid bin plan: .*{message}"):
        fc.planning.BinPlan(**{**tables, **changes})


def test_plans_cannot_be_changed():
    plan = pack([4, 3], 10)
    with pytest.raises(ValueError, match="read-only"):
        plan.indices[0] = 1
    with pytest.raises(AttributeError):
        plan.capacity = 11
    assert hash(plan) == hash(pack([4, 3], 10))


def fewest_tokens(lens, bins):
    """Return the smallest possible load of the fullest bin, by trying all assignments."""
    return min(
        max(
            sum(n for n, of in zip(lens, places, strict=True) if of == bin_) for bin_ in range(bins)
        )
        for places in product(range(bins), repeat=len(lens))
    )


@given(
    lens=st.lists(st.integers(0, 30), min_size=1, max_size=7),
    bins=st.integers(1, 3),
    algorithm=st.sampled_from(["ffd", "ff", "bfd", "mffd", "next_fit", "balanced"]),
)
def test_as_narrow_bins_as_can_be(lens, bins, algorithm):
    if bins > len(lens):
        with pytest.raises(ValueError, match=f"num_bins is {bins}, but there are only"):
            pack(lens, num_bins=bins)
        return
    plan = pack(lens, num_bins=bins, algorithm=algorithm)
    assert plan.num_bins == bins
    assert plan.capacity == max(1, *plan.loads.tolist())
    assert sorted(row for rows in plan.bins for row in rows) == list(range(len(lens)))
    best = fewest_tokens(lens, bins)
    assert best <= max(plan.loads) <= (3 if algorithm == "next_fit" else 2) * best
    if algorithm == "ffd":  # as proved by Yue (1990)
        assert max(plan.loads) <= best * 13 / 11
    # No smaller capacity was left out, as far as one follows on the other.
    narrower = {"capacity": plan.capacity - 1, "algorithm": algorithm, "oversize": "own_bin"}
    if plan.capacity > max(1, *lens):
        assert pack(lens, **narrower).num_bins > bins or algorithm != "ffd"


def test_as_many_bins_with_other_limits():
    plan = pack([5] * 10, num_bins=4, max_sequences=3)
    assert sorted(np.diff(plan.offsets).tolist()) in ([1, 3, 3, 3], [2, 2, 3, 3])
    groups = pack([5, 1, 1, 5], num_bins=2, keep_together=list("abba"))
    assert sorted(groups.bins) == [[0, 3], [1, 2]]
    rounded = pack([5, 1, 1, 5], num_bins=2, multiple_of=8)
    assert rounded.capacity == 16
    layout = fc.Packed(num_bins=2)
    assert layout_of(layout.to_dict()) == layout
    batch = fc.build_batch(
        [[1]] * 4, [[2] * n for n in (4, 1, 1, 4)], pad_token_id=0, layout=layout
    )
    assert batch.input_ids.shape == (2, 7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_bins": 0}, "num_bins is 0; pass a number of bins, 1 or more"),
        ({"num_bins": 1.5}, "TypeError: num_bins is 1.5"),
        ({"num_bins": 2, "capacity": 5}, "num_bins is 2, .*capacity is given.*;"),
        ({"num_bins": 2, "min_bins": 5}, "min_bins is given"),
        ({"num_bins": 2, "algorithm": "concat"}, "algorithm='concat' is given"),
        ({"num_bins": 2, "oversize": "split"}, "oversize='split' is given"),
        ({"num_bins": 2, "max_sequences": 1}, "num_bins is 2, but so few .*max_sequences"),
        ({}, r"capacity and plan are None; pass fc.Packed\(capacity=...\)"),
    ],
)
def test_numbers_of_bins_that_cannot_be(options, message):
    with raises(message):
        pack([1, 2, 3], **options)


@pytest.mark.parametrize(
    ("layout", "options", "message"),
    [
        (10, {}, r"TypeError: layout is 10 \(int\); pass fc.Packed\(capacity=...\)"),
        (fc.Tree(10), {}, r"TypeError: layout is Tree\(capacity=10\) .*; pass fc.Packed"),
        (fc.Packed.single_row(), {}, r"Packed.single_row\(\), which has its bins"),
        (fc.Packed(plan=[[0, 1]]), {}, "which has its bins already; pass fc.Packed"),
        (fc.Packed(10), {"costs": [1, 2]}, "which does not use them; pass max_cost"),
        (
            fc.Packed(10, algorithm="concat", grow_by="split"),
            {"costs": [1, 2]},
            "costs is given, but algorithm='concat' cuts",
        ),
    ],
)
def test_layouts_that_do_not_pack(layout, options, message):
    with raises(message):
        fc.planning.pack([3, 4], layout, **options)
