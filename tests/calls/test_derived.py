"""Position ids and labels, which are made of the rows and not handed in."""

import numpy as np
import pytest
from making import make_batch
from small_input import build, refuses

import fastcollate as fc

LAYOUTS = ["left", "two_segment", "right", "jagged"]
PROMPTS, RESPONSES, LOSS_MASKS = [[1, 2], [3], []], [[4], [5, 6], []], [[1], [0, 0.5], []]


N = -100


@pytest.mark.parametrize("layout", [*LAYOUTS, "packed"])
def test_nothing_predicts_the_first_token_of_a_sequence(layout, array_type):
    """Neither padding in front of it nor the sequence before it predicts it."""
    batch = make_batch(
        [[], [8], []],
        [[5, 6, 7], [9], []],
        loss_mask=[[1, 1, 1], [0.5], []],
        labels="aligned",
        layout=fc.Packed.single_row() if layout == "packed" else layout,
        array_type=array_type,
    )
    ids, labels = (np.asarray(batch[key]).reshape(-1).tolist() for key in ("input_ids", "labels"))
    assert [label for label in labels if label != N] == [6, 7, 9]
    assert all(label in (N, token) for token, label in zip(ids, labels, strict=True))
    weights = np.asarray(batch.loss_mask)
    assert weights[weights != 0].tolist() == [1, 1, 0.5]
    assert batch.metrics["batch/tokens_without_predecessor"] == 1
    plan = fc.plan_step([3, 2, 0])
    assert batch.loss_normalizers(plan).tokens.tolist() == [2.5]


def test_labels_are_ids_whatever_the_ids_are(array_type):
    """Also where a token is the pad token, or looks like the label that is ignored."""
    batch = make_batch(
        [[0]], [[0, -100, 7]], labels="aligned", layout=fc.Left(pad_to=5), array_type=array_type
    )
    assert batch.labels.tolist() == [[N, N, 0, -100, 7]]


@pytest.mark.parametrize("value", ["two", "", 0, 1, []])
@pytest.mark.parametrize("name", ["position_ids", "labels"])
def test_what_cannot_be_derived(name, value):
    with pytest.raises((TypeError, ValueError), match=rf"{name} is .*; pass"):
        build(**{name: value})


def test_ids_beyond_compact_labels():
    changes = {"labels": "aligned", "responses": [[2**31], [8, 9], [10, 11]]}
    message = r"responses\[0\]\[0\] is 2147483648"
    refuses({**changes, "dtypes": "compact"}, ValueError, message)
    with pytest.raises(ValueError, match="int32"):
        build(**changes, dtypes={"labels": "int32"})


@pytest.mark.parametrize("layout", ["left", "jagged"])
def test_weights_that_their_dtype_rounds_to_zero_do_not_train(layout):
    options = {"labels": "aligned", "dtypes": {"loss_mask": "float16"}, "array_type": "numpy"}
    masks = [[1e-9, 1, 6e-8]]
    batch = fc.build_batch([[1]], [[2, 3, 4]], pad_token_id=0, loss_mask=masks, **options)
    assert batch.loss_mask[0].astype(bool).tolist() == [False, True, True]
    assert batch.labels.tolist() == [[-100, -100, 3, 4]]
    assert batch.to_layout(layout).labels.ravel().tolist() == [-100, -100, 3, 4]
