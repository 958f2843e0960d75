"""Lengths given by others: any number of rows without values."""

from functools import partial

import numpy as np
import pytest
from conftest import NEEDS_TORCH
from interrupting import NEEDS_TIMERS, time_after_signal
from small_input import good_input

import fastcollate as fc

HUGE = 2**40

EMPTY = {"prompts": [[1]], "responses": [[]], "pad_token_id": 0, "array_type": "numpy"}


@pytest.mark.parametrize("layout", ["left", "two_segment", "right", "jagged", "packed"])
@pytest.mark.parametrize("align", ["response", "sequence"])
@pytest.mark.parametrize("dtype", ["float32", "bool", "int64"])
def test_no_tokens_of_many_values(layout, align, dtype):
    field = fc.Field([np.zeros((0, HUGE), np.uint8)], align=align, dtype=dtype)
    if layout == "packed":
        layout = fc.Packed.single_row()
    inputs = {**EMPTY, "prompts": [[]], "fields": {"x": field}, "layout": layout}
    batch = fc.build_batch(**inputs)
    assert batch.x.shape[-2:] == (0, HUGE)


def test_no_routes_of_many_layers():
    routes = fc.RoutedExperts([np.zeros((0, HUGE, 2), np.uint8)])
    batch = fc.build_batch(**{**EMPTY, "prompts": [[]]}, fields={"x": routes})
    assert batch.x.shape == (1, 0, HUGE, 2)


def test_no_tokens_of_many_values_in_a_builder():
    builder = fc.BatchBuilder(pad_token_id=0, array_type="numpy", layout="right")
    builder.add([1], [], fields={"x": fc.Field(np.zeros((0, HUGE), np.float32))})
    assert builder.finish().x.shape == (1, 0, HUGE)


def test_padding_of_many_values():
    field = fc.Field([np.zeros((0, HUGE), np.float32)])
    with pytest.raises(MemoryError, match=r"cannot take \d{13} bytes"):
        fc.build_batch(**EMPTY, layout=fc.Left(pad_response_to=2), fields={"x": field})


@pytest.mark.parametrize("shape", [(HUGE, 0), (HUGE, 0, 3), (HUGE,)])
@pytest.mark.parametrize("library", ["numpy", pytest.param("torch", marks=NEEDS_TORCH)])
def test_more_values_than_rows(shape, library):
    values = np.zeros(shape, np.int8) if 0 in shape else np.broadcast_to(np.int8(0), shape)
    if library == "torch":
        import torch

        zeros = torch.zeros(1, dtype=torch.int8)
        values = zeros.new_zeros(shape) if 0 in shape else zeros.expand(shape)
    with pytest.raises(ValueError, match=f"x has {HUGE:,} rows, but prompts has 3"):
        fc.build_batch(**good_input(), fields={"x": fc.PerRow(values)})


def lists_of_nothing(rows):
    pa = pytest.importorskip("pyarrow")
    kind = pa.list_(pa.int64(), 0)
    return pa.Array.from_buffers(kind, rows, [None], children=[pa.array([], pa.int64())])


@pytest.mark.parametrize("rows", [HUGE, 2**62, 2**63 - 1])
@pytest.mark.parametrize("name", ["prompts", "responses", "rewards", "loss_mask", "logprobs"])
def test_many_rows_without_items(name, rows):
    with pytest.raises(MemoryError, match=f"no memory for a plan of {rows} rows"):
        fc.build_batch(**{**good_input(), name: lists_of_nothing(rows)})


@pytest.mark.parametrize("rows", [HUGE, 2**62])
def test_ragged_of_many_rows_without_items(rows):
    with pytest.raises(MemoryError, match=f"no memory for a plan of {rows} rows"):
        fc.ragged(lists_of_nothing(rows))


def test_few_rows_without_items():
    assert fc.ragged(lists_of_nothing(3)).to_list() == [[], [], []]
    column = lists_of_nothing(3)
    batch = fc.build_batch(column, [[1]] * 3, pad_token_id=0, array_type="numpy")
    assert batch.input_ids.tolist() == [[1], [1], [1]]


def test_dimensions_that_are_too_many_to_count():
    pa = pytest.importorskip("pyarrow")
    kind, items = pa.int64(), pa.array([], pa.int64())
    for _ in range(3):
        kind = pa.list_(kind, 2**31 - 1)
        items = pa.Array.from_buffers(kind, 0, [None], children=[items])
    rows = pa.ListArray.from_arrays(pa.array([0], pa.int32()), items)
    with pytest.raises(ValueError, match=r"^x could not be read: .*too large"):
        fc.ragged(rows)


@NEEDS_TIMERS
def test_sequences_without_end_can_be_interrupted():
    class Endless:
        def __len__(self):
            return 2**60

        def __getitem__(self, index):
            return index

    build = partial(fc.build_batch, **{**good_input(), "prompts": Endless()})
    assert time_after_signal(build, 0.1) < 10
