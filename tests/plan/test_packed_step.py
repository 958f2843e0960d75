"""Steps whose sequences are packed: the bins of each rank, and equal training."""

import math
from itertools import pairwise, product

import numpy as np
import pytest
from conftest import share
from hypothesis import given
from hypothesis import strategies as st
from raising import raises
from restored_plans import check_copies
from training_steps import WHOLE_ALGORITHMS, same, steps

import fastcollate as fc
from fastcollate.testing.reference import assert_same, build_shard_loops, merge_turns_loops
from fastcollate.testing.reference.merging import merge_columns_loops

torch = pytest.importorskip("torch")


@st.composite
def packed_plans(draw, strided=False):
    """Draw lengths, how they are packed, and the plan.

    Returns
    -------
    lens, pack, plan
    """
    prompts = draw(st.integers(1, 6))
    counts = draw(st.lists(st.integers(1, 6), min_size=prompts, max_size=prompts))
    rows = sum(counts)
    lens = draw(
        st.lists(st.tuples(st.integers(1, 6), st.integers(0, 8)), min_size=rows, max_size=rows)
    )
    multiple = draw(st.sampled_from([1, 1, 2, 4]))
    longest = max(-(-sum(pair) // multiple) * multiple for pair in lens)
    pack = {
        "capacity": draw(st.integers(longest, longest + 30)),
        "algorithm": draw(st.sampled_from(WHOLE_ALGORITHMS)),
        "multiple_of": multiple,
        "bins_multiple_of": draw(st.sampled_from([1, 1, 2, 3])),
        "max_sequences": draw(st.sampled_from([None, None, 1, 3])),
    }
    options = {
        "uids": [uid for uid, count in enumerate(counts) for _ in range(count)],
        "prompts_per_mini_batch": draw(st.integers(1, prompts)),
        "dp_size": draw(st.integers(1, 4)),
        "allow_partial": True,
    }
    shard_by = draw(st.sampled_from(["strided"] if strided else [None, "tokens", "contiguous"]))
    options["layout"] = fc.Packed(**pack)
    plan = fc.plan_step(tuple(np.array(lens).T), **options, shard_by=shard_by)
    return lens, pack, plan


def bins_of(shard):
    """List the rows of each of a shard's bins."""
    rows = shard.rows.tolist()
    return [rows[start:end] for start, end in pairwise(shard.bin_offsets.tolist())]


@given(drawn=packed_plans(strided=True))
def test_bins_go_round_to_the_ranks(drawn):
    lens, pack, plan = drawn
    dp_size, multiple = plan.dp_size, pack["multiple_of"]
    totals = [sum(pair) for pair in lens]
    widest = 0
    slots, offsets = [], [0]
    for mini_batch, (start, end) in enumerate(plan.mini_batches):
        shards = [plan.shard(mini_batch, rank) for rank in range(dp_size)]
        of_ranks = list(map(bins_of, shards))
        assert len({len(bins) for bins in of_ranks}) == 1
        # Round-robin: bin b is the (b // dp_size)-th of rank b % dp_size.
        bins = [of_ranks[b % dp_size][b // dp_size] for b in range(dp_size * len(of_ranks[0]))]
        assert len(bins) % math.lcm(dp_size, pack["bins_multiple_of"]) == 0
        try:
            how = {**pack, "bins_multiple_of": math.lcm(dp_size, pack["bins_multiple_of"])}
            expected = fc.planning.pack(totals[start:end], fc.Packed(**how)).bins
        except ValueError:
            # There are fewer sequences than bins: each is alone, and so are synthetic rows.
            assert sorted(bins) == sorted(
                [[row] for row in range(start, end)] + [[-1]] * (len(bins) - (end - start))
            )
            fewest = fc.planning.pack(
                totals[start:end], fc.Packed(**{**pack, "bins_multiple_of": 1})
            ).num_bins
            step = math.lcm(dp_size, pack["bins_multiple_of"])
            assert len(bins) == -(-fewest // step) * step
        else:
            assert [[row - start for row in bin_] for bin_ in bins] == expected
        for shard, of_rank in zip(shards, of_ranks, strict=True):
            assert shard.is_padding.tolist() == (shard.rows < 0).tolist()
            assert shard.lengths.tolist() == [totals[r] if r >= 0 else 2 for r in shard.rows]
            assert shard.layout == fc.Packed(**pack)
            assert shard.num_rows == len(lens)
            slots += shard.rows.tolist()
            offsets += [offsets[-1] + end for end in np.cumsum(list(map(len, of_rank))).tolist()]
        for bin_ in bins:
            places = [-(-(totals[row] if row >= 0 else 2) // multiple) * multiple for row in bin_]
            widest = max(widest, sum(places))
    # Slots are ordered by mini-batch, rank, bin and place.
    assert plan.rows.tolist() == slots
    assert plan.bin_offsets.tolist() == offsets
    assert plan.bin_offsets.dtype == np.int64
    assert sorted(plan.rows[~plan.is_padding].tolist()) == list(range(len(lens)))
    assert {plan.shard(0, rank).bin_width for rank in range(dp_size)} == {widest}
    assert plan.rows[plan.inverse].tolist() == list(range(len(lens)))
    check_copies(plan)


def costs_of_ranks(plan, cost, mini_batch=0):
    """Sum the costs of the rows of each rank."""
    shards = [plan.shard(mini_batch, rank) for rank in range(plan.dp_size)]
    return [sum(map(cost, shard.lengths.tolist())) for shard in shards]


@given(drawn=packed_plans())
def test_ranks_get_as_many_bins_within_their_limits(drawn):
    lens, pack, plan = drawn
    totals, multiple = [sum(pair) for pair in lens], pack["multiple_of"]
    assert sorted(plan.rows[~plan.is_padding].tolist()) == list(range(len(lens)))
    for mini_batch, (start, end) in enumerate(plan.mini_batches):
        of_ranks = [bins_of(plan.shard(mini_batch, rank)) for rank in range(plan.dp_size)]
        bins = [rows for bins in of_ranks for rows in bins]
        assert sorted(row for rows in bins for row in rows if row >= 0) == [*range(start, end)]
        step = math.lcm(plan.dp_size, pack["bins_multiple_of"])
        fewest = fc.planning.pack(
            totals[start:end], fc.Packed(**{**pack, "bins_multiple_of": 1})
        ).num_bins
        # No more bins than packing everything together needs, and none without a row.
        assert len(bins) == -(-fewest // step) * step
        assert {len(bins) for bins in of_ranks} == {len(bins) // plan.dp_size}
        check_copies(plan)
        for rows in bins:
            assert len(rows) <= (pack["max_sequences"] or len(lens))
            assert (
                sum(-(-totals[row] // multiple) * multiple for row in rows if row >= 0)
                <= (pack["capacity"])
            )
        assert sum(rows == [-1] for rows in bins) == max(0, len(bins) - (end - start))


@given(
    lens=st.lists(st.integers(1, 30), min_size=1, max_size=7),
    dp_size=st.integers(2, 3),
    capacity=st.integers(30, 60),
)
def test_the_slowest_rank_is_about_as_fast_as_can_be(lens, dp_size, capacity):
    """As that of the best of all assignments of as many bins, by brute force."""
    costs = fc.planning.Costs(per_token=3, per_pair=1)
    cost = lambda length: 3 * length + length * (length + 1) / 2  # noqa: E731
    options = {"dp_size": dp_size, "layout": fc.Packed(capacity), "shard_by": costs}
    plan = fc.plan_step(lens, **options)
    each = len(plan.bin_offsets) // dp_size
    best = math.inf
    for ranks in product(range(dp_size), repeat=len(lens)):
        parts = [
            [lens[row] for row, of in enumerate(ranks) if of == rank] for rank in range(dp_size)
        ]
        loads = [sum(map(cost, part)) for part in parts]
        if max(loads) < best and all(
            fc.planning.pack(p, fc.Packed(capacity)).num_bins <= each for p in parts
        ):
            best = max(loads)
    found = max(costs_of_ranks(plan, cost))
    assert found <= best * 4 / 3 + cost(2)  # Graham's bound of largest first, and a synthetic row
    strided = max(costs_of_ranks(fc.plan_step(lens, **options | {"shard_by": "strided"}), cost))
    assert found <= max(strided, best * 4 / 3) + cost(2)


def test_a_small_mini_batch_is_spread_over_its_ranks():
    plan = fc.plan_step([100] * 32, dp_size=4, layout=fc.Packed(16_384))
    assert plan.tokens_per_rank.tolist() == [[800] * 4]
    assert plan.bin_width == 800
    strided = fc.plan_step([100] * 32, dp_size=4, layout=fc.Packed(16_384), shard_by="strided")
    assert strided.tokens_per_rank.tolist() == [[2_900, 100, 100, 100]]


def test_bins_go_by_cost_where_rows_have_no_room():
    """Of 3 + 3 tokens each, nothing else fits into bins of 6; those with long rows cost more."""
    lens = [6, 6, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2]
    costs = fc.planning.Costs(per_pair=1)
    plan = fc.plan_step(lens, dp_size=3, layout=fc.Packed(6), shard_by=costs)
    of_ranks = [bins_of(plan.shard(0, rank)) for rank in range(3)]
    assert {len(bins) for bins in of_ranks} == {2}
    # 21, 21, 12, 12, 9 and 9: no rank has both of the costly ones.
    assert max(costs_of_ranks(plan, lambda n: n * (n + 1) / 2)) <= 33
    for bins in of_ranks:
        loads = [sum(lens[row] * (lens[row] + 1) / 2 for row in rows) for rows in bins]
        assert loads == sorted(loads, reverse=True)


def test_as_many_bins_as_asked_for():
    lens = np.random.default_rng(0).integers(50, 900, 64)
    plan = fc.plan_step(lens, dp_size=4, layout=fc.Packed(num_bins=2))
    assert len(plan.bin_offsets) - 1 == 8
    assert plan.bin_width <= fc.planning.pack(lens, fc.Packed(num_bins=8)).capacity
    assert plan.bin_width <= -(-lens.sum() // 8) * 1.05
    few = fc.plan_step(lens[:5], dp_size=4, layout=fc.Packed(num_bins=2))
    assert few.bin_width == lens[:5].max()
    assert len(few.padding_rows) == 3
    with pytest.raises(ValueError, match="fills only 5 bins and needs 8"):
        fc.plan_step(lens[:5], dp_size=4, layout=fc.Packed(num_bins=2), pad_rows="error")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": fc.Packed(3)}, r"\b1\b.*\b4\b.*capacity=3"),
        ({"layout": fc.Packed(8, algorithm="concat")}, "splits rows"),
        ({"layout": fc.Packed(3, oversize="split")}, "split"),
        ({"layout": fc.Packed(8), "shard_by": "balanced"}, "shard_by"),
        ({"layout": fc.Packed(8), "pad_rows": "copy_cycle"}, "copy_cycle"),
    ],
)
def test_what_cannot_be(options, message):
    with raises(message):
        fc.plan_step([3, 4, 2], dp_size=2, **options)


def test_bins_that_are_split():
    options = {"algorithm": "stable_ffd", "grow_by": "split", "cost": lambda lengths: lengths**2}
    layout = fc.Packed(10, **options)
    plan = fc.plan_step([6, 4, 5, 5, 3, 3], dp_size=4, layout=layout)
    bins = [rows.tolist() for rows in np.split(plan.rows, plan.bin_offsets[1:-1])]
    assert sorted(bins) == [[0], [1], [2, 3], [4, 5]]


def test_groups_that_stay_together():
    how = {"uids": list("aabb"), "keep_together": "prompt"}
    plan = fc.plan_step([3, 4, 2, 1], **how, layout=fc.Packed(8))
    assert sorted(map(sorted, bins_of(plan.shard(0, 0)))) == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match=r"keep_together.*7 tokens.*capacity=6"):
        fc.plan_step([3, 4, 2, 1], **how, layout=fc.Packed(6))


def test_rows_that_are_too_long_are_named():
    where = "mini-batch 1, rows 2 to 3, cannot be packed"
    with raises(rf"{where}: row 3 has 9 tokens, .*, or fc.Packed\(..., oversize='own_bin'\)$"):
        fc.plan_step([1, 2, 3, 9], rows_per_mini_batch=2, layout=fc.Packed(4))


def test_packed_shards_are_built_packed():
    """In other layouts, ranks would have different numbers of rows."""
    turns = {"prompts": [[1], [2], [3]], "responses": [[3], [4], [5]], "pad_token_id": 0}
    whole = fc.build_batch(**turns)
    shard = fc.plan_step(whole, dp_size=2, layout=fc.Packed(4)).shard(0, 0)
    for layout in ("left", "two_segment", "right", "jagged"):
        with pytest.raises(ValueError, match=r"planned with layout=Packed\(capacity=4\)"):
            fc.build_batch(**turns, shard=shard, layout=layout)
    with pytest.raises(ValueError, match=r"planned with layout=Packed\(capacity=4\)"):
        whole.select(shard)


def test_results_come_back_in_order():
    """Of slots, or of what gather gives: padding rows are left out there."""
    plan = fc.plan_step([2, 5, 3, 2, 4], rows_per_mini_batch=5, dp_size=7, layout=fc.Packed(6))
    slots = [f"row {row}" for row in plan.rows.tolist()]
    gathered = [name for name in slots if name != "row -1"]
    expected = [f"row {row}" for row in range(5)]
    assert len(slots) == 7
    assert fc.planning.drop_padding(slots, plan) == expected
    assert fc.planning.drop_padding(gathered, plan) == expected
    rows = plan.rows[~plan.is_padding]
    assert fc.planning.drop_padding(rows, plan).tolist() == list(range(5))
    assert fc.planning.drop_padding(
        fc.ragged([[row] * row for row in rows]), plan
    ).lengths.tolist() == [*range(5)]
    with pytest.raises(ValueError, match="6 items, but the plan has 7 slots"):
        fc.planning.drop_padding(slots[:6], plan)
    unpacked = fc.plan_step([2, 5, 3], dp_size=2)
    with pytest.raises(ValueError, match="3 items, but the plan has 4 slots"):
        fc.planning.drop_padding([1, 2, 3], unpacked)


def test_shards_of_other_rows():
    plan = fc.plan_step([2, 3], layout=fc.Packed(5))
    with pytest.raises(ValueError, match=r"\d tokens in row \d, which has \d; pass the rows"):
        fc.build_batch([[1], [2]], [[3, 4], [5]], pad_token_id=0, shard=plan.shard(0, 0))


def columns_of(step):
    """Return the columns of a step's rows, as lists."""
    names = ("prompts", "responses", "rewards", "loss_mask")
    columns = {name: step.turns[name] for name in names}
    if step.policy is None:
        return columns
    tokens = (columns.pop("prompts"), columns.pop("responses"))
    ids = step.turns["trajectory_ids"]
    return merge_columns_loops(
        merge_turns_loops(*tokens, trajectory_ids=ids, policy=step.policy), **columns
    )


@share(5)
@given(step=steps(is_packed=True))
def test_shards_equal_the_loops(step):
    columns = columns_of(step)
    for mini_batch in range(step.plan.num_mini_batches):
        for shard in step.shards(mini_batch):
            batch = step.build(shard=shard)
            expected = build_shard_loops(
                **columns, pad_token_id=0, shard=shard, layout=shard.layout, position_ids="zero"
            )
            assert_same(batch, expected)
            assert batch.is_padding == shard.is_padding.tolist()


@share(5)
@given(step=steps(is_packed=True))
def test_padding_is_in_no_normalizer(step):
    """Of a packed batch of all rows, as of a padded one."""
    plan = step.plan
    tokens, rows = step.whole.loss_normalizers(plan)
    how = {"shift": plan.layout.shift, "padding_as": plan.layout.padding_as}
    packed = step.build(layout=fc.Packed.single_row(**how))
    found_tokens, found_rows = packed.loss_normalizers(plan)
    assert found_tokens.tolist() == tokens.tolist()
    assert found_rows.tolist() == rows.tolist()
    advantages = torch.randn(step.whole.loss_mask.shape, dtype=torch.float64)
    ragged = step.whole.gather(advantages, align="response")
    values = torch.zeros(packed.loss_mask.shape, dtype=torch.float64)
    places = packed.gather(
        torch.arange(values.numel()).reshape(values.shape), align="response"
    ).values
    values.view(-1)[places] = ragged.values
    found = packed.gather(packed.normalize(values, plan), align="response")
    expected = step.whole.gather(step.whole.normalize(advantages, plan), align="response")
    same(found.values, expected.values, "normalize")
