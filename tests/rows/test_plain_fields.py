"""Plain values in ``fields``: what the lengths of their rows say, and errors where they do not."""

import re
from collections import deque

import numpy as np
import pytest
from conftest import NEEDS_TORCH
from hypothesis import given
from hypothesis import strategies as st
from strategies import rollouts
from worker_blocks import through_blocks

import fastcollate as fc
from fastcollate.testing.reference import assert_same

PROMPTS, RESPONSES = [[1, 2], [3]], [[4], [5, 6, 7]]
OF_RESPONSES, OF_SEQUENCES = [[0.5], [1, 2, 3]], [[1, 2, 3], [1, 2, 3, 4]]
WHOLE = {"sequences": [[1, 2, 4], [3, 5, 6, 7]], "prompt_lens": [2, 1]}


def build(values, prompts=PROMPTS, responses=RESPONSES, array_type="numpy", **options):
    tokens = {} if "sequences" in options else {"prompts": prompts, "responses": responses}
    options = {**tokens, **options, "pad_token_id": 0, "array_type": array_type}
    return fc.build_batch(**options, fields={"x": values})


@given(data=rollouts(max_rows=4, max_long_len=20), of_sequence=st.booleans())
def test_rows_of_unambiguous_lengths_are_a_field(data, of_sequence):
    values = [
        [0.5] * (len(response) + len(prompt) * of_sequence)
        for prompt, response in zip(data.prompts, data.responses, strict=True)
    ]
    options = {"prompts": data.prompts, "responses": data.responses}
    if any(data.prompts):
        align = "sequence" if of_sequence else "response"
        assert_same(build(values, **options), build(fc.Field(values, align=align), **options))
    else:
        with pytest.raises(TypeError, match="as long as responses and as sequences"):
            build(values, **options)


def kinds():
    torch = pytest.importorskip("torch")
    pa = pytest.importorskip("pyarrow")
    yield from (list, tuple, deque, fc.ragged, pa.array)
    yield lambda rows: pa.chunked_array([pa.array(rows[:1]), pa.array(rows[1:])])
    yield lambda rows: [np.array(row) for row in rows]
    yield lambda rows: [torch.tensor(row) for row in rows]
    yield lambda rows: torch.nested.nested_tensor(
        [torch.tensor(row, dtype=torch.float32) for row in rows], layout=torch.jagged
    )
    yield lambda rows: pytest.importorskip("pandas").Series(rows, index=[5, 7])


@NEEDS_TORCH
def test_kinds_of_rows():
    for convert in kinds():
        for rows, align in ((OF_RESPONSES, "response"), (OF_SEQUENCES, "sequence")):
            rows = [[float(value) for value in row] for row in rows]
            expected = build(fc.Field(rows, align=align))
            assert_same(build(convert(rows)), expected)
            assert_same(build(convert(rows), **WHOLE), expected)
            tokens = {"prompts": fc.ragged(PROMPTS), "responses": fc.ragged(RESPONSES)}
            assert_same(build(convert(rows), **tokens), expected)


def test_a_table_of_values():
    table = np.array([[1.0, 2], [3, 4]])
    assert build(table, responses=[[4, 5], [6, 7]])["x"].tolist() == table.tolist()


def test_turns_that_are_merged():
    tokens = {"prompts": [[1], [1, 2, 3]], "responses": [[2], [4, 5]], "trajectory_ids": [0, 0]}
    assert build([[5], [6, 7]], **tokens, merge="exact")["x"].tolist() == [[5, 0, 6, 7]]


