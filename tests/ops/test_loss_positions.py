"""Inputs of a loss: the positions that predict trained tokens, and these tokens."""

import pickle

import numpy as np
import pytest
from attention_rows import LAYOUTS, ROWS, rows_of, with_prompts
from conftest import NEEDS_TORCH, share
from hypothesis import given
from hypothesis import strategies as st
from making import make_batch

import fastcollate as fc
from fastcollate.common.arrays import to_numpy


def built(lens, layout, array_type="numpy", masks=None, **options):
    """Build a batch of different tokens; with fields of response tokens and their predecessors."""
    prompts, responses = rows_of(lens, layout)
    rows = zip(prompts, responses, strict=True)
    before = [[0, *p, *r][len(p) : len(p) + len(r)] for p, r in rows]
    fields = {
        "tokens": fc.Field(responses, dtype="int64"),
        "before": fc.Field(before, dtype="int64"),
    }
    fields |= options.pop("fields", {})
    return fc.build_batch(
        prompts, responses, pad_token_id=999, loss_mask=masks, fields=fields,
        array_type=array_type, layout=LAYOUTS[layout], **options,
    )  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_masked", [False, True])
@share(10)
@given(lens=ROWS, data=st.data())
def test_predictors_are_the_tokens_before(layout, is_masked, array_type, lens, data):
    lens = with_prompts(lens, layout)
    masks = None
    if is_masked:
        weights = st.sampled_from([0, 0, 1, 0.5])
        masks = [data.draw(st.lists(weights, min_size=r, max_size=r)) for _, r in lens]
    batch = built(lens, layout, array_type, masks)
    tokens, before = to_numpy(batch["tokens"]), to_numpy(batch["before"])
    np.testing.assert_array_equal(to_numpy(batch.targets), tokens)
    assert batch.targets.dtype == batch.input_ids.dtype
    pos, inv = batch.loss_positions()
    assert isinstance(pos, type(batch.input_ids))
    pos, inv = to_numpy(pos), to_numpy(inv)
    mask = to_numpy(batch["loss_mask"]) != 0 if "loss_mask" in batch else before != 0
    assert inv.shape == mask.shape
    assert not inv[~mask].any()
    ids = to_numpy(batch.input_ids).reshape(-1)
    np.testing.assert_array_equal(ids[pos][inv[mask]], before[mask])
    if mask.any():
        np.testing.assert_array_equal(np.unique(inv[mask]), np.arange(len(pos)))
        assert (np.diff(pos) > 0).all()
    else:
        assert pos.tolist() == [0][: ids.size]


def test_a_changed_mask_is_read_and_checked():
    batch = built([(2, 3), (0, 2)], "jagged", masks=[[1, 1, 1], [1, 1]])
    assert batch.loss_positions().pos.tolist() == [1, 2, 3, 5]
    batch.loss_mask[:2] = 0
    assert batch.loss_positions().pos.tolist() == [3, 5]
    batch.loss_mask[:] = 1
    with pytest.raises(ValueError, match="loss_mask is not 0 on the first token of a sequence"):
        batch.loss_positions()


def test_a_mask_is_changed_once_by_an_augmented_assignment(array_type):
    """Python changes the output and then assigns it, which is an error for any other value."""
    batch = make_batch([[1], [2]], [[3, 4], [5]], loss_mask=[[1, 1], [1]], array_type=array_type)
    batch.loss_mask *= 4
    batch["loss_mask"] /= 2
    assert batch.loss_mask.tolist() == [[2, 2], [0, 2]]
    with pytest.raises(AttributeError, match="loss_mask cannot be assigned"):
        batch.loss_mask = batch.loss_mask * 2
    for key, value in ("loss_mask", batch.loss_mask * 2), ("new", None), (slice(1), 0):
        with pytest.raises(TypeError, match="a Batch is read-only"):
            batch[key] = value


@NEEDS_TORCH
@pytest.mark.parametrize("layout", ["left", "right", "jagged", "packed"])
@pytest.mark.parametrize("labels", ["aligned", "shifted"])
def test_labels_follow_a_changed_mask(layout, labels):
    """In the batch, in views as in copies, and on their way to a model."""
    prompts, responses = [[1, 2], [], [3]], [[4, 5, 6], [7, 8], [9]]
    options = {"pad_token_id": 0, "layout": LAYOUTS[layout], "labels": labels}

    def labels_of(batch):
        inputs = batch.model_inputs("dense" if layout in ("jagged", "packed") else None)
        return [inputs[key].tolist() for key in ("labels", "shift_labels") if key in inputs]

    before, after = [[1, 1, 0], [0, 1], [1]], [[0, 1, 1], [0, 0], [1]]
    key = "labels" if labels == "aligned" else "shift_labels"
    batch = fc.build_batch(prompts, responses, loss_mask=before, **options)
    earlier = batch[key]
    for token, weight in ((4, 0), (6, 0.5), (8, 0)):
        batch.loss_mask[batch.targets == token] = weight
    expected = fc.build_batch(prompts, responses, loss_mask=after, **options)
    assert earlier.tolist() != batch[key].tolist() == expected[key].tolist()
    assert labels_of(batch) == labels_of(expected)
    restored = pickle.loads(pickle.dumps(batch))
    for copy in (restored, batch.select(rows=[0, 1, 2])):
        assert copy[key].tolist() == expected[key].tolist()
        copy.loss_mask[copy.targets == 4] = 1  # after all
        assert 4 in copy[key]
        assert 4 in copy.select(rows=[1, 0])[key]
        copy.loss_mask[copy.targets == 4] = 0
    # Labels, whenever they were read, and the mask of another token.
    batch[key][batch[key] == 5] = -100
    earlier[earlier == 6] = -100
    for found in (batch, pickle.loads(pickle.dumps(batch))):
        found.loss_mask[found.targets == 9] = 0
        (found, *_) = labels_of(found)
        assert not np.isin(found, [4, 5, 6, 7, 8, 9]).any()


