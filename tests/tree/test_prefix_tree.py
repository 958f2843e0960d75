"""Trees of rows that begin alike: those of a trie, cut and packed without a token lost."""

import math
import pickle
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from packings import tables_of
from raising import raises
from strategies import as_inputs, forks, merge_options, name_turns
from strategies import trajectories as drawn_trajectories
from tries import count_tokens, depths_of, mask_of
from turns import turns

import fastcollate as fc
from fastcollate.plan.tree_bins import TreeBins
from fastcollate.planning import TreePlan, prefix_tree
from fastcollate.testing.reference import merge_turns_loops, prefix_tree_loops

ALGORITHMS = ["ffd", "ff", "bfd", "mffd", "next_fit", "balanced"]

# "abc" by three rows, "abcd" by two of them; a row of its own, one without a token, and a copy.
TEXTS = ["abc>de", "x>yz", "abc>df", ">", "ab>c", "x>yz"]


@st.composite
def sharing(draw, data):
    """Draw which rows share what: arguments of `prefix_tree`."""
    count = len(data.prompts)
    ids = st.lists(st.integers(0, 2), min_size=count, max_size=count)
    share = draw(st.sampled_from(["all", "all", "group", "prompts"]))
    return {
        "share": share,
        "uids": draw(ids) if share == "group" else None,
        "same_inputs": draw(st.none() | ids),
    }


def of_forks():
    """Give rows and arguments of `prefix_tree`."""
    return forks().flatmap(lambda data: st.tuples(st.just(data), sharing(data)))


@given(st.data())
def test_plans_are_those_of_a_trie_whatever_rows_are(data):
    forked, options = data.draw(of_forks())
    inputs = data.draw(as_inputs(forked))
    plan = prefix_tree(**inputs, **options)
    trie = prefix_tree_loops(*forked[:2], **options)
    assert plan.order.tolist() == trie.order
    assert plan.shared.tolist() == trie.shared
    assert plan.prompt_lens.tolist() == list(map(len, forked.prompts))
    assert plan.response_lens.tolist() == list(map(len, forked.responses))
    assert plan.tokens_after == len(trie.tokens)
    assert plan.tokens_before == sum(map(len, trie.paths))
    assert plan == prefix_tree(*forked[:2], **options)
    for copy in pickle.loads(pickle.dumps(plan)), TreePlan(**tables_of(plan)):
        assert copy == plan


@given(of_forks())
def test_whole_sequences_make_the_same_plan(drawn):
    (prompts, responses, *_), options = drawn
    sequences = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
    plan = prefix_tree(prompts, responses, **options)
    prompt_lens = list(map(len, prompts))
    assert prefix_tree(sequences=sequences, prompt_lens=prompt_lens, **options) == plan
    if options["share"] != "prompts":
        whole = prefix_tree(sequences=sequences, **options)
        assert (whole.order.tolist(), whole.shared.tolist()) == (
            plan.order.tolist(),
            plan.shared.tolist(),
        )
        assert whole.response_lens.tolist() == plan.lengths.tolist()


