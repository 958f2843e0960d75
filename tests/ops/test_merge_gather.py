"""The way back from merged rows: to all of their tokens, to sampled ones, and to turns."""

import pytest
from conftest import share
from gathering import WAYS, check, like, shape_of, values_of
from hypothesis import assume, given
from hypothesis import strategies as st
from making import make_batch
from merged_rows import ROW, SAMPLED, TURN, expected_of, rows_of
from strategies import merge_options, rollouts, trajectories

import fastcollate as fc
from fastcollate.testing.reference import (
    build_batch_loops,
    build_merged_batch_loops,
    gather_loops,
    merge_turns_loops,
)

LAYOUTS = ["left", "two_segment", "right", "jagged"]


@pytest.mark.parametrize("layout", LAYOUTS)
@share(4)
@given(there=st.sampled_from([None, *LAYOUTS]), drawn=st.data())
def test_gather_equals_the_loops(layout, there, drawn, array_type):
    data = drawn.draw(trajectories(max_long_len=20))
    turns = {
        "prompts": data.turns.prompts,
        "responses": data.turns.responses,
        "is_last_step": data.is_last_step,
    }
    options = drawn.draw(merge_options())
    if drawn.draw(st.booleans()):
        options |= {"drop_untrainable": True, "loss_mask": data.turns.loss_mask}
    merged = merge_turns_loops(**turns, **options)
    assume(merged.rows)

    mask, merge = options.get("loss_mask"), fc.merge_turns(**turns, **options)
    how = {"merge": merge, "layout": layout, "array_type": array_type}
    batch = make_batch(**turns, loss_mask=mask, **how)
    if there is not None:
        batch, layout = batch.to_layout(there), there
    reference = build_merged_batch_loops(**turns, pad_token_id=0, merge=options, layout=layout)
    align, shift = drawn.draw(st.sampled_from(WAYS))
    missing = drawn.draw(st.sampled_from([None, 0, 1]))
    how = {"align": align, "shift": shift, "missing": missing}
    x = values_of(
        drawn.draw, shape_of(reference, align), drawn.draw(st.sampled_from([(), (), (3,), (0,)]))
    )
    for asked in (ROW, SAMPLED, TURN):
        try:
            expected = expected_of(asked, reference, x, merged, **how)
        except ValueError:
            with pytest.raises(ValueError, match="missing"):
                batch.gather(like(x, array_type), **how, **asked)
        else:
            check(batch.gather(like(x, array_type), **how, **asked), *expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@share(4)
@given(drawn=st.data())
def test_rows_that_are_not_merged_are_turns(layout, drawn, array_type):
    data = drawn.draw(rollouts(max_long_len=20))
    inputs = {"prompts": data.prompts, "responses": data.responses}
    inputs |= {"pad_token_id": 0, "layout": layout}
    batch = fc.build_batch(**inputs, array_type=array_type)
    reference = build_batch_loops(**inputs)
    x = values_of(drawn.draw, shape_of(reference, "response"))
    for asked in (ROW, SAMPLED, TURN):
        check(
            batch.gather(like(x, array_type), align="response", **asked),
            *gather_loops(reference, x),
        )


# The first trajectory is one row, [1, 2] + [3, 4, 5, 6], of which 4 is an observation.
TURNS = {
    "prompts": [[1, 2], [1, 2, 3, 4], [7]],
    "responses": [[3], [5, 6], [8]],
    "trajectory_ids": ["s", "s", "t"],
}
# Its next prompt has 9 in the place of the second sampled token.
DRIFTED = {**TURNS, "prompts": [[1], [1, 2, 9], [7]], "responses": [[2, 3], [5, 6], [8]]}


def small(layout="left", array_type="numpy", **changes):
    options = {"merge": "exact", "pad_token_id": 0, "layout": layout, "array_type": array_type}
    return fc.build_batch(**{**TURNS, **options, **changes})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tokens_that_drift_masked_are_missing(layout, array_type):
    batch = small(layout, array_type, **DRIFTED, merge="realign")
    ids = batch.input_ids
    assert rows_of(batch.gather(ids, align="sequence", shift="none", per="turn", missing=-7)) == [
        [2, -7],
        [5, 6],
        [8],
    ]
    with pytest.raises(ValueError, match=r"\b0\b.*missing"):
        batch.gather(ids, align="sequence", shift="none", per="turn")
    # They are not among the tokens of the row, so nothing is missing there.
    assert rows_of(batch.gather(ids, align="sequence", shift="none", gaps=False)) == [
        [2, 5, 6],
        [8],
    ]
    assert rows_of(batch.gather(ids, align="sequence", shift="none")) == [[2, 9, 5, 6], [8]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per": "token"}, "per is 'token'"),
        ({"per": None}, "per is None"),
        ({"gaps": None}, "gaps"),
        ({"gaps": "no"}, "gaps"),
        ({"per": "turn", "missing": "x"}, "missing is"),
    ],
)
def test_what_cannot_be_asked_for(options, message):
    batch = small()
    with pytest.raises((TypeError, ValueError), match=message):
        batch.gather(batch.input_ids, align="sequence", shift="none", **options)
