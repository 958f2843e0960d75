"""Values of more dimensions than one per token, where a token has one number: always refused."""

import re
import warnings

import numpy as np
import pytest
from small_input import FIELDS, OF_SKYRL, ROWS, TOKENS, good_input, refuses

import fastcollate as fc
from fastcollate.blocks.storing import store

LENGTHS = {"prompts": [2, 1, 3], **{key: [1, 2, 2] for key in ["responses", *FIELDS]}}
"""Tokens of the rows of the good input."""


def rows_of(name, k, first=0):
    """Rows of shape (tokens, k), each as long as that of the good input."""
    lengths = LENGTHS[name]
    dtype = np.int64 if name in TOKENS else np.float32
    values = (first + np.arange(sum(lengths) * k)).reshape(sum(lengths), k).astype(dtype)
    return np.split(values, np.cumsum(lengths)[:-1])


def as_tensor_ragged(rows):
    torch = pytest.importorskip("torch")
    return fc.ragged([torch.from_numpy(row) for row in rows])


def as_jagged(rows):
    pytest.importorskip("torch")
    return fc.ragged(rows).to_torch_nested()


def as_strided_nested(rows):
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are a prototype
        return torch.nested.nested_tensor([torch.from_numpy(row) for row in rows])


def as_arrow(rows):
    pa = pytest.importorskip("pyarrow")
    return pa.array(fc.ragged(rows))


def as_arrow_chunks(rows):
    pa = pytest.importorskip("pyarrow")
    return pa.chunked_array([pa.array(fc.ragged(rows[:1])), pa.array(fc.ragged(rows[1:]))])


def as_arrow_list_of_lists(rows):
    pa = pytest.importorskip("pyarrow")
    kind = pa.int64() if rows[0].dtype.kind == "i" else pa.float32()
    return pa.array([row.tolist() for row in rows], pa.list_(pa.list_(kind)))


def as_tensors(rows):
    torch = pytest.importorskip("torch")
    return [torch.from_numpy(row) for row in rows]


def as_device_tensors(rows):
    return [tensor.to("meta") for tensor in as_tensors(rows)]


def as_object_array(rows):
    column = np.empty(len(rows), object)
    for index, row in enumerate(rows):
        column[index] = row
    return column


def as_nested_lists(rows):
    return [row.tolist() for row in rows]


COLUMNS = [fc.ragged, as_tensor_ragged, as_jagged, as_arrow, as_arrow_chunks]
"""Columns in one piece, or few: all that has several numbers a token has them in all rows."""

SEQUENCES = [list, tuple, as_strided_nested, as_tensors, as_device_tensors, as_object_array]
"""Sequences of rows, each of which has a shape of its own."""

NO_NUMBERS = [as_nested_lists, as_arrow_list_of_lists]
"""Inputs that are no rows of numbers."""


@pytest.mark.parametrize("make", [*COLUMNS, *SEQUENCES])
@pytest.mark.parametrize("name", ROWS)
def test_by_every_argument(name, make):
    for k in (1, 3, 0):
        shape = rf"\({LENGTHS[name][0]}, {k}\)"
        message = rf"^{name}\[0\] has shape {shape}; pass one number per token.*fastcollate.Field"
        refuses({name: make(rows_of(name, k))}, ValueError, message)


@pytest.mark.parametrize("make", NO_NUMBERS)
@pytest.mark.parametrize("name", ROWS)
def test_lists_of_lists(name, make):
    refuses({name: make(rows_of(name, 3))}, TypeError, rf"^{name}(\[0\]\[0\])? is ")


@pytest.mark.parametrize("name", ROWS)
def test_dense_arrays(name):
    refuses({name: np.ones((3, 2, 2))}, ValueError, rf"^{name} has shape \(3, 2, 2\)")


@pytest.mark.parametrize("make", SEQUENCES[:2])
@pytest.mark.parametrize("name", ROWS)
def test_the_row_is_named(name, make):
    rows = good_input()[name]
    rows[1] = rows_of(name, 3)[1]
    shape = rf"\({LENGTHS[name][1]}, 3\)"
    refuses({name: make(rows)}, ValueError, rf"^{name}\[1\] has shape {shape}")