@given(of_forks())
def test_nodes_have_the_positions_of_a_trie(drawn):
    forked, options = drawn
    plan = prefix_tree(*forked[:2], **options)
    trie = prefix_tree_loops(*forked[:2], **options)
    nodes = plan.nodes
    node_of = np.repeat(np.arange(len(nodes)), nodes.lengths)
    inside = np.arange(len(node_of)) - nodes.starts[node_of]
    assert (nodes.depths[node_of] + inside).tolist() == depths_of(trie)
    assert (nodes.lengths > 0).all()

    ends = nodes.subtree_ends[node_of]
    query, key = np.mgrid[: len(ends), : len(ends)]
    assert np.array_equal((key <= query) & (query < ends), mask_of(trie))

    rows_of_nodes = [set() for _ in range(len(nodes))]
    for row, path in enumerate(trie.paths):
        found = list(dict.fromkeys(node_of[path].tolist()))
        assert nodes.leaves[row] == (found[-1] if found else -1)
        assert nodes.parents[found].tolist() == [-1, *found[:-1]][: len(found)]
        assert nodes.levels[found].tolist() == list(range(len(found)))
        for node in found:
            rows_of_nodes[node].add(row)
    begins, stops = nodes.row_ranges
    for members, begin, stop in zip(rows_of_nodes, begins, stops, strict=True):
        assert set(nodes.rows[begin:stop].tolist()) == members
    assert nodes.num_rows.tolist() == list(map(len, rows_of_nodes))
    # As long as can be: rows end or part after each.
    children = np.bincount(nodes.parents[nodes.parents >= 0], minlength=len(nodes))
    ends_there = np.isin(np.arange(len(nodes)), nodes.leaves)
    assert ((children != 1) | ends_there).all()
    assert plan.forks == np.count_nonzero(children > 1)
    assert plan.depth == max(nodes.levels.tolist(), default=-1) + 1
    shared = nodes.lengths[nodes.num_rows > 1].sum()
    assert sum(tokens.length for tokens in plan.report.shared) == shared
    saved = plan.tokens_before - plan.tokens_after
    assert sum(tokens.saved for tokens in plan.report.shared) == saved
    assert all(np.shares_memory(tokens.rows, nodes.rows) for tokens in plan.report.shared)
    assert plan.report.attention_pairs_after == mask_of(trie).sum()


@given(st.data())
def test_some_rows_of_a_plan_are_a_plan_of_some_rows(data):
    forked, options = data.draw(of_forks())
    count = len(forked.prompts)
    some = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1)))
    plan = prefix_tree(*forked[:2], **options).select(some)
    part = {
        name: value if value is None or name == "share" else [value[row] for row in some]
        for name, value in options.items()
    }
    prompts, responses = ([column[row] for row in some] for column in forked[:2])
    expected = prefix_tree(prompts, responses, **part)
    assert plan.tokens_after == expected.tokens_after
    if options["share"] == "all" and options["same_inputs"] is None:
        assert plan == expected
    reverse = prefix_tree(*forked[:2], **options).select(some[::-1])
    assert (len(some) - 1 - reverse.order).tolist() == plan.order.tolist()
    assert reverse.shared.tolist() == plan.shared.tolist()


@given(drawn_trajectories(), st.data())
def test_merged_rows_share(data, draws):
    options = draws.draw(merge_options())
    tells_apart = draws.draw(name_turns(data))
    turns = data.turns
    merged = merge_turns_loops(*turns[:2], **tells_apart, **options)
    plan = fc.merge_turns(*turns[:2], **tells_apart, **options)
    of_rows = [row.prompt for row in merged.rows], [row.response for row in merged.rows]
    assert prefix_tree(*turns[:2], merge=plan) == prefix_tree(*of_rows)
    uids = [row % 2 for row in range(len(turns.prompts))]
    of_sources = [uids[row.source] for row in merged.rows]
    tree = prefix_tree(*turns[:2], merge=plan, share="group", uids=uids)
    assert tree == prefix_tree(*of_rows, share="group", uids=of_sources)


@st.composite
def packings(draw):
    """Give a plan, a trie of its rows, a capacity and options of `TreePlan.pack`."""
    forked, options = draw(of_forks())
    plan = prefix_tree(*forked[:2], **options)
    longest = int(plan.lengths.max())
    capacity = draw(st.integers(1, 2 * longest + 2))
    oversize = draw(st.sampled_from([None, "error", "own_bin"]))
    packing = {
        "algorithm": draw(st.sampled_from(ALGORITHMS)),
        "multiple_of": draw(st.sampled_from([1, 1, 2, 3])),
        "max_sequences": draw(st.none() | st.integers(1, 5)),
        "oversize": oversize,
        "min_bins": draw(st.sampled_from([0, 0, 2, 5])),
        "bins_multiple_of": draw(st.sampled_from([1, 1, 2, 3])),
    }
    if draw(st.integers(0, 3)) == 0:
        packing["max_cost"] = draw(st.integers(1, 2 * longest + 2)) ** 2
        packing["cost"] = lambda lengths: lengths.astype(np.float64) ** 2
    return plan, prefix_tree_loops(*forked[:2], **options), capacity, packing


