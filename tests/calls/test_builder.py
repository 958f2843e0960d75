"""BatchBuilder: rows that arrive one by one give the batch that they give at once."""

import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from any_layout import layouts
from conftest import share
from hypothesis import given
from hypothesis import strategies as st
from making import make_batch
from raising import raises
from refusing import same_or_refused
from strategies import as_inputs, rollouts
from ways import by_builder, filled

import fastcollate as fc
from fastcollate.testing.reference import assert_same, build_batch_loops

LAYOUTS = ["left", "two_segment", "right", "jagged"]


@pytest.mark.parametrize("layout", LAYOUTS)
@share(4)
@given(drawn=st.data())
def test_finish_gives_what_build_batch_gives(layout, drawn, array_type):
    data = drawn.draw(rollouts())
    options = {
        "pad_token_id": drawn.draw(st.sampled_from([0, 7, -1, 2**63 - 1])),
        "layout": layout,
        "position_ids": drawn.draw(st.sampled_from([None, "repeat_last"])),
        "labels": drawn.draw(st.sampled_from([None, "shifted"])),
    }
    options["layout"] = drawn.draw(layouts(layout, data))
    inputs = drawn.draw(as_inputs(data))
    # A column in one piece is not what a builder gets; its rows as lists are.
    rows = {
        name: column if isinstance(column, (list, tuple)) else getattr(data, name)
        for name, column in inputs.items()
    }
    batch = same_or_refused(
        lambda: by_builder(rows, **options, array_type=array_type),
        lambda: build_batch_loops(**data._asdict(), **options),
    )
    if batch is None:
        return
    assert batch.prompt_lens.tolist() == list(map(len, data.prompts))
    assert batch.response_lens.tolist() == list(map(len, data.responses))


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("item", [2**31, -(2**31) - 1, 2**63 - 1, -(2**63)])
def test_ids_beyond_int32_in_any_row(first, item, array_type):
    """Rows before the first large id stay as they are, at any place of it."""
    rows = [[1, -5], [2**31 - 1], [-(2**31), 3]]
    rows[first] = [item, *rows[first]]
    options = {"pad_token_id": 0}
    builder = filled({"prompts": rows, "responses": rows}, **options, array_type=array_type)
    assert_same(builder.finish(), build_batch_loops(rows, rows, **options))


@pytest.mark.parametrize("array", [np.array([1, 2], np.int32), np.array([1, 2], np.uint8)])
def test_what_was_added_may_change_afterwards(array, array_type):
    """A builder keeps no reference to rows: generation reuses its buffers."""
    row, rewards = [1, 2], np.array([0.5, 1.5])
    builder = fc.BatchBuilder(pad_token_id=0, array_type=array_type)
    uid = np.array(7)
    builder.add(row, array, rewards=rewards, uid=uid)
    row[0], array[0], rewards[0] = 99, 99, 99
    uid[...] = 99
    row.clear()
    batch = builder.finish()
    assert batch.uids == [7]
    assert batch.input_ids.tolist() == [[1, 2, 1, 2]]
    assert batch.rewards.tolist() == [[0.5, 1.5]]
    array[0] = 1


def test_lists_are_freed():
    """Lists are freed at once: their numbers take eight times the memory."""
    builder = fc.BatchBuilder(pad_token_id=0, array_type="numpy")
    number = int("1000000000000000")  # no constant: those are never freed without a GIL
    row = [number] * 10
    before = sys.getrefcount(number)
    builder.add(row, [1])
    del row
    gc.collect()
    assert sys.getrefcount(number) == before - 10


GOOD = {"rewards": [1.0, 2.0], "loss_mask": [1, 0], "logprobs": [-1.0, -2.0], "uid": "a"}


def started():
    builder = fc.BatchBuilder(pad_token_id=0, array_type="numpy")
    builder.add([1], [2, 3], **GOOD)
    return builder


