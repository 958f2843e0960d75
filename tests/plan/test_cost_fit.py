"""Costs from measurements: known costs are recovered, and undetermined ones are reported."""

import time
import warnings

import numpy as np
import pytest
from raising import raises

import fastcollate as fc
from fastcollate.planning import Costs, StepTimer

TRUE = Costs(2e-6, 3e-10, 2e-3, 8e-3)


def made_up(costs, count, noise, seed=0):
    """Draw micro-batches of 1 to 12 sequences, and how long they take."""
    rng = np.random.default_rng(seed)
    timings = []
    for _ in range(count):
        lengths = rng.lognormal(np.log(1500), 0.9, rng.integers(1, 13)).astype(int).clip(10, 12_000)
        seconds = costs.of(lengths).sum() + costs.per_bin
        timings.append((lengths, float(seconds * np.exp(noise * rng.standard_normal()))))
    return timings


@pytest.mark.parametrize("like", [None, Costs(1, window=512, window_share=0.5)])
def test_costs_are_found_again(like):
    options = {} if like is None else {"window": 512, "window_share": 0.5}
    true = Costs(2e-6, 3e-9, 2e-3, 8e-3, **options)
    exact = Costs.fit(made_up(true, 40, 0.0), like=like)
    for name in ("per_token", "per_pair", "per_sequence", "per_bin"):
        assert getattr(exact.costs, name) == pytest.approx(getattr(true, name), rel=1e-6)
    assert (exact.costs.window, exact.median_error) == (true.window, pytest.approx(0, abs=1e-9))
    noisy = Costs.fit(made_up(true, 400, 0.05), like=like)
    assert noisy.costs.per_token == pytest.approx(true.per_token, rel=0.1)
    assert noisy.costs.per_pair == pytest.approx(true.per_pair, rel=0.1)
    assert noisy.costs.per_sequence == pytest.approx(true.per_sequence, rel=0.15)
    assert noisy.costs.per_bin == pytest.approx(true.per_bin, rel=0.1)
    assert 0.02 < noisy.median_error < 0.05
    works, seconds = zip(*made_up(true, 100, 0.0, seed=1), strict=True)
    assert np.median(np.abs(noisy.costs.predict(works) / seconds - 1)) < 0.01
    assert "400 timings, median error" in repr(noisy)


def test_no_cost_is_negative():
    timings = [([n] * k, 1e-3 * n * k - 1e-4 * k) for n in (10, 20, 40) for k in (1, 2, 5)]
    fit = Costs.fit(timings)
    assert min(fit.costs.to_dict().values()) > 0

    # It is the best of those that are not: none on a grid around it is better.
    def error(costs):
        predicted = costs.predict([lengths for lengths, _ in timings])
        return ((predicted / fit.measured - 1) ** 2).sum()

    least = error(fit.costs)
    rng = np.random.default_rng(0)
    for _ in range(200):
        near = {name: value * rng.uniform(0.9, 1.1) for name, value in fit.costs.to_dict().items()}
        assert error(Costs(**near)) >= least * (1 - 1e-9)


def test_what_cannot_be_told_apart_is_said():
    rng = np.random.default_rng(0)
    timings = [([int(n)] * 4, 1e-3 + 1e-5 * n) for n in rng.integers(10, 5_000, 50)]
    with pytest.warns(UserWarning, match="cannot separate per_sequence, per_bin, .* add micro-"):
        Costs.fit(timings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Costs.fit(made_up(TRUE, 50, 0.05))


def test_timers_measure():
    timer = StepTimer(warmup=1)
    for lengths in ([5, 3], [4], [2, 2]):
        with timer(lengths):
            time.sleep(0.002)
    with pytest.raises(KeyError), timer([9]):
        raise KeyError
    assert len(timer) == 2
    assert [work.lengths.tolist() for work, _ in timer.timings] == [[4], [2, 2]]
    assert all(0.002 <= seconds < 1 for _, seconds in timer.timings)
    assert repr(timer) == "StepTimer: 2 timings"


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("left", [12, 6 * 7, 2, 1]),
        ("jagged", [9, 21 + 6, 2, 1]),
        (fc.Packed(12, pad_to=12), [12, 21 + 6, 2, 1]),
    ],
)
def test_what_batches_hold(layout, expected, array_type):
    batch = fc.build_batch(
        [[1, 2], [3]], [[4, 5, 6, 7], [8, 9]], pad_token_id=0, layout=layout, array_type=array_type
    )
    timer = StepTimer(warmup=0)
    with timer(batch):
        pass
    ((work, _),) = timer.timings
    terms = [Costs(*unit).predict([batch, work]).tolist() for unit in np.eye(4).tolist()]
    assert terms == [[value, value] for value in expected]


