"""Layouts and fixed widths, against the loops."""

import pytest
from any_layout import layouts
from conftest import share
from hypothesis import given
from hypothesis import strategies as st
from small_input import build
from strategies import as_inputs, rollouts

import fastcollate as fc
from fastcollate.testing.reference import assert_same, build_batch_loops


@pytest.mark.parametrize("layout", ["left", "two_segment", "right"])
@share(2)
@given(data=st.data())
def test_layouts_equal_the_loops(layout, data):
    inputs = data.draw(rollouts())
    kinds = data.draw(as_inputs(inputs))
    options = {"pad_token_id": data.draw(st.integers(-2, 2))}
    options["layout"] = data.draw(layouts(layout, inputs))
    batch = fc.build_batch(**kinds, **options, array_type="numpy")
    assert_same(batch, build_batch_loops(**inputs._asdict(), **options))


def test_the_picture():
    batch = fc.build_batch(
        [[1, 2], [3]], [[4], [5, 6]], pad_token_id=0, layout="two_segment", array_type="numpy"
    )
    assert batch.input_ids.tolist() == [[1, 2, 4, 0], [0, 3, 5, 6]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 0], [0, 1, 1, 1]]
    assert batch.response_mask.tolist() == [[1, 0], [1, 1]]


def test_a_number_per_row_lands_on_the_last_token(array_type):
    inputs = {"prompts": [[1], [2]], "responses": [[3, 4], [5]], "rewards": [0.5, 2.0]}
    batch = fc.build_batch(**inputs, pad_token_id=0, layout="right", array_type=array_type)
    assert batch.rewards.tolist() == [[0.0, 0.5], [2.0, 0.0]]


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (fc.Left(pad_to=2), r"row 0 has \d+ tokens, but pad_to is 2"),
        (
            fc.Right(pad_response_to=1),
            r"row \d has \d+ response tokens, but pad_response_to is 1",
        ),
        (
            fc.TwoSegment(pad_prompt_to=1),
            r"row \d has \d+ prompt tokens, but pad_prompt_to is 1",
        ),
    ],
)
def test_rows_wider_than_fixed_widths(layout, message):
    with pytest.raises(ValueError, match=message):
        build(layout=layout)


def test_a_width_beyond_memory():
    for name, value in (("pad_to", 2**61), ("pad_to", 2**63 - 1), ("multiple_of", 2**63 - 1)):
        for layout in (fc.Left, fc.Right):
            message = f"{name} is {value}, so .* exceeds any memory; pass a smaller {name}"
            with pytest.raises(ValueError, match=message):
                build(layout=layout(**{name: value}))
    for name in ("pad_prompt_to", "pad_response_to", "multiple_of"):
        with pytest.raises(ValueError, match=f"{name} is {2**62}, so .*; pass a smaller {name}"):
            build(layout=fc.TwoSegment(**{name: 2**62}))
