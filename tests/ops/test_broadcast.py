"""Values of rows on the tokens that train, and on whole responses."""

import numpy as np
import pytest
from conftest import NEEDS_TORCH
from making import make_batch

import fastcollate as fc
from fastcollate.testing.reference import assert_same

# A row of two turns with an observation, one whose first turn drifted, and one turn alone.
TURNS = {
    "prompts": [[1, 2], [1, 2, 3, 4], [5], [5, 8, 7], [9]],
    "responses": [[3], [5, 6], [6, 7], [4], [4, 4]],
    "trajectory_ids": ["s", "s", "t", "t", "u"],
}
PER_ROW = [0.5, 2.0, 3.0]
TRAINED = [[0.5, 0, 0.5, 0.5], [0, 2, 2], [3, 3]]
RESPONSE = [[0.5] * 4, [2] * 3, [3] * 2]


def build(array_type="numpy", **options):
    names = ("prompts", "responses", "trajectory_ids")
    turns = {name: TURNS[name] for name in names}
    plan = fc.merge_turns(**turns, policy=fc.planning.Merge("realign", mask_drift="span"))
    return make_batch(
        **turns,
        merge=plan,
        loss_mask=[[1] * len(r) for r in TURNS["responses"]],
        array_type=array_type,
        **options,
    )


def rows_of(batch, values):
    """Take each row's response out of a field."""
    return batch.gather(values, align="response").to_list()


@pytest.mark.parametrize("layout", ["left", "right", "two_segment", "jagged"])
@pytest.mark.parametrize(("on", "expected"), [("trained", TRAINED), ("response", RESPONSE)])
def test_merged_rows(layout, on, expected, array_type):
    batch = build(array_type, layout=layout)
    found = batch.broadcast(PER_ROW, on=on)
    assert rows_of(batch, found) == expected
    assert float(found.sum()) == sum(map(sum, expected))
    assert found.shape == batch.loss_mask.shape
    if on == "trained":
        assert (batch.broadcast(PER_ROW) == found).all()
        assert ((found != 0) == (batch.loss_mask != 0)).all()


@pytest.mark.parametrize("shift", ["none", "next_token"])
def test_packed_rows(shift, array_type):
    options = {"layout": fc.Packed(capacity=8, shift=shift)}
    batch = build(array_type, **options)
    found = batch.broadcast(PER_ROW)
    assert rows_of(batch, found) == TRAINED
    assert ((found != 0) == (batch.loss_mask != 0)).all()
    assert rows_of(batch, batch.broadcast(PER_ROW, on="response")) == RESPONSE


@pytest.mark.parametrize("pad_rows", ["copy_first", "synthetic"])
@pytest.mark.parametrize("layout", ["left", "jagged"])
def test_padding_rows(layout, pad_rows, array_type):
    plan = fc.plan_step(build().merge_plan, dp_size=2, pad_rows=pad_rows)
    shards = [build(array_type, layout=layout, shard=plan.shard(0, rank)) for rank in range(2)]
    padded = [shard for shard in shards if any(shard.is_padding)]
    assert len(padded) == 1
    for shard in shards:
        ones = np.ones(len(shard.is_padding), np.float32)
        found = np.asarray(shard.broadcast(ones))
        assert (found == (np.asarray(shard.loss_mask) != 0)).all()
        assert shard.broadcast(ones, on="response").sum() == shard.response_lens.sum()


LAYOUTS = ["left", "right", "two_segment", "jagged", fc.Packed(capacity=8), "tree"]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("masks", [None, [[0, 1, 0.5], [0, 0], [0, 1]]])
def test_the_same_numbers_as_those_of_a_field(layout, masks, array_type):
    """Of a row that trains nothing, of a first token without a prompt, and where the mask is 0."""
    prompts, responses = [[], [1], [2, 3]], [[4, 5, 6], [7, 8], [9, 1]]
    if layout == "tree":
        prompts[0] = [5]  # a first token cannot train there
    numbers = [0.5, -2.0, 3.0]
    batch = make_batch(
        prompts,
        responses,
        loss_mask=masks,
        layout=layout,
        array_type=array_type,
        fields={"x": fc.Field(numbers, spread="trained")},
    )
    assert_same({"x": batch.broadcast(numbers)}, {"x": batch["x"]})
    if masks:
        mask, found = np.asarray(batch["loss_mask"]), np.asarray(batch.broadcast(numbers))
        assert not found[mask == 0].any()
        assert found[mask != 0].all()


def test_a_mask_that_is_modified_is_read(array_type):
    batch = make_batch([[1], [2]], [[3, 4], [5]], loss_mask=[[1, 1], [1]], array_type=array_type)
    batch.loss_mask[0, 0] = 0
    assert batch.broadcast([7, 8]).tolist() == [[0, 7], [0, 8]]
    assert batch.broadcast([7, 8], on="response").tolist() == [[7, 7], [0, 8]]


@NEEDS_TORCH
def test_masked_tokens_have_no_gradient():
    import torch

    per_row = torch.tensor([1.0, float("nan"), 3.0], requires_grad=True)
    for dtype in ("float32", "bool", "int64"):
        batch = fc.build_batch(
            [[1]] * 3, [[2, 3]] * 3, pad_token_id=0, loss_mask=[[1, 0], [0, 0], [1, 1]],
            dtypes={"loss_mask": dtype},
        )  # fmt: skip
        per_row.grad = None
        found = batch.broadcast(per_row)
        assert found.tolist() == [[1, 0], [0, 0], [3, 3]]
        found.sum().backward()
        assert per_row.grad.tolist() == [1, 0, 2]


@NEEDS_TORCH
def test_gradients_count_what_trains():
    import torch

    per_row = torch.tensor(PER_ROW, requires_grad=True)
    for options in ({}, {"layout": "jagged"}, {"layout": fc.Packed(capacity=8)}):
        for on, counts in (("trained", [3, 2, 2]), ("response", [4, 3, 2])):
            per_row.grad = None
            build("torch", **options).broadcast(per_row, on=on).sum().backward()
            assert per_row.grad.tolist() == counts


@pytest.mark.parametrize("on", ["all", None, 1])
def test_other_places_are_refused(on):
    with pytest.raises((TypeError, ValueError), match=r"on is .*; pass 'trained', 'response'"):
        build().broadcast(PER_ROW, on=on)


def test_a_shift_has_to_be_said_of_sequences():
    batch = build()
    with pytest.raises(TypeError, match=r"shift='next_token' .*shift='none'"):
        batch.gather(batch.input_ids, align="sequence")
    assert (
        batch.gather(batch.loss_mask).to_list()
        == batch.gather(batch.loss_mask, shift="none").to_list()
    )
