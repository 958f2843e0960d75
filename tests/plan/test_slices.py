"""Slices of a step for one rank: its own rows and widths, micro-batches, layers."""

import dataclasses
import pickle
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest
from conftest import share
from hypothesis import assume, given
from hypothesis import strategies as st
from packings import SHIFTS
from raising import raises
from strategies import as_inputs, extras, rollouts
from worker_blocks import split, through_blocks

import fastcollate as fc
from fastcollate.testing.reference import assert_same, build_shard_loops

LAYOUTS = ["left", "two_segment", "right", "jagged", "packed"]
PACKED = fc.Packed(64, multiple_of=2)


def narrowed(shard, lens):
    """Return the shard of a step that has no other rows."""
    own = np.array([(1, 1) if row < 0 else lens[row] for row in shard.rows.tolist()])
    widths = (*own.max(0).tolist(), int(own.sum(1).max()))
    if shard.bin_offsets is None:
        return dataclasses.replace(shard, widths=widths)
    places = -(-own.sum(1) // shard.layout.multiple_of) * shard.layout.multiple_of
    bins = np.add.reduceat(places, shard.bin_offsets[:-1])
    return dataclasses.replace(shard, bin_width=int(bins.max()))


@st.composite
def steps(draw, layout, array_type):
    """Draw the rows of a step, its plan and the options of its batches."""
    turns = draw(rollouts(max_long_len=30))
    options = {"pad_token_id": 7, **draw(extras(turns, array_type))}
    lens = [(len(p), len(r)) for p, r in zip(turns.prompts, turns.responses, strict=True)]
    how = {"dp_size": draw(st.integers(1, 3))}
    if layout == "packed":
        options["labels"] = None
        how["layout"] = PACKED
    elif layout != "jagged" and draw(st.booleans()):
        kind = {"left": fc.Left, "right": fc.Right, "two_segment": fc.TwoSegment}[layout]
        options["layout"] = kind(multiple_of=draw(st.integers(1, 4)))
    else:
        options["layout"] = layout
    return turns, lens, fc.plan_step(tuple(np.array(lens).reshape(-1, 2).T), **how), options


def micro_batches_of(plan, draw):
    """Return all micro-batches of all ranks, in the order of slots."""
    shards = [plan.shard(0, rank) for rank in range(plan.dp_size)]
    bins = shards[0].bin_offsets
    most = len(shards[0]) if bins is None else len(bins) - 1
    count = draw(st.integers(1, most))
    if bins is not None and draw(st.booleans()):
        return [part for shard in shards for part in shard.micro_batches()]
    return [part for shard in shards for part in shard.micro_batches(count)]


@pytest.mark.parametrize("layout", LAYOUTS)
@share(4)
@given(data=st.data())
def test_equals_the_loops(layout, array_type, data):
    turns, lens, plan, options = data.draw(steps(layout, array_type))
    inputs = data.draw(as_inputs(turns))
    layout = {"layout": plan.layout} if plan.layout else {}
    for part in micro_batches_of(plan, data.draw):
        for shard, expected in ((part, part), (part.narrow(), narrowed(part, lens))):
            batch = fc.build_batch(**inputs, **options, shard=shard, array_type=array_type)
            loops = build_shard_loops(**turns._asdict(), **{**options, **layout}, shard=expected)
            assert_same(batch, loops)
            assert batch.is_padding == part.is_padding.tolist()


@pytest.mark.parametrize("layout", LAYOUTS[:4])
def test_micro_batches_are_selected(layout, array_type):
    prompts, responses = [[1], [2, 3], [4], [5]], [[5, 6], [7], [8, 9, 10], [11]]
    columns = {"prompts": prompts, "responses": responses, "pad_token_id": 0}
    columns |= {"layout": layout, "array_type": array_type}
    whole = fc.build_batch(**columns)
    plan = fc.plan_step(whole, dp_size=3)
    for rank in range(3):
        for part in plan.shard(0, rank).micro_batches(2):
            assert_same(whole.select(part), fc.build_batch(**columns, shard=part))


def test_padding_rows_keep_their_names():
    shard = fc.plan_step([3] * 5).shard(0, 0)
    shard = dataclasses.replace(shard, is_padding=[False, True, False, True, True], first_pad=3)
    assert [part.first_pad for part in shard.micro_batches(3)] == [3, 4, 5]


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (None, "count is None, but the rows of the shard are not packed"),
        (0, "count is 0; pass a number of micro-batches, 1 or more"),
        (4, "count is 4, but the shard has 3 rows; pass .* from 1 to 3"),
        (1.5, "TypeError: count is 1.5"),
        ("bins", "TypeError: count is 'bins'"),
    ],
)
def test_micro_batches_that_cannot_be(count, message):
    with raises(message):
        fc.plan_step([3] * 3).shard(0, 0).micro_batches(count)
    packed = fc.plan_step([3] * 3, layout=fc.Packed(3)).shard(0, 0)
    if count == 4:
        with pytest.raises(ValueError, match="the shard has 3 bins"):
            packed.micro_batches(count)


