"""Whole sequences in: the same rows as prompts and responses give, byte for byte."""

import numpy as np
import pytest
from any_layout import layouts
from conftest import NEEDS_TORCH, share
from hypothesis import given
from hypothesis import strategies as st
from making import make_batch
from raising import raises
from strategies import as_sequences, merge_options, rollouts, taking_numbers, trajectories
from ways import filled

import fastcollate as fc
from fastcollate.blocks.storing import store
from fastcollate.planning import Merge
from fastcollate.testing.reference import assert_same

LAYOUTS = ["left", "two_segment", "right", "jagged", "packed", "split"]
pytestmark = pytest.mark.filterwarnings("ignore:.*policy=.realign. masked", "ignore:packing split")


def outcome(call):
    """Return the result of a call, or the error that it raises."""
    try:
        return call(), None
    except ValueError as error:
        return None, str(error)


def check_same(call, sequences, parts):
    """Check that a call gives the same for both, or the same error."""
    found, error = outcome(lambda: call(sequences))
    expected, fails = outcome(lambda: call(parts))
    assert error == fails
    if fails is not None:
        return None
    assert_same(found, expected)
    assert found.plan == expected.plan
    assert found.merge_plan == expected.merge_plan
    assert found.prompt_lens.tolist() == expected.prompt_lens.tolist()
    return found


@st.composite
def options_of(draw, layout, data):
    """Draw a layout and other options of a batch."""
    options = {"pad_token_id": 7, "labels": draw(st.sampled_from([None, "aligned"]))}
    if layout in ("packed", "split"):
        shift = draw(st.sampled_from(["none", "next_token"]))
        capacity = 1300 if layout == "packed" else draw(st.integers(2, 9))
        oversize = "error" if layout == "packed" else "split"
        options["layout"] = fc.Packed(capacity, shift=shift, oversize=oversize)
    else:
        options["layout"] = draw(layouts(layout, data))
    return options


def given_parts(data):
    return {name: rows for name, rows in data._asdict().items() if rows is not None}


@pytest.mark.parametrize("layout", LAYOUTS)
@share(4)
@given(drawn=st.data())
def test_rows_of_every_kind(layout, drawn, array_type):
    data = drawn.draw(rollouts())
    options = drawn.draw(options_of(layout, data))
    inputs = drawn.draw(as_sequences(data))
    batch = check_same(
        lambda rows: fc.build_batch(**rows, **options, array_type=array_type),
        inputs,
        given_parts(data),
    )
    if batch is not None and layout not in ("packed", "split"):
        jagged = fc.build_batch(**given_parts(data), pad_token_id=7, layout="jagged")
        again = batch.to_layout("jagged")
        assert all(np.array_equal(again[key], jagged[key]) for key in ("input_ids", "offsets"))


def narrowed(turns):
    """Return turns whose rewards are the same numbers in float32, so that their sums are, too."""
    if turns.rewards is None or isinstance(turns.rewards[0], list):
        return turns
    with np.errstate(over="ignore"):
        return turns._replace(rewards=np.float32(turns.rewards).tolist())


@pytest.mark.parametrize("layout", ["left", "jagged", "packed"])
@share(3)
@given(drawn=st.data())
def test_turns_are_merged(layout, drawn, array_type):
    """By every policy, in the batch and before it, and rows of a shard."""
    data = drawn.draw(trajectories(max_long_len=20))
    data = data._replace(turns=narrowed(data.turns))
    options = taking_numbers(drawn.draw(merge_options()), data.turns.rewards)
    by = {"trajectory_ids": data.trajectory_ids, "is_last_step": data.is_last_step}
    inputs, parts = drawn.draw(as_sequences(data.turns)), given_parts(data.turns)
    inputs.setdefault("prompt_lens", [0] * len(data.turns.prompts))  # turns need them
    plan = fc.merge_turns(parts["prompts"], parts["responses"], **by, **options)
    tokens = {name: inputs[name] for name in ("sequences", "prompt_lens")}
    assert fc.merge_turns(**tokens, **by, **options) == plan
    turns = {"prompts": parts["prompts"], "responses": parts["responses"]}
    share = drawn.draw(st.sampled_from(["all", "prompts"]))
    tree = fc.planning.prefix_tree(**turns, merge=plan, share=share)
    assert fc.planning.prefix_tree(**tokens, merge=plan, share=share) == tree
    build = {"pad_token_id": 7, "layout": fc.Packed(2**13) if layout == "packed" else layout}
    build |= {"merge": plan, "array_type": array_type}
    if layout != "packed" and drawn.draw(st.booleans()):
        lens = plan.prompt_lens, plan.response_lens
        build["shard"] = fc.plan_step(lens, dp_size=2).shard(0, drawn.draw(st.integers(0, 1)))
    check_same(lambda rows: fc.build_batch(**rows, **build), inputs, parts)
    named = {**build, **by, "merge": options["policy"], "shard": None}
    check_same(lambda rows: fc.build_batch(**rows, **named), inputs, parts)


