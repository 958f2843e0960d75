"""From any layout to any other, and back, bit for bit."""

import numpy as np
import pytest
from any_layout import layouts
from conftest import share
from hypothesis import given
from hypothesis import strategies as st
from strategies import extras, rollouts

import fastcollate as fc
from fastcollate.testing.reference import assert_same, build_batch_loops

LAYOUTS = ["left", "two_segment", "right", "jagged"]


@st.composite
def placed(draw, layout, data):
    """Draw a layout with widths."""
    return {"layout": draw(layouts(layout, data))}


def small_ids(rows):
    return [[token % 1000 for token in row] for row in rows]


@pytest.mark.parametrize("here", LAYOUTS)
@share(4)
@given(there=st.sampled_from(LAYOUTS), drawn=st.data())
def test_there_and_back(here, there, drawn, array_type):
    data = drawn.draw(rollouts(max_rows=4, max_long_len=20))
    data = data._replace(prompts=small_ids(data.prompts), responses=small_ids(data.responses))
    more = drawn.draw(extras(data, array_type))
    inputs = {**data._asdict(), **more, "pad_token_id": 7}
    options = {
        "array_type": array_type,
        "dtypes": drawn.draw(st.sampled_from(["default", "compact"])),
    }
    first, second = drawn.draw(placed(here, data)), drawn.draw(placed(there, data))
    batch = fc.build_batch(**inputs, **options, **first)
    other = batch.to_layout(**second)
    assert_same(other, fc.build_batch(**inputs, **options, **second))
    if options["dtypes"] == "default":
        assert_same(other, build_batch_loops(**inputs, **second))
    assert other.prompt_lens.tolist() == batch.prompt_lens.tolist()
    assert other.response_lens.tolist() == batch.response_lens.tolist()
    assert other.uids == more.get("uids")
    assert other.trajectory_ids == more.get("trajectory_ids")
    assert_same(other.to_layout(**first), batch)


def small(layout="left", array_type="numpy", **changes):
    inputs = {
        "prompts": [[1, 2], [3]],
        "responses": [[4], [5, 6]],
        "rewards": [[0.5], [1, 2]],
        "pad_token_id": 9,
        "layout": layout,
        "array_type": array_type,
    }
    return fc.build_batch(**{**inputs, **changes})


@pytest.mark.parametrize("there", LAYOUTS)
@pytest.mark.parametrize("here", LAYOUTS)
def test_what_the_outputs_hold_now_is_what_moves(here, there, array_type):
    """Advantages are written into a batch in place, after it was built."""
    batch = small(here, array_type)
    batch.rewards[batch.rewards == 2] = 8
    batch.input_ids[batch.input_ids == 5] = 55
    expected = small(there, array_type, rewards=[[0.5], [1, 8]], responses=[[4], [55, 6]])
    assert_same(batch.to_layout(there), expected)


@pytest.mark.parametrize("there", LAYOUTS)
@pytest.mark.parametrize("here", LAYOUTS)
def test_a_loss_mask_that_nobody_gave_moves_as_it_is_now(here, there, array_type):
    """Tokens are masked in place, and would train again if the mask were made anew."""
    batch = small(here, array_type)
    batch.loss_mask[batch.rewards == 2] = 0
    expected = small(there, array_type, loss_mask=[[1], [1, 0]])
    assert_same(batch.to_layout(there), expected)
    assert [row["loss_mask"].tolist() for row in batch.rows()] == [[1], [1, 0]]
    if not batch.plan.is_tree:
        assert float(batch.select(rows=[1, 0]).loss_mask.sum()) == 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_batch_itself_stays(layout, array_type):
    batch = small("right", array_type)
    other = batch.to_layout(layout)
    assert other is not batch
    other.rewards[...] = 7
    other.input_ids[...] = 7
    assert_same(batch, small("right", array_type))
    assert type(other) is fc.Batch


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_per_row_are_the_same_objects(layout, array_type):
    images = fc.PerRow([np.zeros((2, 3)), np.ones((1, 3))])
    batch = small("left", array_type, fields={"images": images})
    other = batch.to_layout(layout)
    assert type(other["images"]) is list
    assert all(a is b for a, b in zip(other["images"], batch["images"], strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "middle"}, "layout is 'middle'"),
        ({"layout": fc.Right(pad_to=2)}, "pad_to is 2"),
        ({"layout": fc.Left(pad_response_to=1)}, "pad_response_to is 1"),
        ({"layout": fc.TwoSegment(pad_prompt_to=1)}, "pad_prompt_to is 1"),
    ],
)
def test_layouts_that_cannot_be(options, message):
    batch = small()
    with pytest.raises(ValueError, match=message):
        batch.to_layout(**options)
    assert_same(batch, small())