def test_narrow_shards():
    shard = fc.plan_step([3, 4, 5], dp_size=2).shard(0, 0)
    narrow = shard.narrow()
    assert narrow.is_narrow
    assert not shard.is_narrow
    assert narrow != shard
    assert narrow == narrow.narrow() == pickle.loads(pickle.dumps(narrow))
    assert all(part.is_narrow for part in narrow.micro_batches(2))
    batch = fc.build_batch([[1]] * 3, [[2] * n for n in (2, 3, 4)], pad_token_id=0)
    with pytest.raises(ValueError, match="the shard is narrow, but selected rows keep the width"):
        batch.select(narrow)


def test_rows_of_other_steps_are_noticed_all_the_same():
    shard = fc.plan_step([3, 4], dp_size=2).shard(0, 0)
    with pytest.raises(ValueError, match="longest"):
        fc.build_batch([[1], [2]], [[1, 2], [3]], pad_token_id=0, shard=shard.narrow())


@st.composite
def sliced_steps(draw, array_type):
    """Draw columns with routes, the plan of a packed step, and the numbers of ranks and stages."""
    turns = draw(rollouts(max_long_len=30))
    lens = [(len(p), len(r)) for p, r in zip(turns.prompts, turns.responses, strict=True)]
    cp_size, layers = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    layout = fc.Packed(
        96, multiple_of=2 * cp_size * draw(st.integers(1, 2)), shift=draw(st.sampled_from(SHIFTS))
    )
    plan = fc.plan_step(
        tuple(np.array(lens).reshape(-1, 2).T), dp_size=draw(st.integers(1, 3)), layout=layout
    )
    more = draw(extras(turns, array_type))
    if more.get("labels") == "aligned" and cp_size > 1:  # refused
        more["labels"] = "shifted"
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    routes = [rng.integers(0, 300, (draw(st.integers(0, sum(n))), layers, 2)) for n in lens]
    starts = [draw(st.integers(0, sum(n) - len(row))) for n, row in zip(lens, routes, strict=True)]
    fields = {**(more.pop("fields", None) or {})}
    fields = {key: one for key, one in fields.items() if not isinstance(one, fc.RoutedExperts)}
    if draw(st.booleans()) and all(map(len, turns.prompts)):
        fields["x"] = fc.Field([np.arange(n) for _, n in lens], dtype="int32", fill=-1)
    columns = {**turns._asdict(), **more, "pad_token_id": 7, "array_type": array_type}
    ends = sorted(draw(st.sets(st.integers(1, layers - 1)))) if layers > 1 else []
    stages = [range(first, end) for first, end in pairwise([0, *ends, layers])]
    return columns, fields, (routes, starts), plan, cp_size, stages


