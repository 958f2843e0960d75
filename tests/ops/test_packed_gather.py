"""The way back from packed rows: to sequences in the order of the input, and to turns."""

import pickle
import warnings

import numpy as np
import pytest
from conftest import share
from gathering import WAYS, check, like, values_of
from hypothesis import assume, given
from hypothesis import strategies as st
from making import make_batch
from merged_rows import ROW, SAMPLED, TURN, expected_of, rows_of
from packings import SHIFTS, lens_of, packed_options, plan_of
from strategies import Rollouts, merge_options, rollouts, trajectories

import fastcollate as fc
from fastcollate.testing.reference import assert_same, gather_loops, merge_turns_loops
from fastcollate.testing.reference.packed import packed_rows
from fastcollate.testing.reference.way_back import broadcast_loops


def build(data, options, array_type, **more):
    """Build a batch whose loss masks train nothing, so that no value can get lost."""
    masks = [[0] * len(row) for row in data.responses]
    tokens = {"prompts": data.prompts, "responses": data.responses, "loss_mask": masks}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what has no place
        return make_batch(**tokens, **options, array_type=array_type, **more)


def grids_of(rows, reference):
    lens = (list(map(len, rows.prompts)), list(map(len, rows.responses)))
    how = {name: value for name, value in reference.items() if name != "layout"}
    return packed_rows(*lens, **how).grids


@st.composite
def ways(draw):
    align, shift = draw(st.sampled_from(WAYS))
    return {"align": align, "shift": shift, "missing": draw(st.sampled_from([None, 0, 1]))}


@share(2)
@given(drawn=st.data())
def test_gather_equals_the_loops(drawn, array_type):
    data = drawn.draw(rollouts(max_long_len=30))
    options, reference = drawn.draw(packed_options(lens_of(data)))
    batch, grids = build(data, options, array_type), grids_of(data, reference)
    how = drawn.draw(ways())
    trailing = drawn.draw(st.sampled_from([(), (), (3,), (2, 2), (0,)]))
    x = values_of(drawn.draw, grids.tokens.shape, trailing)
    if how["shift"] == "next_token" and x.shape[1] > 0 and drawn.draw(st.booleans()):
        # A row's last position is in front of nothing; log-probabilities often lack it.
        given_x = like(x[:, :-1].copy(), array_type)
    else:
        given_x = like(x, array_type)
    for asked in (ROW, SAMPLED, TURN):
        try:
            expected = gather_loops(grids, x, **how)
        except ValueError:
            with pytest.raises(ValueError, match="missing"):
                batch.gather(given_x, **how, **asked)
        else:
            check(batch.gather(given_x, **how, **asked), *expected)


@share(2)
@given(drawn=st.data())
def test_broadcast_equals_the_loops(drawn, array_type):
    data = drawn.draw(rollouts(max_long_len=30))
    options, reference = drawn.draw(packed_options(lens_of(data)))
    batch, grids = build(data, options, array_type), grids_of(data, reference)
    per_row = values_of(drawn.draw, (len(data.prompts),))
    found = batch.broadcast(like(per_row, array_type))
    mask = np.asarray(batch.loss_mask)
    assert_same({"x": found}, {"x": broadcast_loops(grids, per_row, mask)})
    found = batch.broadcast(like(per_row, array_type), on="response")
    assert_same({"x": found}, {"x": broadcast_loops(grids, per_row)})


@share(2)
@given(drawn=st.data())
def test_merged_rows_equal_the_loops(drawn, array_type):
    data = drawn.draw(trajectories(max_long_len=20))
    turns = {
        "prompts": data.turns.prompts,
        "responses": data.turns.responses,
        "is_last_step": data.is_last_step,
    }
    policy = drawn.draw(merge_options())
    merged = merge_turns_loops(**turns, **policy)
    assume(merged.rows)
    rows = Rollouts([row.prompt for row in merged.rows], [row.response for row in merged.rows])
    options, reference = drawn.draw(packed_options(lens_of(rows)))
    batch = build(
        data.turns,
        options,
        array_type,
        is_last_step=data.is_last_step,
        merge=fc.merge_turns(**turns, **policy),
    )
    grids = grids_of(rows, reference)
    how = drawn.draw(ways())
    x = values_of(drawn.draw, grids.tokens.shape, drawn.draw(st.sampled_from([(), (), (3,)])))
    for asked in (ROW, SAMPLED, TURN):
        try:
            expected = expected_of(asked, grids, x, merged, **how)
        except ValueError:
            with pytest.raises(ValueError, match="missing"):
                batch.gather(like(x, array_type), **how, **asked)
        else:
            check(batch.gather(like(x, array_type), **how, **asked), *expected)