NAN = float("nan")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": [1, "x"]}, r"TypeError: prompts\[1\]\[1\] is 'x'"),
        ({"prompt": [1, 2**63]}, r"prompts\[1\]\[1\] is 9223372036854775808"),
        ({"prompt": None}, "TypeError: prompt is None; pass prompt and response, or sequence with"),
        ({"prompt": [1.5]}, r"TypeError: prompts\[1\]\[0\] is 1.5"),
        ({"response": [1, None]}, r"TypeError: responses\[1\]\[1\] is None"),
        ({"response": np.zeros(2)}, r"TypeError: responses\[1\]"),
        ({"rewards": [1.0]}, r"rewards\[1\] has 1 item.* responses\[1\] has 2"),
        ({"rewards": [1.0, "x"]}, r"TypeError: rewards\[1\]\[1\] is 'x'"),
        ({"rewards": 1.0}, r"TypeError: rewards\[1\]"),
        ({"rewards": None}, r"rewards\[1\]|row 1.*rewards"),
        ({"loss_mask": [1, NAN]}, r"loss_mask\[1\]\[1\] is NaN"),
        ({"loss_mask": [1] * 3}, r"loss_mask\[1\] has 3 items"),
        ({"loss_mask": None}, r"loss_mask\[1\]|row 1.*loss_mask"),
        ({"logprobs": []}, r"logprobs\[1\] has 0 items, but responses\[1\] has 2"),
        ({"logprobs": "ab"}, r"TypeError: logprobs\[1\]"),
        ({"uid": None}, r"uids\[1\]|row 1.*uid"),
        ({"trajectory_id": "t"}, "trajectory_id"),
    ],
)
def test_a_bad_row_leaves_the_builder_as_it_was(changes, message):
    builder = started()
    row = {"prompt": [4], "response": [5, 6], **GOOD}
    with raises(message) as caught:
        builder.add(**{**row, **changes})
    assert type(caught.value) in (TypeError, ValueError)
    builder.add(**{**row, "uid": "b"})
    batch = builder.finish()
    assert {key: value.tolist() for key, value in batch.items()} == {
        "input_ids": [[1, 2, 3], [4, 5, 6]],
        "attention_mask": [[1, 1, 1]] * 2,
        "response_mask": [[1, 1]] * 2,
        "loss_mask": [[1, 0]] * 2,
        "rewards": [[1, 2]] * 2,
        "logprobs": [[-1, -2]] * 2,
    }
    assert batch.uids == ["a", "b"]


def test_a_field_that_only_the_first_row_lacks():
    builder = fc.BatchBuilder(pad_token_id=0, array_type="numpy")
    builder.add([1], [2])
    with pytest.raises(ValueError, match="rewards"):
        builder.add([1], [2], rewards=[1.0])
    keys = ["input_ids", "attention_mask", "response_mask", "loss_mask"]
    assert list(builder.finish()) == keys


@pytest.mark.parametrize(
    ("options", "exception"),
    [
        ({}, TypeError),
        ({"pad_token_id": None}, TypeError),
        ({"pad_token_id": 0, "layout": "middle"}, ValueError),
        ({"pad_token_id": 0, "array_type": "jax"}, ValueError),
        ({"pad_token_id": 0, "layout": "jagged", "pad_to": 3}, TypeError),
        ({"pad_token_id": 0, "labels": "both"}, ValueError),
        ({"pad_token_id": 0, "prompts": [[1]]}, TypeError),
        ({"pad_token_id": 0, "rewards": [[1]]}, TypeError),
        ({"pad_token_id": 0, "anything": 1}, TypeError),
    ],
)
def test_options_are_checked_when_the_builder_is_made(options, exception):
    with pytest.raises(exception):
        fc.BatchBuilder(**options)


def test_rows_may_come_from_many_threads(array_type):
    """Rows of different threads may come in any order, but each of them is whole."""
    builder = fc.BatchBuilder(pad_token_id=0, array_type=array_type)
    workers, rows_each = 8, 200
    start = threading.Barrier(workers)

    def work(worker):
        start.wait()
        for row in range(rows_each):
            number = worker * rows_each + row
            length = number % 5 + 1
            builder.add(
                [number] * length,
                [number] * (length + 1),
                rewards=[number] * (length + 1),
                loss_mask=np.ones(length + 1),
                uid=number,
            )

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
    batch = builder.finish()
    assert sorted(batch.uids) == list(range(workers * rows_each))
    # In the order in which they came, the batch is what build_batch makes of them.
    lens = [number % 5 + 1 for number in batch.uids]
    prompts = [[number] * length for number, length in zip(batch.uids, lens, strict=True)]
    responses = [[*row, row[0]] for row in prompts]
    expected = build_batch_loops(
        prompts,
        responses,
        pad_token_id=0,
        rewards=responses,
        loss_mask=[[1] * len(row) for row in responses],
    )
    assert_same(batch, expected)
    for worker in range(workers):
        own = [uid for uid in batch.uids if uid // rows_each == worker]
        assert own == sorted(own)


def test_many_rows(array_type):
    rows = [[n] * (n % 4 + 1) for n in range(10_000)]
    data = {"prompts": rows, "responses": rows, "logprobs": rows}
    batch = by_builder(data, pad_token_id=0, array_type=array_type)
    expected = make_batch(**data, array_type=array_type)
    assert_same(batch, expected)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (fc.Field([1.0]), r"x\[1\] has 1 item, but responses\[1\] has 2"),
        (fc.Field([1.0] * 2, align="sequence"), r"x\[1\] has 2 items.* 3 tokens"),
        (fc.Field([1.0, "y"]), r"x\[1\]\[1\] is 'y'"),
        (fc.Field([1, 2], dtype="int8"), "dtype"),
        (fc.Field([1, 2], dtype="int64"), "row 1 has x as.*int64"),
        (fc.PerRow(None), r"x\[1\] is None"),
        (fc.PerRow(3), "row 1 has x as.*PerRow"),
        ([1.0], r"fields\['x'\] of row 1 has 1 item, but its response has 2, and 3 with"),
        (1.0, r'row 1 is 1.0: one number; pass fc.Field\(1.0, spread="trained"\) or fc.PerRow\('),
        (None, r"fields\['x'\] of row 1 is None; pass fc.Field, fc.PerRow"),
    ],
)
def test_extra_fields_that_cannot_be(field, message):
    builder = fc.BatchBuilder(pad_token_id=0, array_type="numpy")
    builder.add([1], [2], fields={"x": fc.Field([0.5])})
    with pytest.raises((TypeError, ValueError), match=message):
        builder.add([1], [2, 3], fields={"x": field})
    builder.add([1], [2, 3], fields={"x": fc.Field([1.5, 2.5])})
    assert builder.finish()["x"].tolist() == [[0, 0.5], [1.5, 2.5]]


