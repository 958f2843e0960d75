"""Forecasts: times of computing and of waiting of ranks, by loops over their bins."""

import sys

import numpy as np
import pytest
from conftest import share
from hypothesis import given
from hypothesis import strategies as st
from raising import raises

import fastcollate as fc
from fastcollate.planning import Costs, compare_plans

COSTS = Costs(2.0, 0.5, 3.0, 10.0)
LAYOUTS = [
    None,
    "jagged",
    fc.Left(pad_to=64),
    fc.Right(multiple_of=8),
    fc.TwoSegment(multiple_of=4),
    fc.Packed(40),
    fc.Packed(48, multiple_of=4),
    fc.Packed(num_bins=2),
    fc.Packed.single_row(),
]


def pairs(length):
    return sum(range(1, length + 1))


def cost_of_rows(lengths):
    return sum(2.0 * n + 0.5 * pairs(n) + 3.0 for n in lengths)


def micro_batches_of(shard, count):
    """List the lengths of the rows of each micro-batch, and how many positions each has."""
    if shard.bin_offsets is not None:
        return [part.lengths.tolist() for part in shard.micro_batches()]
    return [part.lengths.tolist() for part in shard.micro_batches(count)]


def width_of(plan, lens):
    """The width of the output, by building it; None if nothing is padded."""
    prompts = [[1] * p for p, _ in lens]
    responses = [[2] * r for _, r in lens]
    shard = plan.shard(0, 0)
    layout = {} if plan.layout is not None else {"layout": "left"}
    batch = fc.build_batch(prompts, responses, pad_token_id=0, shard=shard, **layout)
    if batch.input_ids.ndim == 1 or plan.layout == fc.Packed.single_row():
        return None
    return batch.input_ids.shape[1]


@share(2)
@given(
    lens=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30)), min_size=1, max_size=12),
    layout=st.sampled_from(LAYOUTS),
    dp_size=st.integers(1, 3),
    rows=st.integers(1, 12),
    sync=st.sampled_from(["step", "micro_batch"]),
    data=st.data(),
)
def test_forecasts_are_sums_over_bins(lens, layout, dp_size, rows, sync, data):
    columns = tuple(np.array(lens).T)
    options = {"rows_per_mini_batch": rows, "allow_partial": True, "dp_size": dp_size}
    plan = fc.plan_step(columns, **options, layout=layout)
    is_packed = plan.bin_offsets is not None
    fewest = min(len(plan.shard(m, 0)) for m in range(plan.num_mini_batches))
    count = 1 if is_packed else data.draw(st.integers(1, fewest))
    how = {} if is_packed else {"micro_batches": count}
    found = plan.forecast(COSTS, sync, **how)
    width = width_of(plan, lens)
    for mini_batch in range(plan.num_mini_batches):
        times, positions, real = [], 0, []
        for rank in range(dp_size):
            shard = plan.shard(mini_batch, rank)
            real += shard.lengths[~shard.is_padding].tolist()
            of_rank = []
            for lengths in micro_batches_of(shard, count):
                if width is None:
                    cost = cost_of_rows(lengths)
                    positions += sum(lengths)
                elif is_packed:
                    cost = cost_of_rows(lengths) + 2.0 * (width - sum(lengths))
                    positions += width
                else:
                    cost = cost_of_rows([width] * len(lengths))
                    positions += width * len(lengths)
                of_rank.append(cost + 10.0)
            times.append(of_rank)
        np.testing.assert_allclose(found.times[mini_batch], times)
        slowest = max(map(sum, times))
        if sync == "micro_batch":
            slowest = sum(map(max, zip(*times, strict=True)))
        np.testing.assert_allclose(found.step_times[mini_batch], slowest)
        waits = [1 - sum(of_rank) / slowest for of_rank in times]
        np.testing.assert_allclose(found.waits[mini_batch], waits, atol=1e-12)
        bound = 10.0 + max(cost_of_rows(real) / dp_size, *(cost_of_rows([n]) for n in real))
        np.testing.assert_allclose(found.bounds[mini_batch], bound)
        assert found.bounds[mini_batch] <= slowest * (1 + 1e-12)
        assert found.tokens[mini_batch] == sum(real)
        assert found.padding[mini_batch] == positions - sum(real)
    np.testing.assert_allclose(found.time, found.step_times.sum())
    idle = 1 - found.rank_times.sum() / dp_size / found.time
    np.testing.assert_allclose(found.metrics["forecast/idle"], idle, atol=1e-12)
    assert f"{found.time:.4g}" in repr(found)
    assert len(found.describe().splitlines()) == 2 + plan.num_mini_batches


def test_models_without_padding():
    plan = fc.plan_step([8, 2, 2, 4], dp_size=2, layout=fc.Right(), shard_by="strided")
    costs = Costs(per_token=1)
    assert plan.forecast(costs).rank_times.tolist() == [[16, 16]]
    found = plan.forecast(costs, computes_padding=False)
    assert found.rank_times.tolist() == [[10, 6]]
    assert found.waits.tolist() == [[0.0, 0.4]]
    assert (found.bound, found.padding.tolist()) == (8, [0])
    assert found.idle == pytest.approx(0.2)


def test_micro_batches_wait_for_each_other():
    plan = fc.plan_step([9, 1, 1, 9], dp_size=2, layout="jagged")
    costs = Costs(per_token=1)
    assert plan.forecast(costs, micro_batches=2).time == 10
    found = plan.forecast(costs, "micro_batch", micro_batches=2)
    assert found.time == 18
    assert found.waits.tolist() == [[1 - 10 / 18] * 2]


