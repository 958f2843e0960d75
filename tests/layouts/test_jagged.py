"""The jagged layout: no padding, and offsets of the rows."""

import numpy as np
from conftest import NEEDS_TORCH
from making import make_batch
from small_input import build

from fastcollate.testing.reference import assert_same


def test_written_out(array_type):
    batch = make_batch(
        [[1, 2], [], [3]],
        [[4], [5, 6], []],
        rewards=[[0.5], [1, 2], []],
        layout="jagged",
        array_type=array_type,
    )
    expected = {
        "input_ids": np.array([1, 2, 4, 5, 6, 3], np.int64),
        "cu_seqlens": np.array([0, 3, 5, 6], np.int32),
        "offsets": np.array([0, 3, 5, 6], np.int64),
        "max_seqlen": 3,
        "response_offsets": np.array([0, 1, 3, 3], np.int64),
        "loss_mask": np.array([1, 0, 1], np.float32),
        "rewards": np.array([0.5, 1, 2], np.float32),
    }
    assert_same(batch, expected)
    assert batch.prompt_lens.tolist() == [2, 0, 1]
    assert batch.response_lens.tolist() == [1, 2, 0]


@NEEDS_TORCH
def test_goes_into_a_nested_tensor():
    import torch

    batch = build(layout="jagged", array_type="torch")
    nested = torch.nested.nested_tensor_from_jagged(batch.input_ids, batch.offsets)
    assert [row.tolist() for row in nested.unbind()] == [[1, 2, 7], [3, 8, 9], [4, 5, 6, 10, 11]]


def test_metrics_have_no_padding():
    metrics = build(layout="jagged").metrics
    assert metrics["batch/tokens"] == metrics["batch/padded_tokens"] == 11
    assert metrics["batch/padding_fraction"] == 0
    assert metrics["batch/longest_row"] == 5