# Rows of 7 + 3 and 4 positions: the first sequence has a part in each.
PARTS = [[(1, 0, 3), (0, 0, 4)], [(2, 0, 2), (0, 4, 2)]]
PROMPTS, RESPONSES = [[1, 2], [7, 8], [9]], [[3, 4, 5, 6], [10], [11]]


def small(array_type="numpy", shift="none", parts=PARTS, **changes):
    inputs = {"prompts": PROMPTS, "responses": RESPONSES, "pad_token_id": 0}
    inputs |= {"layout": fc.Packed(plan=plan_of(parts), shift=shift), "array_type": array_type}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fc.build_batch(**{**inputs, **changes})


@pytest.mark.parametrize("shift", SHIFTS)
def test_copied_rows_are_left_out(shift, array_type):
    """Rows of a shard without bins, of which the last is there to fill up."""
    shard = fc.planning.Shard(np.array([2, 0, 2]), np.array([False, False, True]), num_rows=3)
    masks = [[1] * 4, [1], [1]]
    parts = [[(2, 0, 2)], [(1, 0, 6), (0, 0, 2)]]
    batch = small(array_type, shift, parts, shard=shard, loss_mask=masks)
    assert batch.input_ids.tolist() == [[9, 11, 0, 0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6, 9, 11]]
    assert batch.loss_mask[0].tolist() == [0] * 8
    assert rows_of(batch.gather(batch.loss_mask, align="response")) == [[1], [1] * 4]
    assert rows_of(batch.gather(batch.loss_mask, align="response", per="turn", missing=-1)) == [
        [1] * 4,
        [-1],
        [1],
    ]
    per_row = like(np.array([1, 2, 3]), array_type)
    for on in ("trained", "response"):
        found = batch.broadcast(per_row, on=on)
        assert rows_of(batch.gather(found, align="response")) == [[1], [2] * 4]
        assert found[0].tolist().count(3) == (on == "response")


def test_padding_rows_are_left_out(array_type):
    shard = fc.planning.Shard(
        np.array([1, -1, 0]),
        np.array([False, True, False]),
        num_rows=2,
        lengths=np.array([3, 2, 2]),
        bin_offsets=np.array([0, 2, 3]),
        bin_width=6,
        layout=fc.Packed(6),
    )
    batch = fc.build_batch(
        [[1], [2, 3]],
        [[5], [6]],
        pad_token_id=9,
        loss_mask=[[1], [1]],
        shard=shard,
        array_type=array_type,
    )
    assert batch.input_ids.tolist() == [[2, 3, 6, 9, 9, 9], [1, 5, 9, 9, 9, 9]]
    assert batch.sequence_ids.tolist() == [[0, 0, 0, 1, 1, -1], [2, 2, -1, -1, -1, -1]]
    assert batch.loss_mask.tolist() == [[0, 0, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0]]
    assert batch.row_cu_seqlens[0].tolist() == [0, 3, 5, 6]
    ids = batch.input_ids
    assert rows_of(batch.gather(ids, align="sequence", shift="none", per="turn")) == [[5], [6]]
    assert rows_of(batch.gather(ids, align="sequence", shift="none")) == [[6], [5]]
    assert rows_of(batch.gather(ids, align="sequence", shift="none", gaps=False)) == [[6], [5]]
    per_row = like(np.array([1.5, 9, 2.5]), array_type)
    assert batch.broadcast(per_row).tolist() == [[0, 0, 1.5, 0, 0, 0], [0, 2.5, 0, 0, 0, 0]]
    found = batch.broadcast(per_row, on="response")
    assert found.tolist() == [[0, 0, 1.5, 0, 9, 0], [0, 2.5, 0, 0, 0, 0]]
    again = pickle.loads(pickle.dumps(batch))
    assert rows_of(again.gather(ids, align="sequence", shift="none")) == [[6], [5]]
    assert rows_of(
        again.to_layout("left").gather(batch.to_layout("left").loss_mask, align="response")
    ) == [[1], [0], [1]]


@pytest.mark.parametrize("align", ["response", "sequence"])
def test_values_of_a_wrong_shape(align, array_type):
    batch = small(array_type)
    for shape in [(3, 7), (2, 8), (2, 6), (14,), (1, 14), ()]:
        with pytest.raises(ValueError, match="shape"):
            batch.gather(like(np.zeros(shape), array_type), align=align, shift="none")
    batch.gather(like(np.zeros((2, 7)), array_type), align=align, shift="none")
    short = like(np.zeros((2, 6)), array_type)
    batch.gather(short, align="sequence", shift="next_token", missing=0)


def test_moved_outputs_are_not_moved_again(array_type):
    batch = small(array_type, "next_token")
    with pytest.raises(ValueError, match="align='sequence'"):
        batch.gather(batch.response_mask, align="response", shift="next_token")
