"""pad_on_device: the bytes that the host would have written, by operations of torch."""

import pickle

import numpy as np
import pytest
from any_layout import layouts
from hypothesis import given
from hypothesis import strategies as st
from pinned_stand_in import fake_allocator
from strategies import extras, rollouts, trajectories

import fastcollate as fc
from fastcollate.device import device_padding
from fastcollate.testing.reference import assert_same, build_batch_loops

torch = pytest.importorskip("torch")

PADDED = ["left", "two_segment", "right"]
INPUTS = {
    "prompts": [[1, 2], [3]],
    "responses": [[4], [5, 6, 7]],
    "rewards": [0.5, 1.0],
    "pad_token_id": 9,
}


@given(drawn=st.data())
def test_outputs_are_those_of_the_host(drawn):
    layout = drawn.draw(st.sampled_from(PADDED))
    data = drawn.draw(rollouts())
    more = drawn.draw(extras(data, "torch"))
    inputs = {**data._asdict(), "pad_token_id": drawn.draw(st.sampled_from([0, 7, -1])), **more}
    options = {"layout": drawn.draw(layouts(layout, data))}
    expected = build_batch_loops(**inputs, **options)
    jagged = fc.build_batch(**inputs, layout="jagged")
    batch = jagged.pad_on_device(**options)
    assert_same(batch, expected)
    on_host = fc.build_batch(**inputs, **options)
    assert batch.plan == on_host.plan
    assert batch.uids == on_host.uids
    assert_same(batch.to_layout("jagged"), jagged)


@given(drawn=st.data())
def test_compact_batches_are_widened(drawn):
    layout = drawn.draw(st.sampled_from([*PADDED, "jagged to left", "packed"]))
    data = drawn.draw(rollouts())
    more = drawn.draw(extras(data, "torch"))
    small = [[token % 1000 for token in row] for row in data.prompts]
    short = [[token % 1000 for token in row] for row in data.responses]
    inputs = {**data._asdict(), **more, "prompts": small, "responses": short, "pad_token_id": 5}
    if layout == "packed":
        options = {"layout": fc.Packed(capacity=5000)}
    else:
        options = {"layout": layout.removeprefix("jagged to ")}
    compact = {**options, "dtypes": "compact"}
    if layout == "jagged to left":
        compact["layout"] = "jagged"
    batch = fc.build_batch(**inputs, **compact)
    wide = batch.pad_on_device(None if layout == "packed" else options["layout"])
    assert_same(wide, fc.build_batch(**inputs, **options))
    if layout != "jagged to left":
        assert_same(wide.pad_on_device(dtypes="compact"), batch)


@given(drawn=st.data())
def test_merged_turns(drawn):
    """Observations between responses hold the values of gaps, not of padding."""
    data = drawn.draw(trajectories())
    turns = data.turns._asdict()
    lengths = list(map(len, turns["responses"]))
    fields = {"x": fc.Field([[5] * length for length in lengths], fill=-1, gap_fill=-2)}
    inputs = {**turns, "trajectory_ids": data.trajectory_ids, "fields": fields}
    inputs["merge"] = fc.planning.Merge("exact", rewards="last")
    jagged = fc.build_batch(**inputs, pad_token_id=3, labels="aligned", layout="jagged")
    for layout in PADDED:
        expected = fc.build_batch(**inputs, pad_token_id=3, labels="aligned", layout=layout)
        batch = jagged.pad_on_device(layout)
        assert_same(batch, expected)
        assert batch.plan == expected.plan
        assert batch.merge_plan is jagged.merge_plan


def test_rows_of_a_step():
    """Widths are those of the step, and padding rows stay padding."""
    batch = fc.build_batch(**INPUTS)
    plan = fc.plan_step(batch, dp_size=3, pad_rows="synthetic")
    for rank in range(3):
        shard = plan.shard(0, rank)
        jagged = fc.build_batch(**INPUTS, shard=shard, layout="jagged")
        again = jagged.pad_on_device(fc.Left(pad_to=4, pad_response_to=3))
        assert_same(again, fc.build_batch(**INPUTS, shard=shard))
        assert again.is_padding == jagged.is_padding


