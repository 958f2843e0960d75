"""Keys of fields: any but the outputs that a layout always has, and other outputs of the batch."""

import numpy as np
import pytest
from conftest import NEEDS_TORCH
from hypothesis import given
from hypothesis import strategies as st
from making import make_batch
from worker_blocks import through_blocks

import fastcollate as fc
from fastcollate.testing.reference import assert_same, build_batch_loops

LAYOUTS = ["left", "two_segment", "right", "jagged", "packed"]
KEYS = ["position_ids", "rewards", "logprobs", "advantages", "router_padding_mask"]
ROWS = {"prompts": [[1, 2], [3]], "responses": [[4], [5, 6, 7]], "pad_token_id": 0}
MASKS = [[0, 0, 1], [0, 1, 1, 0]]


def mask():
    return fc.Field(MASKS, align="sequence", dtype="bool")


@given(
    key=st.sampled_from(KEYS),
    layout=st.sampled_from(LAYOUTS),
    optional=st.sets(st.sampled_from(["loss_mask", "rewards", "logprobs", "advantages"])),
    options=st.sampled_from([{}, {"labels": "aligned"}, {"position_ids": "one"}]),
)
def test_a_key_is_free_where_no_other_output_has_it(key, layout, optional, options):
    arguments = {**ROWS, **{name: [[1.0], [1, 1, 1]] for name in optional}, **options}
    how = {"layout": fc.Packed.single_row() if layout == "packed" else layout}
    taken = fc.build_batch(**arguments, **how, array_type="numpy")
    arguments["fields"] = {key: mask()}
    makes_own = key == "position_ids" and "position_ids" not in options
    if key in taken and not makes_own:
        both = rf"'{key}': .*(the batch's own|the argument {key}).* and fields\['{key}'\]; give"
        with pytest.raises(ValueError, match=both):
            fc.build_batch(**arguments, **how, array_type="numpy")
    else:
        batch = fc.build_batch(**arguments, **how, array_type="numpy")
        assert_same(batch, build_batch_loops(**arguments, layout=layout))


@pytest.mark.parametrize(
    "key",
    [
        *("completion_mask", "tool_mask", "assistant_masks", "assistant_mask", "response_masks"),
        *("mask", "train_mask", "response_loss_mask", "target_weights"),
    ],
)
def test_a_mask_that_is_a_field_alone_would_train_all_tokens(key):
    message = f"fields has '{key}', but there is no loss_mask, so all response tokens train; pass"
    row = {"prompt": [1], "response": [2, 3], "fields": {key: [1, 0]}}
    columns = {"prompts": [[1]], "responses": [[2, 3]], "fields": {key: [[1, 0]]}}
    builder = fc.BatchBuilder(pad_token_id=0, array_type="numpy")
    with pytest.raises(ValueError, match=message):
        fc.build_batch(**columns, pad_token_id=0)
    with pytest.raises(ValueError, match=message):
        builder.add(**row)
    collate = fc.Collator(pad_token_id=0, fields={key: fc.Field(key)})
    with pytest.raises(ValueError, match=message):
        collate([{"prompt": [1], "response": [2, 3], key: [1, 0]}])
    batch = make_batch(**columns, loss_mask=[[1, 0]])
    builder.add(**row, loss_mask=[1, 0])
    for one in (batch, builder.finish()):
        assert one[key].tolist() == one.loss_mask.tolist() == [[1, 0]]
    per_row = {key: fc.PerRow([1])}
    make_batch([[1]], [[2, 3]], fields=per_row)


def test_what_comes_with_a_field():
    images = fc.PerRow([np.ones(1)] * 2, concat=True)
    routes = fc.RoutedExperts([np.zeros((0, 1, 1), int)] * 2)
    cases = [
        ({"images_offsets": fc.PerRow([1, 2]), "images": images}, "the offsets of fields.'images'"),
        ({"routes": routes, "router_padding_mask": mask()}, "the mask of fields.'routes'"),
    ]
    for fields, message in cases:
        with pytest.raises(ValueError, match=message):
            fc.build_batch(**ROWS, fields=fields)


def test_a_field_does_not_decide_which_tokens_train():
    """In a batch it is refused; a collator, which has no other place for it, makes it the mask."""
    fields = {"loss_mask": mask()}
    with pytest.raises(ValueError, match=r"fields has 'loss_mask'.*pass loss_mask=fc.Field"):
        fc.build_batch(**ROWS, fields=fields)
    builder = fc.BatchBuilder(pad_token_id=0)
    with pytest.raises(ValueError, match="fields has 'loss_mask'"):
        builder.add([1], [2], fields={"loss_mask": fc.Field([1, 1], align="sequence")})
    ids = [p + r for p, r in zip(ROWS["prompts"], ROWS["responses"], strict=True)]
    samples = [
        {"input_ids": row, "prompt_len": len(prompt), "loss_mask": one}
        for row, prompt, one in zip(ids, ROWS["prompts"], MASKS, strict=True)
    ]
    fields = {"loss_mask": fc.Field("loss_mask", align="sequence")}
    options = {"pad_token_id": 0, "labels": "aligned", "array_type": "numpy"}
    found = fc.Collator(**options, fields=fields)(samples)
    responses = [one[-len(r) :] for one, r in zip(MASKS, ROWS["responses"], strict=True)]
    assert_same(found, fc.build_batch(**{**ROWS, **options, "loss_mask": responses}))
    marked = [{"input_ids": row, "labels": row, "loss_mask": row} for row in ids]
    with pytest.raises(ValueError, match="'loss_mask' and 'labels', which both mark"):
        fc.Collator(**options, fields=fields)(marked)


