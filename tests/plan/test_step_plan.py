"""Steps are planned as the reference plans them, and every row is written exactly once."""

import math
import pickle
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raising import raises
from restored_plans import check_copies

import fastcollate as fc
import fastcollate.compat.skyrl
from fastcollate.testing import reference
from fastcollate.testing.reference.stepping import prompt_boundaries_loops

WORKLOADS = {"tokens": float, "flops": lambda tokens: 24576.0 * tokens + tokens * tokens}


@dataclass
class Unhashable:
    """Equal by value, and so not hashable."""

    name: str


UIDS = {
    "str": [f"p{i}" for i in range(40)],
    "other str": [f"\u00e9\u4e2d{i}\ud800" for i in range(40)],
    "int": [*range(-20, 20)],
    "bytes": [b"%d" % i for i in range(40)],
    "tuple": [(i // 4, str(i % 4)) for i in range(40)],
    "list": [[i] for i in range(40)],
    "dataclass": [Unhashable(str(i)) for i in range(40)],
}


@st.composite
def grouped(draw, max_groups=12, max_rows=7):
    """Rows of each prompt, and of each trajectory in it."""
    return draw(
        st.lists(
            st.lists(st.integers(1, 4), min_size=1, max_size=max_rows),
            min_size=1,
            max_size=max_groups,
        )
    )


def offsets_of(counts):
    return np.cumsum([0, *counts]).tolist()


@st.composite
def steps(draw):
    """Arguments of `plan_step`, and those of the reference for the same."""
    prompts = draw(grouped())
    rows_of = list(map(sum, prompts))
    offsets = offsets_of(rows_of)
    rows = offsets[-1]
    number = st.integers(0, 5_000)
    lens = draw(st.lists(st.tuples(number, number), min_size=rows, max_size=rows))
    uids = [f"p{prompt}" for prompt, count in enumerate(rows_of) for _ in range(count)]
    turns = [count for prompt in prompts for count in prompt]
    keep = draw(st.sampled_from([None, "prompt", "trajectory"]))
    pad_rows = draw(st.sampled_from(["copy_first", "copy_cycle", "synthetic", "error"]))
    shards = draw(st.sampled_from(["contiguous", "strided", "tokens", "flops"]))
    unit = draw(st.sampled_from([None, "prompts", "prompts"] + ["rows"] * (keep is None)))
    count = {None: 1, "prompts": len(prompts), "rows": rows}[unit]
    size = draw(st.integers(1, count))
    starts = {None: [0], "prompts": offsets[:-1:size], "rows": range(0, rows, size)}[unit]
    dp_size = draw(st.one_of(st.integers(1, 8), st.integers(1, 64)))
    kwargs = {
        "uids": uids,
        "dp_size": dp_size,
        "pad_rows": pad_rows,
        "shard_by": shards,
        "keep_together": keep,
        "allow_partial": True,
        "trajectory_ids": [turn for turn, count in enumerate(turns) for _ in range(count)],
    }
    if unit is not None:
        kwargs[f"{unit}_per_mini_batch"] = size
    groups = {None: None, "prompt": offsets, "trajectory": offsets_of(turns)}[keep]
    expected = {
        "lengths": [prompt + response for prompt, response in lens],
        "mini_batches": list(pairwise([*starts, rows])),
        "dp_size": dp_size,
        "pad_rows": pad_rows,
        "shard_by": "balanced" if shards in WORKLOADS else shards,
        "cost": WORKLOADS.get(shards),
        "groups": None if groups is None else list(pairwise(groups)),
    }
    return tuple(map(list, zip(*lens, strict=True))), kwargs, expected


def outcome(plan, *args, **kwargs):
    try:
        return plan(*args, **kwargs)
    except ValueError:
        return None


@given(steps())
def test_steps_are_those_of_the_reference(step):
    what, kwargs, of_reference = step
    expected = outcome(reference.plan_step_loops, **of_reference)
    plan = outcome(fc.plan_step, what, **kwargs)
    assert (plan is None) == (expected is None)
    if plan is None:
        return
    dp_size = kwargs["dp_size"]
    assert plan.mini_batches == of_reference["mini_batches"]
    found = [[plan.shard(i, r) for r in range(dp_size)] for i in range(plan.num_mini_batches)]
    slots = [
        [list(zip(s.rows.tolist(), s.is_padding.tolist(), strict=True)) for s in shards]
        for shards in found
    ]
    assert slots == expected
    check(plan, found, what, kwargs["uids"])
    for (start, end), shards in zip(plan.mini_batches, found, strict=True):
        groups = of_reference["groups"] or [(row, row + 1) for row in range(end)]
        is_enough = sum(start <= group[0] < end for group in groups) >= dp_size
        assert not is_enough or not any(shard.is_padding.all() for shard in shards)
        if of_reference["groups"] is None:
            assert all(shard.is_padding.sum() <= 1 for shard in shards)
    assert fc.plan_step(tuple(map(np.array, what)), **kwargs) == plan
    assert plan != fc.plan_step(what[0] + [1], dp_size=dp_size)
    check_copies(plan)


def check(plan, found, what, uids):
    """Check the conditions that hold for any plan."""
    rows = len(what[0])
    written = np.concatenate([shard.rows for shards in found for shard in shards])
    padding = np.concatenate([shard.is_padding for shards in found for shard in shards])
    np.testing.assert_array_equal(written, plan.rows)
    assert sorted(written[~padding].tolist()) == list(range(rows))
    np.testing.assert_array_equal(written[plan.inverse], np.arange(rows))
    np.testing.assert_array_equal(plan.inverse[written[~padding]], np.flatnonzero(~padding))
    np.testing.assert_array_equal(plan.padding_rows, np.flatnonzero(padding))
    assert plan.num_real_rows == rows
    assert plan.num_rows == len(written)
    totals = [p + r for p, r in zip(*what, strict=True)] + [2]
    for i, ((start, end), shards) in enumerate(zip(plan.mini_batches, found, strict=True)):
        assert len({len(shard) for shard in shards}) == 1
        pads = 0
        for rank, shard in enumerate(shards):
            assert shard.num_rows == rows
            assert shard.first_pad == pads
            assert (shard.is_padding[:-1] <= shard.is_padding[1:]).all()
            assert np.isin(shard.rows, [-1, *range(start, end)]).all()
            assert plan.tokens_per_rank[i, rank] == sum(totals[row] for row in shard.rows)
            pads += int(shard.is_padding.sum())
    has_synthetic = bool((written < 0).any())
    longest = zip(*what, strict=True)
    lens = [*longest] + [(1, 1)] * has_synthetic
    widths = (max(p for p, _ in lens), max(r for _, r in lens), max(p + r for p, r in lens))
    assert all(shard.widths == widths for shards in found for shard in shards)
    ends = {end for _, end in fc.planning.prompt_boundaries(uids)}
    if plan.mini_batch_prompts[-1] == plan.num_prompts and len(plan.mini_batches) == 1:
        assert plan.mini_batches[0][1] in ends
    without_rows = [sum(bool(shard.is_padding.all()) for shard in shards) for shards in found]
    notes = [
        f"mini-batch {i}: {count} rank{'s' * (count > 1)} without a real row"
        for i, count in enumerate(without_rows)
        if count > 0
    ]
    assert plan.describe().splitlines()[plan.num_mini_batches + 2 :] == notes


@pytest.mark.parametrize("kind", UIDS)
@given(st.lists(st.tuples(st.integers(0, 39), st.integers(1, 3)), max_size=12), st.booleans())
def test_prompt_boundaries_are_those_of_the_reference(kind, runs, copied):
    uids = [UIDS[kind][index] for index, count in runs for _ in range(count)]
    if copied:
        uids = [UIDS[kind][0].__class__(uid) if kind == "list" else uid for uid in uids]
        uids = pickle.loads(pickle.dumps([pickle.dumps(uid) for uid in uids]))
        uids = list(map(pickle.loads, uids))
    error = None
    try:
        expected = prompt_boundaries_loops(uids)
    except ValueError as raised:
        error = str(raised)
    if error is not None:
        with pytest.raises(ValueError, match="appears in non-contiguous positions") as caught:
            fc.planning.prompt_boundaries(uids)
        assert str(caught.value).startswith(error)
        return
    assert fc.planning.prompt_boundaries(uids) == expected
    assert fc.planning.prompt_boundaries(tuple(uids)) == expected
    if kind in ("str", "int", "bytes"):
        assert fc.planning.prompt_boundaries(np.array(uids)) == expected
        assert fc.planning.prompt_boundaries(np.array(uids, object)) == expected


@pytest.mark.parametrize(
    "values", [["a", "a", "b"], [1, 1, 2], [b"x", b"x", b"y"], ["a", "a", None]]
)
def test_uids_in_arrow(values):
    pa = pytest.importorskip("pyarrow")
    assert fc.planning.prompt_boundaries(pa.array(values)) == [(0, 2), (2, 3)]
    assert fc.planning.prompt_boundaries(pa.chunked_array([values[:1], values[1:]])) == [
        (0, 2),
        (2, 3),
    ]
    encoded = pa.array(values).dictionary_encode()
    assert fc.planning.prompt_boundaries(encoded) == [(0, 2), (2, 3)]


def test_uids_in_tensors():
    torch = pytest.importorskip("torch")
    assert fc.planning.prompt_boundaries(torch.tensor([4, 4, 3])) == [(0, 2), (2, 3)]


@pytest.mark.parametrize("again", [0, 15, 16, 38])
def test_a_uid_that_recurs_after_many(again):
    uids = [f"prompt {index}" for index in range(40)]
    assert fc.planning.prompt_boundaries(uids) == [(index, index + 1) for index in range(40)]
    with pytest.raises(ValueError, match=f"uid 'prompt {again}' appears .* at index 40"):
        fc.planning.prompt_boundaries([*uids, uids[again]])


@pytest.mark.parametrize("missing", [None, math.nan, np.float32("nan"), np.datetime64("NaT", "s")])
def test_a_missing_id_is_not_an_id_of_its_own(missing):
    """Tables have nulls, which would be one prompt, or one for each row."""
    ids = ["a", "a", missing, missing]
    shown = "None" if missing is None else "NaN"
    message = f"^uids\\[2\\] is {shown}; pass an id for every row, or leave uids out$"
    columns = [ids, np.array(ids, object)]
    columns += [np.array([1.0, 1.0, missing, missing])] if isinstance(missing, float) else []
    for uids in columns:
        with pytest.raises(ValueError, match=message):
            fc.plan_step([1, 2, 3, 4], uids=uids)
        with pytest.raises(ValueError, match=message.replace("uids", "trajectory_ids")):
            fc.merge_turns([[1]] * 4, [[2]] * 4, trajectory_ids=uids)


class AnyCase(str):
    """Equal to the same text in capitals or not, so that a text's own comparison would be wrong."""

    __slots__ = ()

    def __eq__(self, other):
        return self.lower() == other.lower()

    def __hash__(self):
        return hash(self.lower())


def test_texts_with_a_comparison_of_their_own():
    assert fc.planning.prompt_boundaries(["a", AnyCase("A"), "a", "b"]) == [(0, 3), (3, 4)]


class Strange:
    def __eq__(self, other):
        raise RuntimeError("no")

    __hash__ = None


class WithoutHash:
    """Equal by value, with a comparison of its own, and so without a hash."""

    compared = 0

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        WithoutHash.compared += 1
        return self.value == other.value

    def __repr__(self):
        return f"WithoutHash({self.value})"


GROUPED = {
    "uids": fc.planning.prompt_boundaries,
    "keep_together": lambda ids: fc.planning.pack(
        [1] * len(ids), fc.Packed(1 << 20), keep_together=ids
    ),
    "trajectory_ids": lambda ids: fc.merge_turns(
        [[1]] * len(ids), [[2]] * len(ids), trajectory_ids=ids
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GROUPED)
def test_ids_without_a_hash_are_few(name):
    few = [WithoutHash(index // 3) for index in range(3 * 1024)]
    GROUPED[name](few)
    WithoutHash.compared = 0
    many = [WithoutHash(index) for index in range(20_000)]
    with raises(rf"TypeError: {name} hold more than 1,024 different ids without a hash"):
        GROUPED[name](many)
    assert WithoutHash.compared < 1 << 20
    GROUPED[name]([one.value for one in many])


@pytest.mark.parametrize("uids", [None, "p0p1", {"a": 1}, 7])
def test_what_is_no_uids(uids):
    with pytest.raises(TypeError):
        fc.planning.prompt_boundaries(uids)


def test_uids_that_cannot_be_compared():
    with raises(
        r"TypeError: uids\[1\] is .*Strange.*, which cannot be compared .*\(RuntimeError: no\)"
    ):
        fc.planning.prompt_boundaries([Strange(), Strange()])


def merged():
    prompts = [[1], [1, 2, 9], [5], [6], [7], [7, 8, 9]]
    responses = [[2], [3], [4], [4, 4], [8], [1]]
    ids = ["a", "a", "b", "c", "d", "d"]
    return prompts, responses, ids


def test_a_merge_plan_by_turns_or_by_rows():
    prompts, responses, ids = merged()
    merge = fc.merge_turns(prompts, responses, trajectory_ids=ids)
    of_turns = ["p0", "p0", "p0", "p1", "p1", "p1"]
    plan = fc.plan_step(merge, uids=of_turns, prompts_per_mini_batch=1, dp_size=2)
    assert plan.mini_batches == [(0, 2), (2, 4)]
    assert plan.row_lengths.tolist() == [[1, 3], [1, 1], [1, 2], [1, 3]]
    of_rows = [of_turns[source] for source in merge.sources]
    for uids in (of_rows, np.array(of_turns), np.array(of_rows)):
        assert fc.plan_step(merge, uids=uids, prompts_per_mini_batch=1, dp_size=2) == plan
    with pytest.raises(ValueError, match="uids has 5 items, but the plan has 4 rows of 6 turns"):
        fc.plan_step(merge, uids=of_turns[1:])
    # It knows its trajectories.
    fc.plan_step(merge, uids=of_turns, keep_together="trajectory")


def test_a_batch():
    prompts, responses, ids = merged()
    uids = ["p0", "p0", "p0", "p1", "p1", "p1"]
    batch = fc.build_batch(
        prompts, responses, pad_token_id=0, uids=uids, trajectory_ids=ids, array_type="numpy"
    )
    plan = fc.plan_step(batch, prompts_per_mini_batch=1, dp_size=2, keep_together="trajectory")
    assert plan.mini_batches == [(0, 3), (3, 6)]
    assert [plan.shard(0, rank).rows.tolist() for rank in (0, 1)] == [[0, 1], [2, -1]]
    other = fc.plan_step(batch, uids=["q"] * 6, prompts_per_mini_batch=1)
    assert other.num_prompts == 1


def test_rows_selected_from_a_merged_batch():
    turns, ids = [[number] for number in range(7)], list("aaabbcc")
    batch = fc.build_batch(
        turns, turns, pad_token_id=0, merge="branch", trajectory_ids=ids, array_type="numpy"
    )
    whole = fc.plan_step(batch, dp_size=2, keep_together="trajectory")
    assert whole.shard(0, 0).rows.tolist() == [0, 1, 2, -1]
    for rows, expected in (
        ([3, 4, 5, 6, 0, 1, 2], [0, 1, 2, 3]),
        ([3, 4, 5, 6], [0, 1]),
        ([3, 4, 5, 0, 1], [0, 1, 2]),  # without the last rows of two trajectories
    ):
        plan = fc.plan_step(batch.select(rows=rows), dp_size=2, keep_together="trajectory")
        assert plan.shard(0, 0).rows.tolist() == expected


def test_rows_selected_without_the_last_one_of_their_trajectory():
    turns, flags = [[number] for number in range(4)], [False, True, False, True]
    batch = fc.build_batch(
        turns, turns, pad_token_id=0, merge="exact", is_last_step=flags, array_type="numpy"
    )
    plan = fc.plan_step(batch.select(rows=[0, 1, 2]), dp_size=2, keep_together="trajectory")
    assert [plan.shard(0, rank).rows.tolist() for rank in (0, 1)] == [[0, 1], [2, -1]]
    with pytest.raises(ValueError, match=r"is_last_step\[2\] is False, but there is no later turn"):
        fc.plan_step([2] * 3, is_last_step=flags[:3], keep_together="trajectory")


def test_a_function_of_costs():
    seen = []

    def cost(lengths):
        seen.append(lengths.copy())
        return lengths % 7

    plan = fc.plan_step([7, 6, 14, 6, 21], dp_size=2, shard_by=cost, pad_rows="synthetic")
    assert [lengths.tolist() for lengths in seen] == [[7, 6, 14, 6, 21], [2]]
    assert all(lengths.dtype == np.int64 for lengths in seen)
    assert plan.shard(0, 0).rows.tolist() == [0, 1, 2]
    assert plan.shard(0, 1).rows.tolist() == [3, 4, -1]
    for wrong in ([1.0], [1, 2, 3, 4, np.nan], [1, 2, 3, 4, -1], ["a"] * 5, [np.inf] * 5):
        with pytest.raises((TypeError, ValueError), match="the function shard_by returned"):
            fc.plan_step([7, 6, 14, 6, 21], dp_size=2, shard_by=lambda _, wrong=wrong: wrong)


@pytest.mark.parametrize("unit", ["prompts", "rows"])
def test_fewer_than_a_mini_batch_are_a_partial_one(unit):
    options = {f"{unit}_per_mini_batch": 64, "allow_partial": True}
    plan = fc.plan_step([5, 6, 7], uids=list("aab"), dp_size=2, **options)
    assert plan.mini_batches == [(0, 3)]
    assert plan.mini_batch_prompts.tolist() == [0, 2]
    packed = fc.plan_step([5, 6, 7], uids=list("aab"), layout=fc.Packed(capacity=16), **options)
    assert packed.mini_batches == [(0, 3)]


ROWS = [1, 2, 3, 4, 5, 6]
PROMPTS = list("aabbbc")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"prompts_per_mini_batch": 0}, "prompts_per_mini_batch is 0; pass a number of prompts"),
        ({"prompts_per_mini_batch": -1}, "prompts_per_mini_batch is -1"),
        ({"prompts_per_mini_batch": 4}, "is 4, but there are only 3 prompts"),
        ({"prompts_per_mini_batch": 2}, "is 2, which does not divide 3 prompts"),
        ({"rows_per_mini_batch": 4}, "is 4, which does not divide 6 rows; pass a divisor"),
        ({"rows_per_mini_batch": 0}, "rows_per_mini_batch is 0"),
        ({"rows_per_mini_batch": 7}, "7, but there are only 6 rows; pass at most 6, or allow_part"),
        ({"rows_per_mini_batch": 2, "prompts_per_mini_batch": 1}, "both given; pass one of them"),
        ({"uids": None, "prompts_per_mini_batch": 1}, "uids is None; pass one uid per row"),
        ({"uids": None, "keep_together": "prompt"}, "uids is None; pass one uid per row"),
        ({"uids": list("ab")}, "uids has 2 items, but there are 6 rows"),
        ({"uids": list("aabbba")}, "uid 'a' appears .* at index 5; pass the rows of a prompt"),
        ({"dp_size": 0}, "dp_size is 0; pass a number of ranks, 1 or more"),
        ({"dp_size": -2}, "dp_size is -2"),
        ({"dp_size": 1 << 40}, r"dp_size is 1099511627776, but .*; pass a smaller dp_size"),
        (
            {"dp_size": 4, "pad_rows": "error"},
            "the 6 rows of mini-batch 0 cannot be split evenly over 4 ranks; pass a number of rows",
        ),
        ({"keep_together": "trajectory"}, "trajectory_ids and is_last_step are None"),
        (
            {"keep_together": "prompt", "dp_size": 2, "pad_rows": "error"},
            r"with all rows of prompt 1 \(rows 2 to 4, uid 'b'\) on one rank; leave keep_together",
        ),
        (
            {"keep_together": "prompt", "dp_size": 3, "pad_rows": "error", "shard_by": "strided"},
            r"prompt 1 \(rows 2 to 4, uid 'b'\)",
        ),
        (
            {"keep_together": "prompt", "dp_size": 3, "pad_rows": "error", "shard_by": "tokens"},
            r"prompt 1 \(rows 2 to 4, uid 'b'\)",
        ),
        (
            {"keep_together": "prompt", "rows_per_mini_batch": 3},
            r"prompt 1 \(rows 2 to 4, uid 'b'\) is in mini-batches 0 and 1; pass mini-batches",
        ),
        (
            {"keep_together": "trajectory", "trajectory_ids": [0, 0, 1, 2, 3, 3]},
            r"trajectory 3 \(rows 4 to 5\) .* uids\[4\] is 'b', but uids\[5\] is 'c'; pass",
        ),
        (
            {"keep_together": "trajectory", "trajectory_ids": [0, 1, 0, 2, 3, 4]},
            "; pass the turns of a trajectory",
        ),
        ({"pad_rows": "none"}, "pad_rows is 'none'; pass 'synthetic', 'copy_first', 'copy_cycle'"),
        ({"shard_by": "balanced"}, "shard_by is 'balanced'; pass"),
        ({"pad_rows": "copy"}, "pad_rows is 'copy'; pass 'synthetic', 'copy_first'"),
    ],
)
def test_what_cannot_be_planned(kwargs, message):
    with pytest.raises(ValueError, match=message):
        fc.plan_step(ROWS, **{"uids": PROMPTS, **kwargs})


@pytest.mark.parametrize(
    ("rows", "kwargs", "error"),
    [
        ([], {}, ValueError),
        (([], []), {}, ValueError),
        ([-1], {}, ValueError),
        ([1 << 40], {}, ValueError),
        (5, {}, TypeError),
        ("12", {}, TypeError),
        ([1.5], {}, TypeError),
        ([[1], [2], [3]], {}, TypeError),
        (np.ones((2, 2), np.int64), {}, TypeError),
        ([1], {"dp_size": 1.5}, TypeError),
        ([1], {"shard_by": 3}, TypeError),
        ([1], {"uids": 5}, TypeError),
    ],
)
def test_what_is_no_step(rows, kwargs, error):
    with pytest.raises(error):
        fc.plan_step(rows, **kwargs)


def test_shards_that_are_not_there():
    plan = fc.plan_step(ROWS, uids=PROMPTS, prompts_per_mini_batch=1, dp_size=2)
    for args in ((3, 0), (-1, 0), (0, 2), (0, -1)):
        with pytest.raises(IndexError, match="pass an index from 0 to"):
            plan.shard(*args)
    with pytest.raises(TypeError):
        plan.shard(0.5, 0)
    with pytest.raises(
        IndexError,
        match=r"mini_batch of shard\(mini_batch, rank\) is 1, but there is only one; pass 0",
    ):
        fc.plan_step(ROWS, uids=PROMPTS).shard(1, 0)


def test_plans_cannot_be_changed():
    plan = fc.plan_step(ROWS, uids=PROMPTS)
    with pytest.raises(AttributeError):
        plan.dp_size = 3
    for array in (plan.rows, plan.shard(0, 0).rows, plan.row_lengths):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


WRONG = {
    "rows": [
        *([*range(5), last] for last in (4, 6, -2, -1)),
        *([0, 1, 2, 3, 4], [0.5] * 6, "abc", [0, [1]]),
    ],
    "is_padding": [[1] * 6, [False] * 5 + [True]],
    "dp_size": [4, 0, "2", 2**64],
    "mini_batch_offsets": [[0, 5], [0, 8, 6]],
    "prompt_offsets": [[1, 6]],
    "mini_batch_prompts": [[0, 1, 3]],
    "row_lengths": [[[1, 2]] * 5, [[2] * 6, [3] * 6], [[1, -2]] * 6, [1] * 6, [[1], [1, 2]], None],
    "layout": [5, {}],
    "more": [1],
}


@pytest.mark.parametrize(("name", "value"), [(k, one) for k, some in WRONG.items() for one in some])
def test_tables_that_are_no_plan(name, value):
    tables = fc.plan_step(ROWS, uids=PROMPTS, dp_size=2).to_dict()
    with raises(f"this is not a valid step plan: .*({name}|row|padding|inhomogeneous)"):
        fc.planning.StepPlan.from_dict({**tables, name: value})


def test_a_plan_prints_its_mini_batches():
    plan = fc.plan_step([5, 6, 7, 8, 9], uids=list("aabcc"), prompts_per_mini_batch=1, dp_size=2)
    assert plan.describe().splitlines() == [
        "StepPlan: 5 rows of 3 prompts in 3 mini-batches for 2 ranks, and 1 padding row",
        "mini-batch  prompts  rows  padding  tokens/rank  imbalance",
        "         0        1     2        0       5 to 6      1.091",
        "         1        1     1        1       2 to 7      1.556",
        "         2        1     2        0       8 to 9      1.059",
        "mini-batch 1: 1 rank without a real row",
    ]


def test_uids_that_hold_themselves():
    first = []
    first.append(first)
    plan = fc.plan_step([1, 2, 3], uids=[first, first, "other"])
    assert plan.prompt_offsets.tolist() == [0, 2, 3]