@given(drawn=st.data())
def test_trajectories_that_train_nothing_are_dropped_by_masks_of_sequences(drawn):
    data = drawn.draw(trajectories(max_long_len=20))
    turns = data.turns
    mask = [[drawn.draw(st.sampled_from([0, 0, 0, 1])) for _ in row] for row in turns.responses]
    whole = [[1] * len(p) + row for p, row in zip(turns.prompts, mask, strict=True)]
    options = {"is_last_step": data.is_last_step, "drop_untrainable": True}

    def merged(mask):
        return fc.merge_turns(turns.prompts, turns.responses, loss_mask=mask, **options)

    assert outcome(lambda: merged(fc.Field(whole, align="sequence"))) == outcome(
        lambda: merged(mask)
    )


@share(2)
@given(drawn=st.data())
def test_a_builder_takes_them_one_by_one(drawn, array_type):
    data = drawn.draw(rollouts())
    inputs = drawn.draw(as_sequences(data, as_lists=True))
    options = {"pad_token_id": 7, "array_type": array_type, "labels": "aligned"}
    builder = filled(inputs, **options)
    parts = filled(given_parts(data), **options)
    assert repr(builder) == repr(parts)
    check_same(lambda builder: builder.finish(), builder, parts)


@share(3)
@given(drawn=st.data())
def test_blocks_are_the_same(drawn):
    data = drawn.draw(trajectories(max_long_len=20))
    more = {"is_last_step": data.is_last_step}
    more["merge"] = drawn.draw(st.sampled_from([None, "exact", "branch", "realign"]))
    if data.turns.rewards is not None and not isinstance(data.turns.rewards[0], list):
        more["merge"] = more["merge"] and Merge(more["merge"], rewards="sum")
    inputs = drawn.draw(as_sequences(data.turns, as_lists=True))  # a block keeps dtypes
    inputs.setdefault("prompt_lens", [0] * len(data.turns.prompts))  # turns need them
    table, parts = store(**inputs, **more, part_bytes=64)
    expected, expected_parts = store(**given_parts(data.turns), **more, part_bytes=64)
    for name in ("plan", "loss_weights", "part_offsets"):
        found = getattr(table, name)
        found = found if isinstance(found, dict) else {name: found}
        assert_same(
            found, getattr(expected, name) if name == "plan" else {name: getattr(expected, name)}
        )
    assert table.plain == expected.plain
    assert len(parts) == len(expected_parts)
    for part, other in zip(parts, expected_parts, strict=True):
        assert part.keys() == other.keys()
        for name, column in part.items():
            if isinstance(column, fc.Ragged):
                assert column == other[name]
            else:
                assert_same({name: column}, {name: other[name]})


def test_without_prompt_lens_every_token_may_train(array_type):
    batch = make_batch(
        sequences=[[5, 6, 7], [8, 9]],
        loss_mask=[[1, 1, 1], [1, 1]],
        labels="aligned",
        layout="right",
        array_type=array_type,
    )
    assert batch.response_mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    # Nothing predicts the first token.
    assert batch.loss_mask.tolist() == [[0, 1, 1], [0, 1, 0]]
    assert batch.labels.tolist() == [[-100, 6, 7], [-100, 9, -100]]


