"""Layouts and fixed widths, against the loops."""

import pytest
from small_input import build

import fastcollate as fc


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
