"""Dtypes of outputs, against the reference converted by NumPy or torch."""

import numpy as np
import pytest
from conftest import NEEDS_TORCH
from hypothesis import given
from hypothesis import strategies as st
from making import make_batch
from raising import raises
from small_input import build, with_item
from strategies import as_inputs, rollouts

import fastcollate as fc
from fastcollate.testing.reference import assert_same, build_batch_loops

COMPACT = {"input_ids": np.int32, "attention_mask": np.bool_, "response_mask": np.bool_}
INT32 = np.iinfo(np.int32)


def fits(inputs):
    ids = [token for rows in (inputs.prompts, inputs.responses) for row in rows for token in row]
    return all(INT32.min <= token <= INT32.max for token in ids)


@given(data=st.data())
def test_compact_is_the_reference_converted(data):
    inputs = data.draw(rollouts())
    kinds = data.draw(as_inputs(inputs))
    options = {"pad_token_id": data.draw(st.integers(-2, 2)), "array_type": "numpy"}
    if not fits(inputs):
        with pytest.raises(ValueError, match=r"(prompts|responses)\[\d+\]\[\d+\] is .* int32"):
            fc.build_batch(**kinds, **options, dtypes="compact")
        return
    batch = fc.build_batch(**kinds, **options, dtypes="compact")
    expected = build_batch_loops(**inputs._asdict(), pad_token_id=options["pad_token_id"])
    for key, dtype in COMPACT.items():
        expected[key] = expected[key].astype(dtype)
    assert_same(batch, expected)


@pytest.mark.parametrize("labels", [None, "shifted"])
@pytest.mark.parametrize(
    "layout", ["left", "two_segment", "right", "jagged", fc.Packed.single_row(), fc.Tree(9)]
)
def test_compact_in_every_layout(layout, labels, array_type):
    """Labels stay as they are: torch's losses take no int32."""
    if labels and layout == fc.Tree(9):
        return
    options = {"layout": layout, "labels": labels, "position_ids": "repeat_last"}
    batch = build(**options, array_type=array_type)
    compact = build(**options, array_type=array_type, dtypes="compact")
    narrow = COMPACT | dict.fromkeys(["position_ids", "sequence_ids", "targets"], np.int32)
    expected = dict(batch._data)
    for key in narrow.keys() & expected.keys():
        expected[key] = np.asarray(expected[key]).astype(narrow[key])
    assert_same(compact, expected)


@NEEDS_TORCH
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@given(data=st.data())
def test_half_precision_rounds_as_torch_does(name, data):
    import torch

    inputs = data.draw(rollouts())
    if inputs.loss_mask is not None:  # a weight that would be infinite is an error
        masks = [[min(weight, 2**15) for weight in row] for row in inputs.loss_mask]
        inputs = inputs._replace(loss_mask=masks)
    kinds = data.draw(as_inputs(inputs))
    keys = ("loss_mask", "rewards", "logprobs")
    given = [key for key in keys if getattr(inputs, key) is not None]
    dtypes = dict.fromkeys(given, getattr(torch, name))
    batch = fc.build_batch(**kinds, pad_token_id=0, dtypes=dtypes)
    reference = build_batch_loops(**inputs._asdict(), pad_token_id=0)
    for key in given:
        expected = torch.from_numpy(reference[key]).to(getattr(torch, name))
        assert batch[key].dtype == expected.dtype
        # Equal as float32, which holds both; NaN is like any NaN.
        assert_same({key: batch[key].float()}, {key: expected.float()})
    for key in set(batch) - set(given):
        assert_same({key: batch[key]}, {key: reference[key]})


@NEEDS_TORCH
def test_every_half_value_of_a_list():
    import torch

    values = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    numbers = values.float().tolist()
    row = list(range(len(numbers)))
    batch = fc.build_batch(
        [[1]], [row], pad_token_id=0, logprobs=[numbers], dtypes={"logprobs": "bfloat16"}
    )
    assert torch.equal(batch.logprobs[0].float().nan_to_num(7), values.float().nan_to_num(7))


@pytest.mark.parametrize("dtype", ["int32", np.int32, np.dtype("int32")])
def test_a_mapping_changes_what_it_names(dtype, array_type):
    changed = dict.fromkeys(["attention_mask", "input_ids", "labels", "position_ids"], dtype)
    options = {"labels": "aligned", "position_ids": "zero"}
    batch = build(array_type=array_type, dtypes=changed, **options)
    names = {key: str(value.dtype).removeprefix("torch.") for key, value in batch.items()}
    fields = dict.fromkeys(["loss_mask", "rewards", "logprobs", "advantages"], "float32")
    changed = dict.fromkeys(changed, "int32")
    assert names == {**changed, **fields, "response_mask": "int64"}


@pytest.mark.parametrize("item", [2**31, np.uint32(2**31), np.int64(-(2**31) - 1)])
def test_token_ids_over_int32(item):
    with pytest.raises(ValueError, match=rf"prompts\[1\]\[0\] is {item}, .* fit int32"):
        build(dtypes="compact", **with_item("prompts", item))
    rows = [np.array([1]), np.array([item])]
    with pytest.raises(ValueError, match=rf"prompts\[1\]\[0\] is {item}, .* fit int32"):
        make_batch(rows, [[1], [1]], dtypes="compact")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtypes": "small"}, "dtypes is 'small'; pass 'default'"),
        ({"dtypes": 3}, "TypeError: dtypes is 3; pass 'default'"),
        ({"dtypes": {"tokens": "int32"}}, "dtypes has the key 'tokens'"),
        ({"dtypes": {"input_ids": "bool"}}, "dtype of input_ids is bool; pass one of int64, int32"),
        ({"dtypes": {"rewards": "int64"}}, "dtype of rewards is int64; pass one of float32"),
        ({"dtypes": {"rewards": "bfloat16"}}, "bfloat16, which NumPy does not.*;"),
        (
            {"dtypes": {"rewards": 3}},
            "TypeError: dtype of rewards is 3; pass a name such as 'float32'",
        ),
        ({"dtypes": "compact", "pad_token_id": 2**31}, "pad_token_id .* int32"),
    ],
)
def test_dtypes_that_cannot_be(options, message):
    with raises(message):
        build(**options)