@pytest.mark.parametrize("name", ["rewards", "logprobs", "advantages"])
def test_prompts_of_unknown_length_would_train(name):
    """Whoever has values of sampled tokens sampled them after a prompt."""
    options = {"pad_token_id": 0, "array_type": "numpy"}
    row, sample = {"sequence": [1, 2], name: [0.5, 1.0]}, {"input_ids": [1, 2], name: [0.5, 1.0]}
    columns = {"sequences": [[1, 2]], name: [[0.5, 1.0]]}
    builder, collate = fc.BatchBuilder(**options), fc.Collator(**options)
    message = f"^{name} is given for whole sequences without prompt_len"
    for call in (
        lambda: fc.build_batch(**columns, **options),
        lambda: builder.add(**row),
        lambda: collate([sample]),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    for known in ({"prompt_lens": [0]}, {"loss_mask": [[0, 1]]}):
        assert fc.build_batch(**columns, **known, **options)[name].tolist() == [[0.5, 1.0]]
    for known in ({"prompt_len": 0}, {"loss_mask": [0, 1]}):
        builder.add(**row, **known)
        assert builder.finish()[name].tolist() == [[0.5, 1.0]]
    assert collate([{**sample, "loss_mask": [0, 1]}])[name].tolist() == [[0.5, 1.0]]


def test_values_of_prompts_are_not_read(array_type):
    nan = float("nan")
    batch = make_batch(
        sequences=[[5, 6, 7], [8, 9]],
        prompt_lens=[1, 1],
        loss_mask=fc.Field([[nan, 1, 0], np.array([nan, 1])], align="sequence"),
        rewards=fc.Field([["?", 1, 0.5], [None, 1]], align="sequence"),
        labels="aligned",
        layout="right",
        array_type=array_type,
    )
    assert batch.loss_mask.tolist() == [[1, 0], [1, 0]]
    assert batch.rewards.tolist() == [[1, 0.5], [1, 0]]
    assert batch.labels.tolist() == [[-100, 6, -100], [-100, 9, -100]]
    assert batch.to_layout("left").loss_mask.tolist() == [[1, 0], [0, 1]]
    with pytest.raises(ValueError, match=r"loss_mask\[1\]\[2\] is NaN"):
        fc.build_batch(
            sequences=[[5], [6, 7, 8]],
            prompt_lens=[1, 1],
            loss_mask=fc.Field([np.zeros(1), np.array([0, 0, nan])], align="sequence"),
            pad_token_id=0,
        )


ROWS = {"sequences": [[1, 2, 3], [4, 5]], "prompt_lens": [1, 1]}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            {**ROWS, "prompt_lens": [1, 3]},
            r"prompt_lens\[1\] is 3, but sequences\[1\] has 2 tokens; pass a length from 0 to 2",
        ),
        ({**ROWS, "prompt_lens": [1, None]}, r"TypeError: prompt_lens\[1\] is None; pass an int"),
        ({**ROWS, "prompt_lens": [1, 2**63]}, r"prompt_lens\[1\] is 92.* int64"),
        ({**ROWS, "prompt_lens": [1, True]}, r"TypeError: prompt_lens\[1\] is True .*an integer"),
        ({**ROWS, "prompt_lens": np.ma.array([1, 1], mask=[0, 1])}, "TypeError: masked array"),
        ({**ROWS, "prompt_lens": [1, -1]}, r"prompt_lens\[1\] is -1"),
        ({**ROWS, "prompt_lens": [1, 0.5]}, r"TypeError: prompt_lens\[1\] is 0.5; pass an integer"),
        ({**ROWS, "prompt_lens": [1, 2**70]}, "prompt_lens"),
        ({**ROWS, "prompt_lens": [1]}, "prompt_lens has 1 row, but sequences has 2"),
        ({**ROWS, "prompts": [[1], [4]]}, "TypeError: prompts is given with sequences; pass"),
        ({**ROWS, "responses": [[1], [4]]}, "TypeError: responses is given with sequences"),
        (
            {"prompts": [[1]], "responses": [[2]], "prompt_lens": [1]},
            "TypeError: prompt_lens is given without sequences; pass prompts and responses, or "
            "sequences",
        ),
        ({"prompts": [[1]]}, "TypeError: responses is None; pass prompts and responses, or"),
        ({}, "TypeError: prompts is None; pass prompts and responses, or sequences"),
        ({"sequences": []}, "the batch is empty: sequences has 0 rows"),
        ({**ROWS, "sequences": [[1, "a"], [4]]}, r"TypeError: sequences\[0\]\[1\] is 'a'"),
        (
            {**ROWS, "loss_mask": [[1, 1], [1, 1]]},
            r"loss_mask\[1\] has 2 items, but the response of sequences\[1\] has 1; its sequence "
            r"has 2: pass fc.Field\(..., align='sequence'\)",
        ),
        (
            {**ROWS, "loss_mask": fc.Field([[1, 1], [1]], align="sequence")},
            r"loss_mask\[0\] has 2 items, but sequences\[0\] has 3 tokens; its response has 2: "
            r"pass fc.Field\(..., align='response'\)",
        ),
        (
            {**ROWS, "rewards": [[1, 1, 1, 1], [1]]},
            r"rewards\[0\] has 4 items, but the response of sequences\[0\] has 2; pass one value",
        ),
        (
            {"sequences": [[1, 2]], "loss_mask": [[1]]},
            r"loss_mask\[0\] has 1 item, but sequences\[0\] has 2; pass one value",
        ),
        (
            {"prompts": [[1]], "responses": [[2]], "logprobs": [[1, 2]]},
            r"logprobs\[0\] has 2 items, but responses\[0\] has 1; its sequence has 2: pass",
        ),
        (
            {"sequences": [[1], [2, 3]], "prompt_lens": [1, 1], "rewards": [0.5, 1.0]},
            r"rewards\[0\] is one number .* but the response of sequences\[0\] has no last .*;",
        ),
        ({**ROWS, "rewards": [[1.0]]}, "rewards has 1 row, but sequences has 2"),
        (
            {**ROWS, "loss_mask": fc.Field([[1, 1], [1]], fill=2)},
            "loss_mask is an fc.Field with fill=2",
        ),
        ({**ROWS, "loss_mask": fc.Field([[1, 1], [1]], align="row")}, "align.*'row'"),
    ],
)
def test_bad_input(rows, message):
    with raises(message):
        make_batch(**rows)


