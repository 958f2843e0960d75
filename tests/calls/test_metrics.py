"""Metrics: trained tokens, and lengths."""

import numpy as np
import pytest
from conftest import share
from hypothesis import given
from hypothesis import strategies as st
from making import make_batch

import fastcollate as fc

LAYOUTS = [
    *("left", "right", "two_segment", "jagged"),
    fc.Packed(capacity=9),
    fc.Packed(capacity=9, multiple_of=4, shift="next_token"),
    fc.Tree(capacity=9),
]
masks = st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=5), min_size=1, max_size=6)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@given(loss_mask=masks)
@share(6)
def test_what_trains_is_counted(layout, array_type, loss_mask):
    responses = [[7] * len(row) for row in loss_mask]
    prompts = [[5] * (1 + index % 3) for index in range(len(loss_mask))]
    batch = make_batch(
        *(prompts, responses), loss_mask=loss_mask, layout=layout, array_type=array_type
    )
    counts = [sum(weight > 0 for weight in row) for row in loss_mask]
    metrics = batch.metrics
    assert metrics["batch/trained_tokens"] == sum(counts)
    assert metrics["batch/rows_without_loss"] == counts.count(0)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bad_log_probabilities(layout, dtype):
    logprobs = [[-1.0, float("nan")], [-9999.0], [float("-inf"), -0.5, -20.0]]
    batch = fc.build_batch(
        *([[5], [6], [7]], [[1, 2], [3], [4, 5, 6]]),
        pad_token_id=0,
        logprobs=logprobs,
        layout=layout,
        dtypes={"logprobs": dtype},
    )
    assert batch.metrics["batch/bad_logprobs"] == 3
    without = fc.build_batch([[5]], [[1]], pad_token_id=0, layout=layout)
    assert "batch/bad_logprobs" not in without.metrics


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_padding_rows_are_not_counted(layout):
    prompts, responses = [[1, 2], [3], [4]], [[5], [6, 7], [8, 9, 9]]
    rows = [3, 3, 4]
    if isinstance(layout, fc.Tree):
        rows = fc.planning.prefix_tree(prompts, responses)
    plan = fc.plan_step(rows, dp_size=2, layout=layout)
    shards = [plan.shard(0, rank) for rank in range(2)]
    metrics = [make_batch(prompts, responses, shard=shard).metrics for shard in shards]
    assert sum(one["batch/trained_tokens"] for one in metrics) == 6
    assert sum(one["batch/rows_without_loss"] for one in metrics) == 0
    longest = max(one["batch/response_length_p99"] for one in metrics)
    assert 2 < longest <= 3


def test_lengths_have_percentiles():
    lengths = np.arange(1, 102)
    prompts = [[1] * n for n in lengths]
    metrics = make_batch(prompts, [[2]] * 101).metrics
    names = ("row", "prompt", "response")
    found = [[metrics[f"batch/{name}_length_p{p}"] for p in (50, 90, 99)] for name in names]
    assert found == [[52, 92, 101], [51, 91, 100], [1, 1, 1]]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30))
@share(6)
def test_percentiles_are_those_of_numpy(lengths):
    responses = [[2] * n for n in lengths]
    batch = make_batch([[1]] * len(lengths), responses)
    for p in (50, 90, 99):
        expected = pytest.approx(np.percentile(lengths, p))
        assert batch.metrics[f"batch/response_length_p{p}"] == expected


def test_a_batch_without_a_table_of_outputs_has_the_sizes_alone():
    batch = make_batch([[1]], [[2]])
    metrics = fc.Batch(batch)._replace(made_by=batch.plan).metrics
    assert metrics["batch/tokens"] == 2
    assert "batch/trained_tokens" not in metrics


def test_a_part_for_context_parallelism_has_the_sizes_alone():
    layout = fc.Packed(capacity=8, multiple_of=4)
    batch = make_batch([[1, 2]], [[3, 4]], layout=layout)
    metrics = batch.cp_split(2, 0).metrics
    assert metrics["batch/tokens"] == 4
    assert "batch/trained_tokens" not in metrics
