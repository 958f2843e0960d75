"""Trees of rows in many processes: the same as those of all rows in one."""

import dataclasses
import re
import struct
from itertools import pairwise

import numpy as np
import pytest
from conftest import share
from hypothesis import given
from hypothesis import strategies as st
from raising import raises
from strategies import forks, trajectories
from worker_blocks import built, carried, split

import fastcollate as fc
from fastcollate._fastcollate import hash_prompts
from fastcollate.blocks.joining import join
from fastcollate.blocks.reading import parts_of
from fastcollate.blocks.sharing import check_share
from fastcollate.blocks.storing import store
from fastcollate.blocks.trees import join_trees
from fastcollate.planning import prefix_tree
from fastcollate.rows.tokens import check_tokens
from fastcollate.testing.reference import assert_same

NAMES = ["worker 0", "worker 1", "worker 2", "worker 3"]
PART_BYTES = 64
ROOMY = fc.Tree(1 << 20)


class Put:
    """The joined parts of workers; every object is carried between processes."""

    def __init__(self, blocks, **options):
        put = [
            carried(store(**{**columns, **options}, part_bytes=PART_BYTES)) for columns in blocks
        ]
        tables = [table for table, _ in put]
        names = [f"worker {index}" for index in range(len(put))]
        self.step = carried(join(tables, names))
        self.parts = [part for _, parts in put for part in parts]
        self.tree, self.inputs = join_trees(tables, names)

    def plan(self, layout=ROOMY, **options):
        layout = dataclasses.replace(layout, same_inputs=self.inputs)
        uids = self.step.names.get("uids")
        return fc.plan_step(self.tree, uids=uids, layout=layout, **options)

    def collate(self, shard, **options):
        parts = {index: self.parts[index] for index in parts_of(self.step, shard)}
        options = {"pad_token_id": 9, "array_type": "numpy", **options}
        return built(self.step, carried(shard), parts, **options)


@st.composite
def steps(draw):
    """Draw columns of groups that fork, and where blocks of whole groups begin."""
    data = draw(forks(max_rows=16, max_many=60))
    count = len(data.prompts)
    columns = {
        "prompts": [prompt or [3] for prompt in data.prompts],
        "responses": list(data.responses),
        "uids": sorted(draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))),
    }
    if draw(st.booleans()):  # prompts without tokens are equal, too
        columns["prompts"] = data.prompts
        columns["loss_mask"] = [[0] * len(row) for row in data.responses]
    columns["fields"] = {
        "number": fc.Field([np.arange(len(row)) + 7 * n for n, row in enumerate(data.responses)])
    }
    ends = [n for n in range(1, count) if columns["uids"][n] != columns["uids"][n - 1]]
    chosen = draw(st.lists(st.sampled_from(ends), unique=True)) if ends else []
    return columns, [0, *sorted(chosen), count]


def given_as(draw, rows):
    """Return rows in one of the kinds that they may have."""
    kind = draw(st.sampled_from(["lists", "int64", "int32", "ragged"]))
    if kind == "lists" or any(abs(token) >= 2**31 for row in rows for token in row):
        return rows
    arrays = [np.array(row, "int64" if kind == "ragged" else kind) for row in rows]
    return fc.ragged(arrays) if kind == "ragged" else arrays


@pytest.mark.parametrize("rule", ["group", "prompts"])
@share(3)
@given(data=st.data())
def test_trees_and_batches_are_those_of_all_rows_in_one_process(rule, data):
    columns, offsets = data.draw(steps())
    blocks = split(columns, offsets)
    for block in blocks:
        for name in ("prompts", "responses"):
            block[name] = given_as(data.draw, block[name])
    put = Put(blocks, share=rule)
    uids = {"uids": columns["uids"]} if rule == "group" else {}
    tokens = columns["prompts"], columns["responses"]
    assert put.tree == prefix_tree(*tokens, share=rule, **uids)
    longest = max(len(p) + len(r) for p, r in zip(*tokens, strict=True))
    plan = put.plan(
        fc.Tree(data.draw(st.integers(max(longest, 2), 4 * longest + 9))),
        dp_size=data.draw(st.integers(1, 3)),
        prompts_per_mini_batch=data.draw(st.integers(1, len(set(columns["uids"])))),
        allow_partial=True,
    )
    for mini_batch in range(plan.num_mini_batches):
        for rank in range(plan.dp_size):
            shard = plan.shard(mini_batch, rank)
            expected = fc.build_batch(**columns, shard=shard, pad_token_id=9, array_type="numpy")
            found = put.collate(shard)
            assert_same(found, expected)
            assert found.plan == expected.plan
            assert found.uids == expected.uids