@given(packings())
def test_bins_hold_every_row_once_and_each_of_their_tokens_once(problem):
    plan, trie, capacity, options = problem
    needs_own_bin = options["oversize"] in (None, "error") and options["algorithm"] != "balanced"
    multiple = options["multiple_of"]
    places = -(-plan.lengths // multiple) * multiple
    too_large = places > capacity
    if "max_cost" in options:
        too_large |= plan.lengths**2 > options["max_cost"]
    if (needs_own_bin or options["oversize"] == "error") and too_large.any():
        longest = np.argmax(np.where(too_large, plan.lengths, -1))
        with pytest.raises(ValueError, match=rf"^row {longest} has [\d,]+ tokens?,"):
            plan.pack(fc.Tree(capacity, **options))
        return
    freely = plan.pack(fc.Tree(capacity, **{**options, "min_bins": 0, "bins_multiple_of": 1}))
    unit = options["bins_multiple_of"]
    needed = -(-max(freely.num_bins, options["min_bins"]) // unit) * unit
    if needed > plan.num_rows:
        with pytest.raises(ValueError, match=rf"at least {needed} bins?, .* may be empty; pass"):
            plan.pack(fc.Tree(capacity, **options))
        return
    bins = plan.pack(fc.Tree(capacity, **options))
    assert bins.num_bins == needed
    assert sorted(bins.indices.tolist()) == list(range(plan.num_rows))
    place_of = {row: place for place, row in enumerate(trie.order)}
    for members, tokens, load in zip(bins.bins, bins.tokens, bins.loads, strict=True):
        assert members
        assert [place_of[row] for row in members] == sorted(place_of[row] for row in members)
        assert tokens == count_tokens(trie, members)
        assert tokens <= load
        if len(members) > 1:
            assert load <= capacity
            assert len(members) <= (options["max_sequences"] or math.inf)
            if "max_cost" in options:
                of_trie = depths_of(trie)
                depths = {p: of_trie[p] for row in members for p in trie.paths[row]}
                assert sum(2 * depth + 1 for depth in depths.values()) <= options["max_cost"]
    # The way back: a row's tokens are those that it writes, and before them some of the last one.
    for start, end in pairwise(bins.offsets.tolist()):
        before = []
        bins_part = [column[start:end].tolist() for column in (bins.indices, bins.starts)]
        for row, shared in zip(*bins_part, strict=True):
            assert trie.paths[row][:shared] == before[:shared]
            before = trie.paths[row]
    assert pickle.loads(pickle.dumps(bins)) == bins


@given(forks(max_rows=8, max_many=8), st.integers(0, 30), st.integers(1, 4))
def test_trees_are_cut_where_that_duplicates_least(forked, room, min_bins):
    plan = prefix_tree(*forked[:2])
    count = plan.num_rows
    assume(count <= 8)
    min_bins = min(min_bins, count)
    capacity = max(1, int(plan.lengths.max())) + room
    trie = prefix_tree_loops(*forked[:2])
    sizes = []
    for cuts in range(1 << (count - 1)):
        begins = [0, *(place for place in range(1, count) if cuts >> (place - 1) & 1), count]
        chunks = [count_tokens(trie, trie.order[a:b]) for a, b in pairwise(begins)]
        if max(chunks) <= capacity and len(chunks) >= min_bins:
            sizes.append(sum(chunks))
    if (freely := plan.pack(fc.Tree(capacity))).num_bins >= min_bins:
        assert freely.tokens.sum() <= min(sizes)
    if plan.tokens_after <= capacity:
        assert plan.pack(fc.Tree(capacity, min_bins=min_bins)).tokens.sum() == min(sizes)


def test_samples_of_a_prompt_are_parted_evenly():
    """Sixteen ranks and two prompts: none is left without rows, none has more than another."""
    prompts = [[7] * 100] * 8 + [[8] * 100] * 8
    plan = prefix_tree(prompts, [[sample] * 50 for sample in range(16)])
    assert plan.pack(fc.Tree(10_000)).num_bins == 1
    assert plan.pack(fc.Tree(10_000, min_bins=2)).tokens.tolist() == [500, 500]
    eight = plan.pack(fc.Tree(10_000, bins_multiple_of=8))
    assert (eight.tokens == 200).all()
    assert plan.pack(fc.Tree(10_000, bins_multiple_of=16)).bins == [[row] for row in range(16)]


def test_a_plan_written_out():
    plan = prefix_tree(**turns(*TEXTS))
    assert repr(plan) == "TreePlan: 19 tokens of 6 rows in 9, 2.1x fewer"
    assert plan.order.tolist() == [3, 4, 0, 2, 1, 5]
    assert plan.shared.tolist() == [0, 0, 3, 4, 0, 3]
    assert (plan.num_rows, plan.num_trees, plan.depth, plan.forks) == (6, 3, 3, 1)
    assert plan.token_ratio == 19 / 9
    nodes = plan.nodes
    assert repr(nodes) == "TreeNodes: 5 nodes of 6 rows"
    assert nodes.starts.tolist() == [0, 3, 4, 5, 6]
    assert nodes.lengths.tolist() == [3, 1, 1, 1, 3]
    assert nodes.parents.tolist() == [-1, 0, 1, 1, -1]
    assert nodes.depths.tolist() == [0, 3, 4, 4, 0]
    assert nodes.subtree_ends.tolist() == [6, 6, 5, 6, 9]
    assert nodes.leaves.tolist() == [2, 4, 3, -1, 0, 4]
    bins = plan.pack(fc.Tree(8))
    assert repr(bins) == "TreeBins: 6 rows in 2 bins of 8 tokens, 56.2% full"
    assert bins.bins == [[3, 4, 0, 2], [1, 5]]
    assert bins.metrics["tree/max_load"] == 6


def test_the_report_written_out():
    report = prefix_tree(**turns(*TEXTS)).report
    assert repr(report) == "TreeReport: 6 rows in 3 trees"
    assert str(report).splitlines() == [
        "6 rows in 3 trees",
        "                              before             after",
        "  tokens                          19                 9   2.1x fewer",
        "  attention pairs                 48                26   1.8x fewer",
        "  depth: 3 nodes, 1 fork",
        "  3 tokens by 3 rows: 0, 2, 4",
        "  3 tokens by 2 rows: 1, 5",
        "  1 token from 3 on by 2 rows: 0, 2",
    ]
    first = report.shared[0]
    assert (sorted(first.rows.tolist()), first.start, first.length) == ([0, 2, 4], 0, 3)
    assert first.saved == 6
    assert report.metrics["tree/token_ratio"] == 19 / 9
    assert report.metrics["tree/num_attention_pairs_after"] == 26.0
    alone = str(prefix_tree([[1], [2]], [[3], [3]]).report)
    assert "by" not in alone
    many = prefix_tree([[token, token] for token in range(10)] * 20, [[]] * 200).report
    assert "2 tokens by 20 rows: 0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110 and 8 more" in str(
        many
    )
    assert str(many).endswith("and 2 more in report.shared")


def test_equal_ids_share_whatever_they_are():
    """Images by name, and groups by dataclasses, tuples or tensors without a hash."""
    prompts, responses = [[1, 2]] * 4, [[3]] * 4
    plan = prefix_tree(prompts, responses, same_inputs=["a", None, "a", None])
    assert plan.order.tolist() == [0, 2, 1, 3]
    assert plan.shared.tolist() == [0, 3, 0, 3]
    plan = prefix_tree(prompts, responses, share="group", uids=[(1, 2), [1], (1, 2), [1]])
    assert plan.shared.tolist() == [0, 3, 0, 3]
    apart = prefix_tree(prompts, responses, same_inputs=range(4))
    assert apart.token_ratio == 1.0
    assert apart.num_trees == 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: prefix_tree([[1]], [[1], [2]]), "responses has 2 rows, but prompts has 1"),
        (lambda: prefix_tree([], []), "the batch is empty"),
        (lambda: prefix_tree([[1.5]], [[1]]), "TypeError: prompts[0][0] is 1.5"),
        (lambda: prefix_tree([[1], [1]], [[1 << 70], [1]]), "responses[0][0] is "),
        (lambda: prefix_tree([[1]], [[1]], share="uids"), "share is 'uids'; pass 'all'"),
        (lambda: prefix_tree([[1]], [[1]], share="group"), "uids is None; pass one"),
        (
            lambda: prefix_tree([[1]], [[1]], uids=[1]),
            "uids is given; pass share='group', or leave uids out",
        ),
        (
            lambda: prefix_tree([[1]], [[1]], share="group", uids=[1, 2]),
            "uids has 2 rows, but prompts has 1",
        ),
        (
            lambda: prefix_tree([[1]], [[1]], same_inputs=[]),
            "same_inputs has 0 rows, but prompts has 1",
        ),
        (lambda: prefix_tree([[1]], [[1]], same_inputs=3), "TypeError: same_inputs is 3"),
        (lambda: prefix_tree([[1]], [[1]], merge="exact"), "TypeError: merge is 'exact'"),
        (
            lambda: prefix_tree(
                [[1]], [[1]], merge=fc.merge_turns([[1]], [[1, 2]], trajectory_ids=[0])
            ),
            "responses[0]",
        ),
        (
            lambda: prefix_tree([[1]], [[1]], groups=[1]),
            "TypeError: prefix_tree has no argument 'groups'",
        ),
    ],
)
def test_rows_and_ids_that_make_no_tree(call, message):
    with raises(message, is_text=True):
        call()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 4}, "row 0 has 5 tokens, which exceeds capacity=4; pass a larger capacity,"),
        (
            {"capacity": 5, "multiple_of": 2},
            "row 0 has 5 tokens, rounded up to 6, which exceeds capacity=5",
        ),
        (
            {"capacity": 9, "max_cost": 20, "cost": lambda n: n**2.0},
            "with a cost of 25, which exceeds max_cost=20",
        ),
        ({"capacity": 9, "max_cost": 99, "cost": [1.0] * 6}, "cost has one number per row"),
        ({"capacity": 9, "algorithm": "concat"}, "algorithm='concat' splits rows, but bins of"),
        ({"capacity": 9, "oversize": "split"}, "oversize='split' splits rows, but bins of trees"),
        (
            {"capacity": 9, "min_bins": 7},
            "min_bins is 7, so there must be at least 7 bins, but there are only 6 rows",
        ),
        ({"capacity": 0}, "capacity is 0"),
    ],
)
def test_bins_that_cannot_be(options, message):
    plan = prefix_tree(**turns(*TEXTS))
    with pytest.raises(ValueError, match=re.escape(message)):
        plan.pack(fc.Tree(**options))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": [0, 0]}, "row 0 is given twice"),
        ({"order": [0, 2]}, "order has row 2, but rows must be from 0 to 1"),
        ({"order": [0]}, "shared has shape (2,) and order (1,), but both must be of shape (rows,)"),
        ({"order": [0, -1]}, "order holds the negative number -1"),
        ({"shared": [1, 2]}, "row 0 shares 1 of its 3 tokens with the row before it"),
        ({"shared": [0, 4]}, "row 1 shares 4 of its 3 tokens with the row before it"),
        ({"shared": [0, 0.5]}, "shared is "),
        ({"prompt_lens": [2, -2]}, "prompt_lens[1] is -2, but must be from 0 to"),
        ({"prompt_lens": [[2, 2]]}, "prompt_lens has shape (1, 2)"),
    ],
)
def test_tables_that_are_no_tree(change, message):
    tables = tables_of(prefix_tree([[1, 2], [1, 2]], [[3], [4]]))
    with pytest.raises(ValueError, match=r"not a valid tree plan.*" + re.escape(message)):
        TreePlan(**tables | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": [0, 1]}, "end at 2 (the number of pieces), but go from 0 to 1; pass the"),
        ({"offsets": [0, 0, 2]}, "offsets must rise, but go from 0 to 0"),
        (
            {"offsets": [0, 1, 2]},
            "row 1 shares 2 of its 3 tokens with the row before it, which has 0",
        ),
        ({"indices": [1, 1]}, "sequence 0 is in no bin"),
        ({"num_sequences": 1, "indices": [0, 0]}, "there are 2 pieces of 1 rows"),
        ({"starts": [0, 4]}, "row 1 shares 4 of its 5 tokens with the row before it, which has 3"),
        ({"starts": [0, -1]}, "starts[1] is -1, but must be from 0 to"),
        ({"lengths": [3, -1]}, "lengths[1] is -1, but must be from 0 to"),
        ({"capacity": 0}, "capacity is 0"),
        ({"capacity": "many"}, "capacity is 'many'"),
        ({"starts": [[0, 0]]}, "but have (2,), (1, 2) and (2,)"),
    ],
)
def test_tables_that_are_no_bins(change, message):
    tables = tables_of(prefix_tree([[1, 2], [1, 2]], [[3], [4]]).pack(fc.Tree(9)))
    with pytest.raises(ValueError, match=re.escape(message)):
        TreeBins(**tables | change)