def test_builders_and_blocks():
    expected = build(OF_RESPONSES)
    builder = fc.BatchBuilder(pad_token_id=0, array_type="numpy")
    for prompt, response, row in zip(PROMPTS, RESPONSES, OF_RESPONSES, strict=True):
        builder.add(prompt, response, fields={"x": row})
    assert_same(builder.finish(), expected)
    builder.add(sequence=[1, 2, 4], prompt_len=2, fields={"x": [1, 2, 3]})
    # It has no prompt, so it is as the row before it.
    builder.add([], [5, 6], fields={"x": np.array([1.0, 2])})
    assert builder.finish()["x"].tolist() == [[1, 2, 3], [0, 1, 2]]
    columns = {"prompts": PROMPTS, "responses": RESPONSES, "fields": {"x": OF_RESPONSES}}
    shard = fc.plan_step(expected, dp_size=1).shard(0, 0)
    found, _ = through_blocks(
        [columns], lambda _: shard, {"pad_token_id": 0, "array_type": "numpy"}
    )
    assert found["x"].tolist() == expected["x"].tolist()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            [1.0, 2.0],
            "fields['x'] is [1.0, 2.0]: one number per row; pass "
            'fc.Field([1.0, 2.0], spread="trained") or fc.PerRow([1.0, 2.0])',
        ),
        (np.array([1, 2]), 'fc.Field(array([1, 2]), spread="trained") or fc.PerRow(array([1, 2]))'),
        (list(range(100)), 'fc.Field([0, 1, 2, 3, 4, 5, ...], spread="trained") or fc.PerRow('),
        (["a", "b"], "fields['x'] is ['a', 'b']: not a row of numbers each; pass fc.PerRow(['a'"),
        ([{}, {}], "fields['x'] is [{}, {}]: not a row of numbers each; pass fc.PerRow([{}, {}])"),
        (
            [None, [1, 2, 3]],
            "pass fc.Field([None, [1, 2, 3]], default=...) or fc.PerRow([None, [1, 2, 3]], dtype=",
        ),
        (
            [[1], [2]],
            "fields['x'][1] has 1 item, but its response has 3, and 4 with the prompt; pass "
            'fc.Field([[1], [2]]), fc.Field([[1], [2]], align="sequence") or fc.PerRow([[1], [2]])',
        ),
        ([[1], [1, 2, 3, 4]], "fields['x'][1] has 4 items, but its response has 3, and 4 with the"),
        ([[1]], "fields['x'] is [[1]]: 1 row, but the batch has 2 rows; pass fc.Field([[1]]), "),
        ([[[1]], [[1], [2], [3]]], "several values per token; pass fc.Field([[[1]], [[1], [2], ["),
        (np.ones((2, 3, 1)), "several values per token; pass fc.Field("),
        (None, "fields['x'] is None; pass fc.Field, fc.PerRow, fc.RoutedExperts, fc.Captured or"),
        ("ab", "fields['x'] is 'ab'; pass fc.Field, fc.PerRow, fc.RoutedExperts, fc.Captured or"),
        ({"a": 1}, "fields['x'] is {'a': 1}; pass fc.Field, fc.PerRow, fc.RoutedExperts,"),
    ],
)
def test_values_that_may_be_several_fields(values, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        build(values)


@pytest.mark.parametrize(("count", "name"), [(2, "response"), (3, "sequence")])
def test_one_row_that_is_not_as_long_as_most(count, name):
    values = [[0.5] * count] * 2 + [[0.5] * 4]
    advice = rf"x'\]\[2\] has 4 items, .* pass {count}: most rows have one per {name} token"
    with pytest.raises(ValueError, match=advice):
        fc.build_batch([[1]] * 3, [[2, 3]] * 3, fields={"x": values}, pad_token_id=0)


def test_without_prompts_both_are_possible():
    advice = 'fc.Field([[0.5], [1, 2, 3]]) or fc.Field([[0.5], [1, 2, 3]], align="sequence")'
    for tokens in ({"prompts": [[], []]}, {"sequences": RESPONSES}):
        with pytest.raises(TypeError, match=re.escape(advice)):
            build(OF_RESPONSES, **tokens)
    builder = fc.BatchBuilder(pad_token_id=0)
    with pytest.raises(TypeError, match=r"of row 0 is \[0.5\]: as long as responses and as seq"):
        builder.add([], [1], fields={"x": [0.5]})
    assert len(builder) == 0


def test_beside_tokens_that_cannot_be_read():
    for tokens in ({"prompts": 5}, {"prompts": [[1]]}, {**WHOLE, "prompt_lens": [1]}):
        with pytest.raises(TypeError, match="beside tokens whose lengths cannot be read or do not"):
            build(OF_RESPONSES, **tokens)