@pytest.mark.parametrize("rule", ["group", "prompts"])
@share(6)
@given(data=st.data())
def test_merged_turns_share_after_they_are_merged(rule, data):
    drawn = data.draw(trajectories(max_trajectories=5, max_turns=4, max_long_len=12))
    ids = drawn.trajectory_ids
    columns = {
        "prompts": [prompt or [3] for prompt in drawn.turns.prompts],
        "responses": drawn.turns.responses,
        "uids": list(ids),
        "trajectory_ids": list(ids),
    }
    ends = np.flatnonzero(drawn.is_last_step)[:-1] + 1
    chosen = data.draw(st.lists(st.sampled_from(ends), unique=True)) if len(ends) else []
    put = Put(split(columns, [0, *sorted(map(int, chosen)), len(ids)]), share=rule, merge="branch")
    tokens = columns["prompts"], columns["responses"]
    merge = fc.merge_turns(*tokens, trajectory_ids=ids, policy="branch")
    uids = {"uids": ids} if rule == "group" else {}
    assert put.tree == prefix_tree(*tokens, merge=merge, share=rule, **uids)
    shard = put.plan().shard(0, 0)
    built = {"pad_token_id": 9, "array_type": "numpy"}
    assert_same(put.collate(shard), fc.build_batch(**columns, merge="branch", shard=shard, **built))


def block(prompts, responses, **more):
    return {"prompts": prompts, "responses": responses, **more}


ONE = block([[1, 2, 3], [7]], [[4], [5]], uids=[0, 1])
TWO = block([[7], [1, 2, 3], [1, 2]], [[6], [4, 4], [3, 8]], uids=[2, 3, 4])


def test_equal_prompts_of_different_workers_are_shared():
    put = Put([ONE, TWO], share="prompts")
    assert put.tree.order.tolist() == [0, 3, 1, 2, 4]
    assert put.tree.shared.tolist() == [0, 3, 0, 1, 0]
    batch = put.collate(put.plan().shard(0, 0))
    assert batch.input_ids.shape == (1, 17 - 4)
    of_groups = Put([ONE, TWO], share="group")
    assert of_groups.tree.shared.tolist() == [0] * 5


def test_what_hashes_say_is_compared():
    """As if the hashes of two prompts were equal by chance."""
    put = Put([ONE, TWO], share="prompts")
    shard = put.plan().shard(0, 0)
    changed = {**TWO, "prompts": [[7], [1, 9, 3], [1, 2]]}
    _, others = store(**changed, part_bytes=PART_BYTES)
    put.parts[-len(others) :] = others
    with pytest.raises(ValueError, match="3 tokens in common for row 1 and row 0, but they differ"):
        put.collate(shard)


def pixels(count, **ids):
    return {"fields": {"pixels": fc.PerRow([np.zeros((1, 2))] * count, concat=True)}, **ids}