def test_dtypes_by_key():
    batch = fc.build_batch(**INPUTS, layout="jagged", dtypes="compact")
    again = batch.pad_on_device("left", dtypes={"rewards": "bfloat16", "input_ids": "int32"})
    expected = fc.build_batch(**INPUTS, dtypes={"rewards": "bfloat16", "input_ids": "int32"})
    assert_same(again, expected)
    assert_same(again.to_layout("right"), expected.to_layout("right"))


def test_what_was_moved_is_kept():
    batch = fc.build_batch(**INPUTS, layout="jagged").to("meta")
    again = batch.pad_on_device("left")
    assert again.input_ids.device.type == "meta"
    assert again.input_ids.shape == (2, 4)
    assert again.metrics["handover/bytes"] == batch.metrics["handover/bytes"] > 0


def test_where_rows_begin_goes_through_pinned_memory(monkeypatch):
    """Or the host would wait for what the device is doing."""
    monkeypatch.setattr(device_padding, "has_bus", lambda device: True)
    with fake_allocator() as allocator:
        batch = fc.build_batch(**INPUTS, layout="jagged").pad_on_device("left")
    assert_same(batch, fc.build_batch(**INPUTS))
    assert allocator.sizes == [5 * 2 * 8]


def test_the_way_back_from_the_device():
    batch = fc.build_batch(**INPUTS, layout="jagged").pad_on_device("right")
    rows = batch.gather(batch.rewards, align="response")
    assert [row.tolist() for row in rows] == [[0.5], [0, 0, 1]]


@pytest.mark.parametrize(
    ("options", "arguments", "pattern"),
    [
        ({"layout": "jagged"}, {}, "layout is None; pass 'left'"),
        ({"layout": "jagged"}, {"layout": "jagged"}, "layout is 'jagged'"),
        ({"layout": "jagged"}, {"layout": fc.Packed(8)}, r"layout is Packed\(capacity=8\)"),
        ({"layout": "jagged"}, {"layout": "up"}, "layout is 'up'"),
        ({"layout": "jagged"}, {"layout": fc.Left(pad_to=3)}, "pad_to"),
        (
            {"layout": "left"},
            {"layout": "right"},
            "has layout='left' and only jagged batches are padded; call to_layout",
        ),
        ({"layout": "left"}, {"layout": fc.Left(pad_to=9)}, "has layout='left'"),
        ({"layout": fc.Packed(8)}, {"layout": fc.Packed(8)}, "has layout='packed'"),
        ({"layout": "left"}, {"dtypes": "wide"}, "dtypes is 'wide'"),
        ({"layout": "left"}, {"dtypes": {"input_ids": "float32"}}, "input_ids"),
        ({"layout": "left"}, {"dtypes": {"labels": "int64"}}, "dtypes has the key 'labels'"),
    ],
)
def test_bad_arguments(options, arguments, pattern):
    with pytest.raises(ValueError, match=pattern):
        fc.build_batch(**INPUTS, **options).pad_on_device(**arguments)


def test_bad_batches():
    jagged = {"layout": "jagged"}
    with pytest.raises(TypeError, match="array_type='torch'"):
        fc.build_batch(**INPUTS, **jagged, array_type="numpy").pad_on_device("left")
    with pytest.raises(fc.planning.MissingPlanError):
        fc.Batch(fc.build_batch(**INPUTS, **jagged)).pad_on_device("left")


def test_a_batch_of_another_process():
    batch = pickle.loads(pickle.dumps(fc.build_batch(**INPUTS, layout="jagged")))
    assert_same(batch.pad_on_device("left"), fc.build_batch(**INPUTS))


@pytest.mark.gpu
@pytest.mark.parametrize("layout", PADDED)
def test_on_the_gpu(layout):
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 50, (2, 100))
    prompts, responses = ([rng.integers(0, 99, n) for n in of] for of in lengths)
    masks = [rng.integers(0, 2, n) for n in lengths[1]]
    inputs = {"prompts": prompts, "responses": responses, "loss_mask": masks, "pad_token_id": 0}
    inputs |= {"position_ids": "repeat_last", "labels": "shifted"}
    jagged = fc.build_batch(**inputs, layout="jagged", dtypes="compact", pool="pinned")
    batch = jagged.to("cuda", non_blocking=True).pad_on_device(layout)
    assert batch.input_ids.is_cuda
    assert_same(batch.to("cpu"), fc.build_batch(**inputs, layout=layout))
