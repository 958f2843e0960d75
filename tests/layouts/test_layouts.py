"""Widths that rows exceed, and widths that exceed memory."""

import pytest
from small_input import build

import fastcollate as fc


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (fc.Left(pad_to=2), r"row 0 has \d+ tokens, but pad_to is 2"),
        (fc.Right(pad_response_to=1), r"row \d has \d+ response tokens, but pad_response_to is 1"),
        (fc.TwoSegment(pad_prompt_to=1), r"row \d has \d+ prompt tokens, but pad_prompt_to is 1"),
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