@pytest.mark.parametrize(
    ("selected", "message"),
    [
        ([0, 2], "rows has 2, but the plan has 2 rows; pass rows from 0 to 1"),
        ([1, 1], "rows has 1 more than once"),
        ([-1], "rows"),
        (["a"], "TypeError: rows[0] is 'a'; pass an integer"),
    ],
)
def test_rows_that_cannot_be_selected(selected, message):
    with raises(message, is_text=True):
        prefix_tree([[1], [1]], [[2], [2]]).select(selected)


def test_no_rows_can_be_selected_and_packed():
    none = prefix_tree([[1]], [[2]]).select([])
    assert repr(none) == "TreePlan: 0 tokens of 0 rows in 0, 1.0x fewer"
    assert none.pack(fc.Tree(4)).num_bins == none.depth == none.forks == 0
    assert "0 rows in 0 trees" in str(none.report)


class Changing:
    """A token whose reading changes the rows that it is compared with."""

    def __init__(self, rows):
        self.rows = rows

    def __index__(self):
        for row in self.rows:
            row.clear()
        return 7


def test_lists_that_change_while_they_are_compared():
    changed = [[7, 1] for _ in range(4)]
    prompts = [*changed, [Changing(changed), 1]]
    with pytest.raises(ValueError, match="do not modify inputs during the call"):
        prefix_tree(prompts, [[]] * 5)


def test_plans_cannot_be_changed():
    plan = prefix_tree([[1]], [[2]])
    with pytest.raises(ValueError, match="read-only"):
        plan.order[0] = 1
    with pytest.raises(AttributeError):
        plan.order = plan.shared


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (9, "TypeError: layout is 9 (int); pass fc.Tree(capacity=...)"),
        (fc.Packed(9), "TypeError: layout is Packed(capacity=9) (Packed); pass fc.Tree"),
        (fc.Tree(), "layout has no capacity, which bins need"),
        (fc.Tree(9, share="group"), "layout has share, but this plan has the shared"),
        (fc.Tree(9, same_inputs=[0]), "layout has same_inputs, but this plan"),
        (fc.Tree(9, plan=prefix_tree([[1]], [[2]])), "layout has plan, but this plan"),
    ],
)
def test_layouts_that_pack_no_tree(layout, message):
    with raises(message, is_text=True):
        prefix_tree([[1]], [[2]]).pack(layout)