@pytest.mark.parametrize("rule", ["group", "prompts"])
def test_rows_share_only_where_their_other_inputs_are_the_same(rule):
    same = {"uids": [0, 0, 0], "prompts": [[1, 2]] * 3, "responses": [[3], [4], [5]]}
    other = {**same, "uids": [1, 1, 1]}
    for first, second, expected in [
        ({}, {}, {"group": [0, 2, 2, 0, 2, 2], "prompts": [0, 2, 2, 2, 2, 2]}),
        (pixels(3), pixels(3), {"group": [0] * 6, "prompts": [0] * 6}),
        (
            pixels(3, same_inputs=["a", "b", "a"]),
            pixels(3, same_inputs=["b", "b", "c"]),
            {"group": [0, 2, 0, 0, 2, 0], "prompts": [0, 2, 0, 2, 2, 0]},
        ),
    ]:
        put = Put([{**same, **first}, {**other, **second}], share=rule)
        assert put.tree.shared.tolist() == expected[rule]
        batch = put.collate(put.plan().shard(0, 0))
        assert batch.input_ids.shape == (1, 18 - sum(expected[rule]))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({}, {"share": None}, "layout is a tree, but block 1 (worker 1) was put without share"),
        ({}, {"share": "group"}, "was put with share='group', but block 0 (worker 0) with 'prom"),
        ({"same_inputs": [0, 0]}, {}, "block 0 (worker 0) was put with same_inputs, but block 1"),
        (
            {"share": "group"},
            {"share": "group", "uids": [1, 2, 3]},
            "uid 1 is in block 0 (worker 0) and in block 1 (worker 1), but share is 'group', which",
        ),
    ],
)
def test_blocks_that_cannot_share_are_named(first, second, message):
    tables = [
        store(**{"share": "prompts", **one, **more})[0]
        for one, more in ((ONE, first), (TWO, second))
    ]
    with pytest.raises(ValueError, match=re.escape(message)):
        join_trees(tables, NAMES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all", None), "share is 'all', but rows of different workers are matched by groups"),
        (("some", None), "share is 'some'; pass 'group', 'prompts', None"),
        ((None, [1]), "same_inputs is given, but share is None; pass share='group' or share='pro"),
    ],
)
def test_what_cannot_be_shared_is_refused(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        check_share(*arguments)


def test_ids_of_other_turns_are_refused():
    with raises("same_inputs has 3 items, but there are 2 turns; pass one"):
        store(**ONE, share="prompts", same_inputs=[0, 0, 0])
    with pytest.raises(ValueError, match="share is 'group', but uids is None; pass one per row"):
        store(**{**ONE, "uids": None}, share="group")


def murmur3(data):
    """Return MurmurHash3_x64_128 with the seed 0 of bytes, as two integers."""
    bits, c1, c2 = (1 << 64) - 1, 0x87C37B91114253D5, 0x4CF5AD432745937F

    def rotated(value, count):
        return (value << count | value >> 64 - count) & bits

    def spread(value):
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            value = (value ^ value >> 33) * factor & bits
        return value ^ value >> 33

    h1 = h2 = 0
    padded = data + bytes(-len(data) % 16)
    for start in range(0, len(padded), 16):
        k1, k2 = struct.unpack_from("<QQ", padded, start)
        h1 ^= rotated(k1 * c1 & bits, 31) * c2 & bits
        if start + 16 <= len(data):
            h1 = ((rotated(h1, 27) + h2) * 5 + 0x52DCE729) & bits
        h2 ^= rotated(k2 * c2 & bits, 33) * c1 & bits
        if start + 16 <= len(data):
            h2 = ((rotated(h2, 31) + h1) * 5 + 0x38495AB5) & bits
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = h1 + h2 & bits
    h1, h2 = spread(h1), spread(h2 + h1 & bits)
    h1 = h1 + h2 & bits
    return [h1, h2 + h1 & bits]


def test_hashes_are_those_of_the_algorithm():
    assert murmur3(b"hello") == [0xCBD8A7B341BD9B02, 0x5B1E906A48AE1D19]
    rng = np.random.default_rng(0)
    lens = [0, 1, 2, 3, 7, 1023, 1024, 1025, 2049]
    prompts = [rng.integers(-(2**63), 2**63, n, np.int64) for n in lens]
    prompts += [prompts[-1], prompts[-1] + 1]
    responses = [np.zeros(1, np.int64)] * len(prompts)
    expected = [murmur3(prompt.astype("<i8").tobytes()) for prompt in prompts]
    assert hash_prompts(check_tokens(prompts, responses, None, None)).tolist() == expected


@given(st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1))
def test_hashes_do_not_depend_on_how_tokens_are_given(prompts):
    responses = [[1]] * len(prompts)
    expected = [murmur3(np.array(prompt, "<i8").tobytes()) for prompt in prompts]
    for dtype in (None, np.uint8, np.int32, np.int64):
        rows = [list(row) if dtype is None else np.array(row, dtype) for row in prompts]
        whole = [[*row, 1] for row in prompts]
        lens = list(map(len, prompts))
        for tokens in (
            check_tokens(rows, responses, None, None),
            check_tokens(None, None, whole, lens),
        ):
            assert hash_prompts(tokens).tolist() == expected
    offsets = np.cumsum([0, *map(len, prompts)])
    ragged = fc.Ragged(np.concatenate([np.array(row, np.int32) for row in prompts]), offsets)
    assert [b - a for a, b in pairwise(offsets)] == lens
    assert hash_prompts(check_tokens(ragged, responses, None, None)).tolist() == expected