def test_what_shards_hold():
    plan = fc.plan_step([6, 3, 2], dp_size=1, layout=fc.Packed(6))
    found = [Costs(*unit).predict([plan.shard(0, 0)])[0] for unit in np.eye(4).tolist()]
    assert found == [12, 21 + 6 + 3, 3, 2]


def test_trees_are_counted_once():
    layout = fc.Tree()
    batch = fc.build_batch([[1, 2]] * 2, [[3], [4, 5]], pad_token_id=0, layout=layout)
    found = [Costs(*unit).predict([batch])[0] for unit in np.eye(4).tolist()]
    assert found == [5, 1 + 2 + 3 + 3 + 4, 2, 1]


def test_a_plot(array_type):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    fit = Costs.fit(made_up(TRUE, 20, 0.05))
    axes = fit.plot()
    np.testing.assert_allclose(
        axes.collections[0].get_offsets(), np.c_[fit.measured, fit.predicted]
    )
    pyplot.close(axes.figure)


@pytest.mark.gpu
def test_events_of_cuda_measure():
    torch = pytest.importorskip("torch")
    batch = fc.build_batch([[1]] * 4, [[2] * 9] * 4, pad_token_id=0, array_type="torch").to("cuda")
    timer = StepTimer(warmup=1)
    weights = torch.randn(4096, 4096, device="cuda")
    for _ in range(3):
        with timer(batch):
            for _ in range(20):
                weights = weights @ weights / 4096
    seconds = [seconds for _, seconds in timer.timings]
    assert len(seconds) == 2
    assert 20 * 2 * 4096**3 / 2e15 < min(seconds) < 5


@pytest.mark.parametrize(
    ("timings", "message"),
    [
        (made_up(TRUE, 4, 0), "timings has 4 items, but 4 costs are fitted; pass at least 5"),
        ([([5, 3], 0.1)] * 9, "all 9 timings are of one shape, 2 sequences with 8"),
        ([([5], 0.0)], r"timings\[0\]\[1\] is 0.0; pass seconds.*at least 1e-30"),
        ([([5], 1.0), ([5], 5e-324)], r"timings\[1\]\[1\] is 5e-324"),
        ([([5], float("inf"))], r"timings\[0\]\[1\] is inf"),
        ([([5], "1")], r"TypeError: timings\[0\]\[1\] is '1'"),
        ([([5], float("nan"))], r"timings\[0\]\[1\] is nan"),
        ([5], r"TypeError: timings\[0\] is 5 .*; pass a pair \(batch, seconds\)"),
        (5, "TypeError: timings is 5 .*; pass a StepTimer, or a list of pairs"),
        ([([-5], 1.0)], r"timings\[0\]"),
    ],
)
def test_timings_that_cannot_be(timings, message):
    with raises(message):
        Costs.fit(timings)


def test_costs_of_segments_are_found_in_timings_of_trees():
    rng = np.random.default_rng(0)
    true = Costs(2e-6, 3e-9, 2e-3, 8e-3, per_segment=5e-4, per_key=4e-6)
    timings = []
    for _ in range(40):
        groups, size = rng.integers(1, 4, 2)
        prompts = [np.full(rng.integers(1, 400), group) for group in range(groups)] * size
        rows = [np.full(rng.integers(1, 300), 10 + row) for row in range(len(prompts))]
        batch = fc.build_batch(prompts, rows, pad_token_id=0, layout=fc.Tree(), array_type="numpy")
        queries, keys = map(np.diff, batch.attention_paths()[1:3])
        pairs = (keys * (keys + 1) - (keys - queries) * (keys - queries + 1)) / 2
        seconds = true.per_token * queries.sum() + true.per_pair * pairs.sum() + true.per_bin
        seconds += true.per_sequence * len(rows)
        seconds += true.per_segment * len(keys) + true.per_key * keys.sum()
        timings.append((batch, float(seconds)))
    found = Costs.fit(timings).costs
    for name in (*Costs.TERMS, *Costs.OF_PATHS):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=1e-6)
    seconds = [second for _, second in timings]
    assert found.predict([batch for batch, _ in timings]) == pytest.approx(seconds)
