"""Options of fields at arguments with outputs of their own: dtypes, and values of missing rows."""

import dataclasses

import numpy as np
import pytest
from conftest import share
from hypothesis import given
from hypothesis import strategies as st
from making import make_batch
from ways import by_builder

import fastcollate as fc
from fastcollate.testing.reference import assert_same, build_batch_loops

NAMES = ("logprobs", "rewards", "loss_mask", "advantages")
DTYPES = {name: [None, "float32", "float64", "float16"] for name in NAMES}
DTYPES["loss_mask"] += ["bool", "int32"]
TOKENS = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@st.composite
def rows(draw):
    """Draw a column with missing rows, and the same without: per token, or one number each."""
    name = draw(st.sampled_from(NAMES))
    prompts, responses = (draw(st.lists(TOKENS, min_size=3, max_size=3)) for _ in range(2))
    default = draw(st.sampled_from([0, 1, 1.0]))
    align = draw(st.sampled_from(["response", "sequence"]))
    is_number = name in ("rewards", "advantages") and draw(st.booleans())
    whole, given_rows = [], []
    for prompt, response in zip(prompts, responses, strict=True):
        count = len(response) + (len(prompt) if align == "sequence" else 0)
        is_missing = draw(st.booleans())
        values = draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
        values = [default] * count if is_missing else values
        if is_number:
            values, align = values[0], "response"
        whole.append(values)
        given_rows.append(None if is_missing else values)
    if is_number and all(row is None for row in given_rows):
        given_rows[0] = whole[0]
    if not is_number and name in ("rewards", "advantages") and all(r is None for r in given_rows):
        given_rows[0] = whole[0]  # else it could be either
    field = fc.Field(given_rows, align, default=default, dtype=draw(st.sampled_from(DTYPES[name])))
    return name, prompts, responses, field, whole


def expected_of(name, prompts, responses, field, whole):
    is_number = not isinstance(whole[0], list)
    cut = [
        row if is_number else row[len(row) - len(response) :]
        for row, response in zip(whole, responses, strict=True)
    ]
    batch = build_batch_loops(prompts, responses, pad_token_id=0, **{name: cut})
    batch[name] = batch[name].astype(field.dtype or "float32")
    return batch


@share(2)
@given(drawn=rows())
def test_batches_are_those_of_whole_rows(drawn, array_type):
    name, prompts, responses, field, _ = drawn
    options = {"pad_token_id": 0, "array_type": array_type}
    expected = expected_of(*drawn)
    batch = fc.build_batch(prompts, responses, **options, **{name: field})
    assert_same(batch, expected)
    samples = [
        {"prompt": prompt, "response": response} | ({} if row is None else {"values": row})
        for prompt, response, row in zip(prompts, responses, field.rows, strict=True)
    ]
    if any("values" in sample for sample in samples):
        of_samples = fc.Field("values", field.align, default=field.default, dtype=field.dtype)
        collate = fc.Collator(**options, fields={name: of_samples}, labels="aligned")
        batch = fc.build_batch(prompts, responses, **options, labels="aligned", **{name: field})
        assert_same(collate(samples)._data, batch._data)


@share(2)
@given(drawn=rows())
def test_builders_take_rows_without_values(drawn, array_type):
    name, prompts, responses, field, whole = drawn
    if name in ("rewards", "advantages") and field.rows[0] is None:
        field = dataclasses.replace(field, rows=[whole[0], *field.rows[1:]])
    columns = {"prompts": prompts, "responses": responses, name: field}
    batch = by_builder(columns, pad_token_id=0, array_type=array_type)
    assert_same(batch, expected_of(name, prompts, responses, field, whole))


ROWS = {"prompts": [[1], [2]], "responses": [[3, 4], [5]]}


@pytest.mark.parametrize(
    ("name", "field", "message"),
    [
        ("loss_mask", fc.Field([None, [1]], default=-1), "default of loss_mask is -1; pass 0 or"),
        (
            "loss_mask",
            fc.Field([None, [1]], default=0.5, dtype="int32"),
            "which does not fit int32",
        ),
        ("logprobs", fc.Field([None, [1]], default=0, fill=1), "pass align, dtype and default al"),
        ("rewards", fc.Field([1, 2], spread="last"), r"the numbers themselves: rewards=\[...\]"),
        ("logprobs", fc.Field([[1, 1], [1]], dtype="complex"), "dtype of logprobs is"),
    ],
)
def test_options_that_cannot_be(name, field, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make_batch(**ROWS, **{name: field})


def test_rows_of_a_builder_have_the_same_options():
    builder = fc.BatchBuilder(pad_token_id=0)
    builder.add([1], [2], logprobs=fc.Field([0.5], default=0))
    for other in ([0.5], fc.Field([0.5], default=1)):
        with pytest.raises(ValueError, match=r"row 1 has logprobs as Field\(.* but row 0 as Field"):
            builder.add([1], [2], logprobs=other)


@pytest.mark.parametrize("name", ["rewards", "advantages"])
def test_a_builders_first_row_of_none_counts_as_a_number(name):
    builder = fc.BatchBuilder(pad_token_id=0)
    builder.add([1], [2, 3], **{name: fc.Field(None, default=0)})
    message = (
        rf"{name}\[1\] is one per response token, but {name}\[0\] is one number or None; pass the "
        "same kind for all rows, in place of None in row 0, too"
    )
    with pytest.raises(TypeError, match=message):
        builder.add([1], [2], **{name: fc.Field([0.5], default=0)})
    builder.clear()
    for row in ([0, 0], [0.5, 1], None):
        builder.add([1], [2, 3], **{name: fc.Field(row, default=0)})
    assert builder.finish()[name].tolist() == [[0, 0], [0.5, 1], [0, 0]]


def test_a_key_that_samples_lack_needs_a_default():
    samples = [{"prompt": [1], "response": [2]}, {"prompt": [1], "response": [2], "teacher": [0.5]}]
    with pytest.raises(ValueError, match=r"has no 'teacher', .*fc.Field\('teacher', default=...\)"):
        fc.Collator(pad_token_id=0, fields={"teacher": fc.Field("teacher")})(samples)
    collate = fc.Collator(
        pad_token_id=0, array_type="numpy", fields={"teacher": fc.Field("teacher", default=-1)}
    )
    assert collate(samples).teacher.tolist() == [[-1.0], [0.5]]
    with pytest.raises(ValueError, match="reads 'teacher', which samples do not have"):
        collate(samples[:1])


def test_turns_without_a_mask():
    turns = {"prompts": [[1], [1, 2, 3]], "responses": [[2], [4]], "trajectory_ids": ["a", "a"]}
    plans = [
        fc.merge_turns(**turns, loss_mask=mask)
        for mask in (fc.Field([None, [1]], default=0), [[0], [1]])
    ]
    assert np.array_equal(plans[0].sources, plans[1].sources)
    batch = make_batch(
        **turns,
        merge=plans[0],
        loss_mask=fc.Field([None, [1]], default=0),
        rewards=fc.Field([None, 1.5], default=0),
    )
    assert batch.loss_mask.tolist() == [[0, 0, 1]]
    assert batch.rewards.tolist() == [[0, 0, 1.5]]
