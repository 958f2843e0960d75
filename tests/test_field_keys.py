"""Keys of fields: any that no other output of the same batch has."""

import numpy as np
import pytest
from conftest import NEEDS_TORCH
from hypothesis import given
from hypothesis import strategies as st
from test_blocks import through_blocks

import fastcollate as fc
from fastcollate.testing.reference import assert_same, build_batch_loops

LAYOUTS = ["left", "two_segment", "right", "jagged", "packed"]
KEYS = [
    *("input_ids", "attention_mask", "response_mask", "position_ids", "sequence_ids", "labels"),
    *("loss_mask", "rewards", "logprobs", "router_padding_mask", "offsets", "response_offsets"),
    *("cu_seqlens", "max_seqlen", "row_cu_seqlens", "cu_seqlens_padded", "max_seqlen_padded"),
]
ROWS = {"prompts": [[1, 2], [3]], "responses": [[4], [5, 6, 7]], "pad_token_id": 0}
MASKS = [[0, 0, 1], [0, 1, 1, 0]]


def mask():
    return fc.Field(MASKS, align="sequence", dtype="bool")


@given(
    key=st.sampled_from(KEYS),
    layout=st.sampled_from(LAYOUTS),
    optional=st.sets(st.sampled_from(["loss_mask", "rewards", "logprobs"])),
    options=st.sampled_from([{}, {"labels": "aligned"}, {"position_ids": "one"}]),
)
def test_a_key_is_free_where_no_other_output_has_it(key, layout, optional, options):
    arguments = {**ROWS, **{name: [[1.0], [1, 1, 1]] for name in optional}, **options}
    how = {"layout": fc.Packed.single_row() if layout == "packed" else layout}
    taken = fc.build_batch(**arguments, **how, array_type="numpy")
    arguments["fields"] = {key: mask()}
    if key in taken:
        both = rf"'{key}': .*(the batch's own|the argument {key}).* and fields\['{key}'\]; give"
        with pytest.raises(ValueError, match=both):
            fc.build_batch(**arguments, **how, array_type="numpy")
    else:
        batch = fc.build_batch(**arguments, **how, array_type="numpy")
        assert_same(batch, build_batch_loops(**arguments, layout=layout))


def test_what_comes_with_a_field():
    images = fc.PerRow([np.ones(1)] * 2, concat=True)
    routes = fc.RoutedExperts([np.zeros((1, 1, 1), int)] * 2)
    cases = [
        ({"images_offsets": fc.PerRow([1, 2]), "images": images}, "the offsets of fields.'images'"),
        ({"routes": routes, "router_padding_mask": mask()}, "the mask of fields.'routes'"),
    ]
    for fields, message in cases:
        with pytest.raises(ValueError, match=message):
            fc.build_batch(**ROWS, fields=fields)


def test_a_mask_along_sequences_trains_nothing():
    """Neither labels nor losses read it."""
    arguments = {**ROWS, "labels": "aligned", "array_type": "numpy"}
    batch = fc.build_batch(**arguments, fields={"loss_mask": mask()})
    bare = fc.build_batch(**arguments)
    assert_same({"labels": batch.labels}, {"labels": bare.labels})
    plan = fc.plan_step(batch, dp_size=1)
    assert_same(batch.loss_normalizers(plan)._asdict(), bare.loss_normalizers(plan)._asdict())
    advantages = np.arange(6, dtype=np.float32).reshape(2, 3)
    both = (one.normalize(advantages, plan) for one in (batch, bare))
    assert_same(*({"x": x} for x in both))


def test_fields_named_as_parts_of_other_layouts_are_not_read_as_such():
    fields = {
        "response_offsets": fc.Field([[5], [6, 7, 8]]),
        "sequence_ids": fc.PerRow([1, 0]),
        "loss_mask": fc.Field([[0], [0, 0, 0]]),
    }
    batch = fc.build_batch(**ROWS, fields=fields)
    plan = fc.plan_step(batch, dp_size=1)
    assert batch.loss_normalizers(plan).tokens.tolist() == [4]


def test_to_other_layouts_and_shards():
    batch = fc.build_batch(**ROWS, fields={"loss_mask": mask()}, array_type="numpy")
    right = batch.to_layout("right")
    assert right.loss_mask.tolist() == [[0, 0, 1, 0], [0, 1, 1, 0]]
    assert_same(right.to_layout("left"), batch)
    shard = fc.plan_step(batch, dp_size=2).shard(0, 0)
    calls = [
        lambda: batch.to_layout(fc.Packed(capacity=9)),
        lambda: batch.select(shard),
        lambda: fc.build_batch(**ROWS, fields={"loss_mask": mask()}, shard=shard),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"merged or a shard's, and fields\['loss_mask'\]"):
            call()


@NEEDS_TORCH
def test_on_a_device():
    fields = {"attention_mask": mask(), "loss_mask": mask()}
    jagged = fc.build_batch(**ROWS, fields=fields, layout="jagged")
    with pytest.raises(ValueError, match=r"the batch's own and fields.'attention_mask'"):
        fc.memory.pad_on_device(jagged, "left")
    del fields["attention_mask"]
    jagged = fc.build_batch(**ROWS, fields=fields, layout="jagged")
    padded = fc.memory.pad_on_device(jagged, "left", dtypes={"loss_mask": "uint8"})
    fields = {"loss_mask": fc.Field(MASKS, align="sequence", dtype="uint8")}
    assert_same(padded, fc.build_batch(**ROWS, fields=fields))


def test_builders_collators_and_blocks():
    expected = fc.build_batch(**ROWS, fields={"loss_mask": mask()}, array_type="numpy")
    builder = fc.BatchBuilder(pad_token_id=0, array_type="numpy")
    samples = []
    for prompt, response, row in zip(ROWS["prompts"], ROWS["responses"], MASKS, strict=True):
        field = fc.Field(row, align="sequence", dtype="bool")
        builder.add(prompt, response, fields={"loss_mask": field})
        samples.append({"prompt": prompt, "response": response, "loss_mask": row})
    assert_same(builder.finish(), expected)
    fields = {"loss_mask": fc.Field("loss_mask", align="sequence", dtype="bool")}
    assert_same(fc.Collator(pad_token_id=0, fields=fields, array_type="numpy")(samples), expected)
    columns = {key: ROWS[key] for key in ("prompts", "responses")}
    columns["fields"] = {"rewards": fc.Field(MASKS, align="sequence", dtype="int16")}
    options = {"pad_token_id": 0, "array_type": "numpy"}
    shard = fc.plan_step([3, 4], dp_size=1).shard(0, 0)
    found, _ = through_blocks([columns], lambda _: shard, options)
    assert_same(found, fc.build_batch(**columns, **options, shard=shard))