@pytest.mark.parametrize("make", [fc.ragged, as_tensor_ragged, as_arrow, as_arrow_chunks])
def test_a_column_without_rows(make):
    rows = make(rows_of("logprobs", 3))[:0]
    refuses({"logprobs": rows}, ValueError, r"^logprobs has shape \(0, 3\)")


IDS = {"trajectory_ids": ["a", "b", "c"]}
KEYS = {**{name: name for name in FIELDS}, "prompts": "prompt", "responses": "response"}


def collated(**inputs):
    return fc.Collator(pad_token_id=0)({KEYS[name]: rows for name, rows in inputs.items()})


def merged(**inputs):
    return fc.build_batch(**inputs, **IDS, is_last_step=[True] * 3, merge="exact", pad_token_id=0)


def by_skyrl(**inputs):
    pytest.importorskip("torch")
    from fastcollate.compat.skyrl import convert_prompts_responses_to_batch_tensors

    inputs = {key: rows for key, rows in inputs.items() if key in OF_SKYRL}
    inputs["loss_masks"] = inputs.pop("loss_mask")
    return convert_prompts_responses_to_batch_tensors(0, **inputs)


@pytest.mark.parametrize("make", [*COLUMNS, *SEQUENCES])
@pytest.mark.parametrize("name", ROWS)
def test_other_calls(name, make):
    inputs = {**{key: good_input()[key] for key in ROWS}, name: make(rows_of(name, 3))}
    calls = {merged: ROWS, store: ROWS, collated: ROWS}
    if name in (*TOKENS, "loss_mask"):
        calls[lambda **inputs: fc.merge_turns(**inputs, **IDS)] = [*TOKENS, "loss_mask"]
    if name in OF_SKYRL and make in COLUMNS:
        calls[by_skyrl] = ROWS
    for call, names in calls.items():
        message = rf"^{name}s?\[0\] has shape \({LENGTHS[name][0]}, 3\)"
        with pytest.raises(ValueError, match=message):
            call(**{key: inputs[key] for key in names})


@pytest.mark.parametrize("key", ["input_ids", "labels", "attention_mask"])
@pytest.mark.parametrize("make", [*COLUMNS, *SEQUENCES])
def test_collators_of_sequences(make, key):
    tokens = good_input()["prompts"]
    columns = {"input_ids": tokens, "labels": tokens, "attention_mask": [[1] * 2, [1], [1] * 3]}
    columns[key] = make(rows_of("prompts", 3))
    with pytest.raises((TypeError, ValueError), match=rf"^{key}\b.*(shape|cannot be read)"):
        fc.Collator(pad_token_id=0)(columns)


@pytest.mark.parametrize("array", [np.asarray, "tensor", np.ndarray.tolist])
@pytest.mark.parametrize("name", ROWS)
def test_rows_of_builders(name, array):
    if array == "tensor":
        array = pytest.importorskip("torch").from_numpy
    singular = {"prompts": "prompt", "responses": "response"}
    row = {singular.get(key, key): good_input()[key][1] for key in ROWS}
    builder = fc.BatchBuilder(pad_token_id=0, array_type="numpy")
    builder.add(**row)
    with pytest.raises((TypeError, ValueError), match=rf"^{re.escape(name)}\[1\]"):
        builder.add(**{**row, singular.get(name, name): array(rows_of(name, 3)[1])})
    assert len(builder) == 1
    assert builder.finish().input_ids.tolist() == [[3, 8, 9]]


@pytest.mark.parametrize("make", [*COLUMNS, *SEQUENCES[:-2]])
def test_fields_take_what_is_refused_there(make):
    rows = rows_of("logprobs", 3)
    batch = fc.build_batch(
        **{**good_input(), "logprobs": None}, fields={"topk": fc.Field(make(rows))}
    )
    assert batch["topk"].tolist() == [
        [[0] * 3, rows[0][0].tolist()],
        rows[1].tolist(),
        rows[2].tolist(),
    ]
