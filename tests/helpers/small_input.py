"""Small input that is good, and ways to spoil one place of it."""

import re

import pytest

import fastcollate as fc

FIELDS = ["rewards", "loss_mask", "logprobs", "advantages"]
TOKENS = ["prompts", "responses"]
ROWS = [*TOKENS, *FIELDS]
OF_SKYRL = ROWS[:-1]
"""Those that SkyRL's function takes."""


def good_input():
    """Three rows of one, two and two response tokens, with every field."""
    return {
        "prompts": [[1, 2], [3], [4, 5, 6]],
        "responses": [[7], [8, 9], [10, 11]],
        **{name: [[0.5], [1.0, 2.0], [3.0, 4.0]] for name in FIELDS},
        "pad_token_id": 0,
        "array_type": "numpy",
    }


def build(**changes):
    """Build a batch of the good input, but for these arguments."""
    return fc.build_batch(**{**good_input(), **changes})


def with_row(name, row):
    """Put something where row 1 belongs."""
    rows = good_input()[name]
    rows[1] = row
    return {name: rows}


def with_item(name, item):
    """Put something where the first number of row 1 belongs."""
    return with_row(name, [item, *good_input()[name][1][1:]])


def refuses(changes, exception, *patterns):
    """Check the exception's type and message, and that good input still gives a batch."""
    with pytest.raises(exception) as caught:
        build(**changes)
    assert type(caught.value) is exception, repr(caught.value)
    for pattern in patterns:
        assert re.search(pattern, str(caught.value)), f"{pattern} is not in: {caught.value}"
    assert build().input_ids.tolist() == [[0, 0, 1, 2, 7], [0, 0, 3, 8, 9], [4, 5, 6, 10, 11]]


def build_or_refuse(pattern, **changes):
    """Build a batch, or give None for a TypeError or ValueError whose message has the pattern."""
    try:
        return build(**changes)
    except (TypeError, ValueError) as error:
        message = str(error)
    assert re.search(pattern, message), message
    return None


class Acts:
    """A number that does something when it is read."""

    def __init__(self, action):
        self.action = action

    def __index__(self):
        self.action()
        return 5

    def __float__(self):
        self.action()
        return 5.0