@share(2)
@given(data=st.data())
def test_all_slices_rejoin(array_type, data):
    columns, fields, (routes, starts), plan, cp_size, stages = data.draw(sliced_steps(array_type))
    count = data.draw(st.integers(1, 2))

    def build(layers=None, **options):
        experts = fc.RoutedExperts(routes, num_experts=300, layers=layers, starts=starts)
        return fc.build_batch(**columns, fields={**fields, "routes": experts}, **options)

    try:
        whole = build(layout="jagged")
        shards = [plan.shard(0, rank) for rank in range(plan.dp_size)]
        batches = [build(shard=shard) for shard in shards]
    except ValueError as error:
        assume("shift='next_token'" not in str(error) and "labels='shifted'" not in str(error))
        raise
    found = {}
    for shard, batch in zip(shards, batches, strict=True):
        bins = len(shard.bin_offsets) - 1
        rows_of_rank = []
        for part in shard.micro_batches(min(count, bins)):
            expected = build(shard=part)
            per_token = [
                one.key for one in expected.spec.table if one.align in ("sequence", "response")
            ]
            for stage in stages:
                of_ranks = [build(stage, shard=part, cp=(cp_size, rank)) for rank in range(cp_size)]
                for one in of_ranks:
                    for key in per_token:
                        is_whole = one[key].is_contiguous() if array_type == "torch" else False
                        assert is_whole or one[key].flags.c_contiguous
                merged = {
                    key: of_ranks[0].cp_merge([one[key] for one in of_ranks]) for key in per_token
                }
                of_stage = {key: expected[key] for key in per_token}
                of_stage["routes"] = expected.routes[:, :, stage.start : stage.stop]
                assert_same(merged, of_stage)
            rows_of_rank.append(np.asarray(expected.input_ids))
            jagged = build(shard=part.narrow(), layout=None).plan
            assert jagged.prompt_lens.tolist() == expected.plan.prompt_lens.tolist()
            ids = np.asarray(expected.input_ids)
            owners = np.asarray(expected.sequence_ids)
            experts, captured = expected.routes, ~np.asarray(expected.router_padding_mask)
            for index, slot in enumerate(part.rows.tolist()):
                mine = owners == index
                if not part.is_padding[index]:
                    found[slot] = ids[mine], np.asarray(experts)[mine & captured]
        whole_rank = np.concatenate(rows_of_rank)
        assert_same({"x": whole_rank}, {"x": np.asarray(batch.input_ids)})
    ends = np.asarray(whole.offsets)[1:-1]
    for row, ids in enumerate(np.split(np.asarray(whole.input_ids), ends)):
        assert found[row][0].tolist() == ids.tolist()
        assert found[row][1].tolist() == routes[row].tolist()
    assert len(found) == len(routes)


def routes_of(lens, layers=5, topk=2, experts=300, dtype=np.int16):
    rng = np.random.default_rng(len(lens))
    return [rng.integers(0, experts, (n, layers, topk), dtype) for n in lens]


def kinds_of_rows():
    kinds = {
        "numpy": lambda rows: rows,
        "lists": lambda rows: [row.tolist() for row in rows],
        "ragged": fc.ragged,
    }
    if find_spec("torch") is not None:
        import torch

        kinds["torch"] = lambda rows: [torch.from_numpy(row) for row in rows]
    if find_spec("pyarrow") is not None:
        import pyarrow as pa

        token = pa.list_(pa.list_(pa.int16(), 2), 5)
        kinds["arrow"] = lambda rows: pa.array([row.tolist() for row in rows], pa.list_(token))
    return kinds


def routed(rows, lens, **options):
    """Build a batch with routes; the last token of each row has none."""
    options = {"pad_token_id": 0, "array_type": "numpy", **options}
    fields = {"routes": rows} if isinstance(rows, fc.RoutedExperts) else rows
    return fc.build_batch([[1]] * len(lens), [[2] * n for n in lens], fields=fields, **options)