def test_bad_rows_of_a_builder(array_type):
    builder = fc.BatchBuilder(pad_token_id=0, array_type=array_type)
    builder.add(sequence=[1, 2, 3], prompt_len=1, loss_mask=[1, 1])
    for row, message in [
        ({"sequence": [1], "prompt_len": 2}, r"prompt_lens\[1\] is 2, but sequences\[1\] has 1"),
        ({"sequence": [1], "prompt_len": -1}, "prompt_len is -1"),
        ({"sequence": [1], "prompt_len": 0.5}, "prompt_len is 0.5"),
        ({"sequence": [1], "prompt": [1]}, "prompt is given with sequence; pass prompt and"),
        ({"prompt_len": 1}, "prompt_len is given without sequence"),
        ({"prompt": [1]}, "response is None; pass prompt and response, or sequence with"),
        (
            {"sequence": [1, 2], "prompt_len": 1, "loss_mask": [1, 1]},
            r"loss_mask\[1\] has 2 items, but the response of sequences\[1\] has 1; its sequence",
        ),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            builder.add(**row)
    builder.add([4], [2**40], loss_mask=fc.Field([0, 1], align="sequence"))
    batch = builder.finish()
    assert batch.input_ids.tolist() == [[1, 2, 3], [0, 4, 2**40]]
    assert batch.loss_mask.tolist() == [[1, 1], [0, 1]]


def test_a_plan_is_for_other_sequences():
    merge = fc.merge_turns([[1], [1, 2]], [[2], [3]], is_last_step=[False, True])
    turns = {"sequences": [[1, 2], [1, 2, 3]], "pad_token_id": 0, "array_type": "numpy"}
    fc.build_batch(**turns, prompt_lens=[1, 2], merge=merge)
    message = r"2 tokens in the prompt of sequences\[1\], which has 1; pass a plan"
    with pytest.raises(ValueError, match=message):
        fc.build_batch(**turns, prompt_lens=[1, 1], merge=merge)


def test_a_padded_block_warns(array_type):
    block = np.array([[5, 6, 0, 0, 0], [5, 0, 0, 0, 0], [1, 2, 3, 4, 5]])
    with pytest.warns(UserWarning, match="^sequences has 3 rows of 5 tokens"):
        make_batch(sequences=block, array_type=array_type)


@NEEDS_TORCH
def test_columns_in_one_piece():
    import torch

    lens = torch.tensor([1, 0])
    rows = fc.ragged([[1, 2, 3], [4, 5]])
    expected = fc.build_batch([[1], []], [[2, 3], [4, 5]], pad_token_id=0)
    for sequences in (rows, rows.to_torch_nested(), [torch.tensor([1, 2, 3]), (4, 5)]):
        batch = fc.build_batch(sequences=sequences, prompt_lens=lens, pad_token_id=0)
        assert_same(batch, expected)
