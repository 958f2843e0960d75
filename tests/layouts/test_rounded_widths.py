"""Widths of packed rows and of trees, rounded up by ``pad_to_multiple_of``."""

import numpy as np
import pytest
from making import make_batch

import fastcollate as fc
from fastcollate import planning

PROMPTS = [[1, 2], [1, 2, 3], [4], [1, 2], [5, 6, 7, 8], [1, 2, 3]]
RESPONSES = [[7], [8, 9], [1], [7, 7, 7], [2], [8]]
LENS = [len(p) + len(r) for p, r in zip(PROMPTS, RESPONSES, strict=True)]


def build(layout, **options):
    return make_batch(PROMPTS, RESPONSES, layout=layout, **options)


@pytest.mark.parametrize("kind", [fc.Packed, fc.Tree])
@pytest.mark.parametrize(("capacity", "multiple_of"), [(9, 1), (12, 4)])
def test_only_padding_is_added(kind, capacity, multiple_of):
    plain = build(kind(capacity, multiple_of=multiple_of))
    rounded = build(kind(capacity, multiple_of=multiple_of, pad_to_multiple_of=7))
    width, both = plain.input_ids.shape[1], 7 * multiple_of
    assert rounded.input_ids.shape[1] == -(-width // both) * both
    np.testing.assert_array_equal(rounded.input_ids[:, :width], plain.input_ids)
    assert not rounded.input_ids[:, width:].any()
    assert rounded.loss_mask.sum() == plain.loss_mask.sum()


@pytest.mark.parametrize("kind", [fc.Packed, fc.Tree])
def test_all_shards_of_a_step_are_as_wide(kind):
    layout = kind(10, pad_to_multiple_of=16)
    rows = LENS if kind is fc.Packed else planning.prefix_tree(PROMPTS, RESPONSES)
    step = fc.plan_step(rows, dp_size=2, layout=layout)
    shards = [build(layout, shard=step.shard(0, rank)) for rank in range(2)]
    assert {shard.input_ids.shape[1] for shard in shards} == {16} == {step.written_width}