@pytest.mark.parametrize("kind", kinds_of_rows())
@pytest.mark.parametrize("lens", [[3, 0, 7], [40_000, 20_000]], ids=["small", "large"])
def test_layers_rejoin(kind, lens):
    if kind == "lists" and lens[0] > 100:
        lens = [60, 30]
    rows = kinds_of_rows()[kind](given_rows := routes_of(lens))
    whole = routed(fc.RoutedExperts(rows), lens)
    assert whole.routes.shape == (len(lens), max(lens) + 1, 5, 2)
    assert whole.routes[0, -len(given_rows[0]) - 1 :][: lens[0]].tolist() == given_rows[0].tolist()
    for stages in ([0, 5], [0, 2, 5], [0, 1, 2, 3, 4, 5]):
        parts = [
            routed(fc.RoutedExperts(rows, layers=range(first, end)), lens)
            for first, end in pairwise(stages)
        ]
        joined = np.concatenate([part.routes for part in parts], 2)
        assert_same({"x": joined}, {"x": whole.routes})
        for part in parts:
            assert part.routes.flags.c_contiguous
            assert_same({"x": part.router_padding_mask}, {"x": whole.router_padding_mask})


@pytest.mark.parametrize("count", [30, 60_000])  # with the interpreter, and without it
def test_other_layers_are_not_read(count):
    (row,) = routes_of([count])
    row[:, :2] = row[:, 4:] = -1
    field = fc.RoutedExperts([row], num_experts=300, layers=range(2, 4))
    assert (routed(field, [count]).routes[0, :-1] == row[:, 2:4]).all()
    row[7, 3, 1] = 300
    with pytest.raises(ValueError, match=r"routes\[0\]\[7\] is 300; .* 299"):
        routed(field, [count])


def test_layers_are_laid_out_anew():
    rows = routes_of(lens := [3, 5])
    batch = routed(fc.RoutedExperts(rows, layers=range(1, 4)), lens)
    batch = pickle.loads(pickle.dumps(batch))
    again = batch.to_layout("two_segment").to_layout(fc.Packed(9)).to_layout("left")
    assert_same(again, batch)
    shard = fc.plan_step(batch, dp_size=2).shard(0, 1)
    assert (batch.select(shard).routes == batch.routes[1:]).all()


@pytest.mark.parametrize(
    ("layers", "exception", "message"),
    [
        (range(3, 6), ValueError, r"is range\(3, 6\), but its tokens have 5 layers; pass a range"),
        (range(2, 2), ValueError, r"is range\(2, 2\); pass range\(first, end\) of one layer"),
        (range(0, 4, 2), ValueError, r"is range\(0, 4, 2\); pass range\(first, end\)"),
        (range(4, 0, -1), ValueError, r"is range\(4, 0, -1\)"),
        (range(-2, 2), ValueError, r"is range\(-2, 2\); pass .*, from 0 on"),
        (range(2**70), ValueError, r"is .*; pass range\(first, end\)"),
        ([0, 1], TypeError, r"is \[0, 1\] \(list\); pass range\(first, end\), or None"),
        (2, TypeError, r"is 2 \(int\); pass range"),
        (slice(0, 2), TypeError, r"is .*; pass range"),
    ],
)
def test_layers_that_cannot_be(layers, exception, message):
    with pytest.raises(exception, match="^layers of routes " + message):
        routed(fc.RoutedExperts(routes_of([3]), layers=layers), [3])


def test_slices_of_blocks():
    """Batches of Ray's `collate` from rows in many workers."""
    routes = routes_of(lens := [9, 3, 30, 12, 7])
    columns = {"prompts": [[1]] * 5, "responses": [[2] * n for n in lens], "uids": list("aabbc")}
    options = {"pad_token_id": 0, "array_type": "numpy"}
    plan = fc.plan_step(([1] * 5, lens), dp_size=2, layout=fc.Packed(32, multiple_of=4))
    for layers in (None, range(1, 4)):
        columns["fields"] = {"routes": fc.RoutedExperts(routes, layers=layers)}
        for rank in range(2):
            for part in plan.shard(0, rank).micro_batches():
                for cp, shard in ((None, part.narrow()), ((2, 1), part), ((2, 0), part.narrow())):
                    how = {**options, "cp": cp}
                    found, _ = through_blocks(
                        split(columns, [0, 2, 4, 5]), lambda _, shard=shard: shard, how
                    )
                    assert_same(found, fc.build_batch(**columns, **how, shard=shard))