def rows_with_prefixes(groups=4, samples=4):
    prompts = [[uid + 1] * (10 * uid + 5) for uid in range(groups) for _ in range(samples)]
    responses = [[100 + row] * (3 + row % 5) for row in range(groups * samples)]
    return prompts, responses


def test_trees():
    prompts, responses = rows_with_prefixes()
    tree = fc.planning.prefix_tree(prompts, responses)
    bins = tree.pack(fc.Tree(64, bins_multiple_of=4))
    found = bins.forecast(COSTS, 4, tree=tree)
    assert sorted(bin_ for rank in bins.of_ranks(4, shard_by=COSTS) for bin_ in rank) == list(
        range(bins.num_bins)
    )
    loads = []
    for rank in bins.of_ranks(4, shard_by=COSTS):
        load = 0.0
        for bin_ in rank:
            seen = set()
            load += 10.0 + 3.0 * len(bins.bins[bin_])
            for row in bins.bins[bin_]:
                tokens = (*prompts[row], *responses[row])
                for depth in range(len(tokens)):
                    if tokens[: depth + 1] not in seen:
                        load += 2.0 + 0.5 * (depth + 1)
                        seen.add(tokens[: depth + 1])
        loads.append(load)
    np.testing.assert_allclose(found.rank_times[0], loads)
    assert found.duplicates.tolist() == [bins.tokens.sum() - tree.tokens_after]
    assert found.bounds[0] <= max(loads) + 1e-9
    with raises(r"dp_size is 3, which does not divide .* bins; pass bins_m"):
        bins.of_ranks(3, shard_by=COSTS)
    step = fc.plan_step((tree.prompt_lens, tree.response_lens), dp_size=4, layout=fc.Packed(64))
    packed = step.forecast(COSTS, tree=tree)
    assert packed.duplicates.sum() == tree.tokens_before - tree.tokens_after
    table = compare_plans({"packed": step, "tree": bins}, COSTS, dp_size=4).splitlines()
    assert [line.split()[0] for line in table] == ["plan", "packed", "tree"]
    assert "1.00x" in table[2]
    assert found.time < packed.time


def test_a_plot_has_a_bar_for_each_rank_and_micro_batch():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    plan = fc.plan_step(range(1, 13), dp_size=3, layout=fc.Packed(num_bins=2))
    for sync in ("step", "micro_batch"):
        found = plan.forecast(COSTS, sync)
        axes = found.plot()
        assert len(axes.patches) == 6
        ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
        np.testing.assert_allclose(max(ends), found.time)
        assert found.plot(axes) is axes
        pyplot.close(axes.figure)


def test_plots_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"plots need matplotlib.*describe\(\)"):
        fc.plan_step([1]).forecast(COSTS).plot()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda plan: plan.forecast("flops"),
            r"TypeError: costs is .*; pass fastcollate.planning.Costs",
        ),
        (lambda plan: plan.forecast(COSTS, "rank"), "sync is 'rank'; pass 'step', 'micro_batch'"),
        (
            lambda plan: plan.forecast(COSTS, micro_batches=9),
            "micro_batches is 9, but a rank has 2 rows .*; pass a number from 1 to 2",
        ),
        (
            lambda _: fc.plan_step([1], layout=fc.Packed(4)).forecast(COSTS, micro_batches=1),
            "micro_batches is 1, but rows are packed",
        ),
        (lambda _: compare_plans([], COSTS), "plans is empty"),
        (lambda _: compare_plans(3, COSTS), "TypeError: plans is 3"),
        (lambda _: compare_plans([3], COSTS), r"TypeError: plans\['plan 0'\] is 3 .*; pass what"),
        (
            lambda _: compare_plans(
                [fc.planning.prefix_tree([[1]], [[2]]).pack(fc.Tree(4))], COSTS
            ),
            "bins of trees, but dp_size is None; pass dp_size",
        ),
    ],
)
def test_what_cannot_be(call, message):
    with raises(message):
        call(fc.plan_step([3, 4, 5], dp_size=2))


def agentic(rng, rows):
    lengths = rng.integers(100, 1_000, rows)
    is_long = rng.random(rows) < 0.06
    return np.where(is_long, rng.integers(8_000, 32_000, rows), lengths)


def log_normal(rng, rows):
    return rng.lognormal(np.log(2000), 0.8, rows).astype(int).clip(16, 16_384)


@pytest.mark.parametrize("draw", [agentic, log_normal])
@pytest.mark.parametrize(("rows", "ranks"), [(256, 8), (1_024, 8), (1_024, 64), (4_096, 64)])
def test_packed_steps_wait_no_longer_than_the_bound_and_a_point(draw, rows, ranks):
    lengths = draw(np.random.default_rng(rows), rows)
    costs = Costs(24_575, 2)  # verl's workload
    plan = fc.plan_step(lengths, dp_size=ranks, layout=fc.Packed(32_768), shard_by=costs)
    found = plan.forecast(costs, computes_padding=False)
    mean = found.rank_times.mean()
    assert found.idle <= 1 - mean / found.bound + 0.01
    parts = fc.planning.partition(lengths, ranks, cost="flops")  # as verl's
    assert found.time <= max(costs.of(lengths[part]).sum() for part in parts) * (1 + 1e-4)
    strided = fc.plan_step(lengths, dp_size=ranks, layout=fc.Packed(32_768), shard_by="strided")
    assert len(plan.bin_offsets) == len(strided.bin_offsets)
    assert found.time < strided.forecast(costs, computes_padding=False).time