@pytest.mark.parametrize("layout", [*LAYOUTS, "tree"])
def test_what_a_layout_always_writes_is_free_in_none(layout):
    binned = {"packed": fc.Packed(8, multiple_of=2), "tree": fc.Tree(8)}
    batch = fc.build_batch(**ROWS, layout=binned.get(layout, layout))
    for key in {*batch} - {"loss_mask", "position_ids"}:
        with pytest.raises(ValueError, match=f"fields has '{key}', but batch.{key} is an att"):
            fc.build_batch(**ROWS, fields={key: mask()})


@NEEDS_TORCH
def test_on_a_device():
    jagged = fc.build_batch(**ROWS, fields={"own": mask()}, layout="jagged")
    padded = jagged.pad_on_device("left", dtypes={"own": "uint8"})
    fields = {"own": fc.Field(MASKS, align="sequence", dtype="uint8")}
    assert_same(padded, fc.build_batch(**ROWS, fields=fields))


RESERVED = (
    *("targets", "subtree_end", "offsets", "plan"),
    *("select", "metrics", "uids", "prompt_lens", "show"),
)


def calls_with(key, field):
    """Return the calls that take a field by its key."""
    builder = fc.BatchBuilder(pad_token_id=0)
    batch = fc.build_batch(**ROWS)
    shard = fc.plan_step(batch, dp_size=1).shard(0, 0)
    columns = {**{name: ROWS[name] for name in ("prompts", "responses")}, "fields": {key: field}}
    one = type(field)(field.rows[0] if isinstance(field, fc.Field) else 1)
    options = {"pad_token_id": 0}
    return [
        lambda: fc.build_batch(**ROWS, fields={key: field}),
        lambda: builder.add([1], [4], fields={key: one}),
        lambda: fc.Collator(pad_token_id=0, fields={key: type(field)("x")}),
        lambda: through_blocks([columns], lambda _: shard, options),
    ]


@pytest.mark.parametrize("key", [*RESERVED, "gather", "model_inputs"])
def test_names_of_a_batch_are_refused(key):
    """As attributes they are not the field: `batch.targets` would be the ids."""
    message = rf"fields has '{key}', but batch.{key} is an attribute .* another key, such as 'my_"
    for field in (fc.Field([[4.0], [5, 6, 7]]), fc.PerRow([1, 2])):
        for call in calls_with(key, field):
            with pytest.raises(ValueError, match=message):
                call()


def test_all_names_of_a_batch_are_refused_except_those_of_a_mapping():
    public = [name for name in dir(fc.Batch) if not name.startswith("_")]
    allowed = {"get", "items", "keys", "values"}
    assert allowed < set(public)
    for key in public:
        fields = {key: fc.Field([[1.5], [2.5, 3.5, 4.5]])}
        if key in allowed:
            batch = fc.build_batch(**ROWS, fields=fields)
            assert batch[key].sum() == 12
            assert callable(getattr(batch, key))
        else:
            with pytest.raises(ValueError, match=f"fields has '{key}'"):
                fc.build_batch(**ROWS, fields=fields)


@pytest.mark.parametrize("key", ["labels", "shift_labels"])
def test_labels_are_no_field(key):
    message = rf"fields has '{key}', but labels are .*labels='aligned' or 'shifted'.*fill=-100"
    for field in (fc.Field(MASKS, align="sequence"), fc.PerRow([1, 2])):
        for call in calls_with(key, field):
            with pytest.raises(ValueError, match=message):
                call()
    fields = {"teacher_labels": fc.Field(MASKS, align="sequence", fill=-100, dtype="int64")}
    batch = fc.build_batch(**ROWS, labels="aligned", fields=fields, array_type="numpy")
    is_padding = batch.attention_mask == 0
    assert set(batch["teacher_labels"][is_padding]) == {-100}


def test_suggested_fields_have_a_key_that_is_accepted():
    sample = {"prompt": [1], "response": [2, 3], "targets": [4, 5], "shift_labels": [6, 7, 8]}
    collate = fc.Collator(pad_token_id=0, ignore=["shift_labels"])
    with pytest.raises(ValueError, match=r"fields={'my_targets': fc.Field\('targets'\)}"):
        collate([sample])
    fields = {"my_targets": fc.Field("targets")}
    collate = fc.Collator(pad_token_id=0, fields=fields, ignore=["shift_labels"])
    assert collate([sample])["my_targets"].tolist() == [[4, 5]]
    with pytest.raises(ValueError, match=r"'shift_labels', which is not known.*; pass ignore="):
        fc.Collator(pad_token_id=0, fields=fields)([sample])