class Claims:
    """A row that claims a number of items."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count


ROUTES = fc.RoutedExperts(np.zeros((1, 1, 2), np.uint8))


@pytest.mark.parametrize("field", [ROUTES, fc.Field([[1]], ragged=True)])
def test_tokens_without_a_length_beside_fields_that_count_them(field):
    builder = fc.BatchBuilder(pad_token_id=0)
    for name in ("prompt", "response", "sequence"):
        for wrong in (3, Claims(2**64), Claims(-1)):
            row = {name: wrong} if name == "sequence" else {"prompt": [1], "response": [2]}
            with pytest.raises((TypeError, ValueError), match=rf"^{name}(s\[0\])? "):
                builder.add(**row | {name: wrong}, fields={"x": field})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (5, "fields is 5; pass a mapping"),
        ([1], r"fields is \[1\]; pass a mapping"),
        ({1: fc.PerRow(1)}, "fields has the key 1"),
        (
            {"input_ids": fc.PerRow(1)},
            "fields has 'input_ids', but batch.input_ids is an attribute",
        ),
        (
            {"x": fc.PerRow([1], concat=True), "x_offsets": fc.PerRow(1)},
            "the offsets of fields.'x'. and fields.'x_offsets'",
        ),
    ],
)
def test_fields_that_are_none(fields, message):
    """They are refused before a row is kept with which no batch can be built."""
    builder = fc.BatchBuilder(pad_token_id=0, array_type="numpy")
    with pytest.raises((TypeError, ValueError), match=message):
        builder.add([1], [2], fields=fields)
    assert len(builder) == 0


def test_a_failed_finish_keeps_the_rows(array_type):
    builder = fc.BatchBuilder(
        pad_token_id=0, array_type=array_type, layout=fc.Left(pad_response_to=1)
    )
    builder.add([1], [2], uid="a")
    builder.add([1], [2, 3], uid="b")
    with pytest.raises(ValueError, match="pad_response_to is 1"):
        builder.finish()
    assert len(builder) == 2
    assert repr(builder) == "BatchBuilder of 2 rows, 5 tokens"


def test_a_builder_is_empty_after_its_batch(array_type):
    builder = fc.BatchBuilder(pad_token_id=0, array_type=array_type)
    builder.add([1], [2], rewards=1.0, uid=np.int64(3), fields={"x": fc.PerRow(1)})
    assert builder.finish().uids == [3]
    with pytest.raises(ValueError, match="the batch is empty"):
        builder.finish()
    builder.add([1, 2], [3], uid="a")
    builder.clear()
    builder.add([4], [5], trajectory_id=np.str_("b"))
    batch = builder.finish()
    assert batch.input_ids.tolist() == [[4, 5]]
    assert batch.trajectory_ids == ["b"]
    assert batch.uids is None


def test_routes_that_are_no_array():
    builder = fc.BatchBuilder(pad_token_id=0)
    with pytest.raises(ValueError, match=r"x\[0\] cannot be read"):
        builder.add([1], [2], fields={"x": fc.RoutedExperts([[[1, 2]], [[3]]])})