def test_labels_of_parts_and_of_padded_rows_follow_a_changed_mask():
    rows, options = [[[1, 2], [3]], [[6, 7], [8]]], {"pad_token_id": 0, "labels": "shifted"}

    def changed(layout):
        batch = fc.build_batch(*rows, **options, layout=layout)
        batch.loss_mask[batch.targets == 6] = 0
        return batch

    packed, jagged = changed(fc.Packed(8, multiple_of=4)), changed("jagged")
    parts = [packed.cp_split(2, rank).shift_labels for rank in (0, 1)]
    for found in (packed.cp_merge(parts), jagged.pad_on_device("left").shift_labels):
        assert sorted(found[found != -100].tolist()) == [7, 8]
    part = packed.cp_split(2, 0)
    part.loss_mask[:] = 0
    with pytest.raises(ValueError, match="change it in the whole batch, before cp_split"):
        part["shift_labels"]


@pytest.mark.parametrize("layout", ["left", "two_segment", "packed"])
def test_a_weight_that_was_written_to_padding_too(layout):
    batch = built([(2, 3), (1, 2)], layout, masks=[[1, 1, 1], [1, 1]])
    batch.loss_mask[:] *= 0.5
    assert len(batch.loss_positions().pos) == 5
    batch.loss_mask[-1] = 0.5
    assert_refused(batch, fc.plan_step([5, 3]))


@pytest.mark.parametrize("layout", ["left", "jagged"])
@pytest.mark.parametrize("pad_rows", ["copy_first", "synthetic"])
def test_a_weight_that_was_written_to_padding_rows_too(layout, pad_rows, array_type):
    """Labels leave them out; whatever else reads the mask refuses it."""
    lens = [(1, 2), (2, 1), (1, 1)]
    plan = fc.plan_step([3, 3, 2], dp_size=2, pad_rows=pad_rows)
    options = {"labels": "aligned", "array_type": array_type}
    batch = built(lens, layout, shard=plan.shard(0, 1), **options)
    assert batch.is_padding == [False, True]
    before = to_numpy(batch.labels).tolist()
    batch.loss_mask[:] = 0.5
    assert to_numpy(batch.labels).tolist() == before
    assert_refused(batch, None)


def assert_refused(batch, plan):
    """Everything that reads which tokens train agrees."""
    match = r"loss_mask is not 0 on padding.*loss_mask\[row\] \*= 0.5"
    calls = [batch.loss_positions, lambda: batch.metrics]
    if plan is not None:
        calls.append(lambda: batch.loss_normalizers(plan))
        calls.append(lambda: batch.normalize(batch.loss_mask, plan))
    for call in calls:
        with pytest.raises(ValueError, match=match):
            call()
    assert "trains_padding" in [finding.kind for finding in batch.check()]


def test_padding_rows_and_merged_turns():
    prompts, responses = [[1], [1, 2, 3], [9]], [[2], [4, 5], [8]]
    merge = fc.merge_turns(prompts, responses, trajectory_ids=["a", "a", "b"])
    plan = fc.plan_step(merge, uids=["a", "a", "b"], dp_size=2, pad_rows="copy_first")
    for layout in "left", "jagged":
        batch = make_batch(prompts, responses, merge=merge, layout=layout)
        pos, _ = batch.loss_positions()
        assert batch.input_ids.reshape(-1)[pos].tolist() == [1, 3, 4, 9]
        mine = make_batch(
            prompts, responses, merge=merge, layout=layout, shard=plan.shard(mini_batch=0, rank=0)
        )
        again = [mine.input_ids.reshape(-1)[p] for p in mine.loss_positions().pos]
        assert again == [1, 3, 4][: len(again)]


@NEEDS_TORCH
def test_half_precision_masks():
    batch = built([(2, 2)], "packed", "torch", [[1, 0.5]], dtypes={"loss_mask": "bfloat16"})
    assert batch.loss_positions().pos.tolist() == [1, 2]
