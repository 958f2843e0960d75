"""Layouts and fixed widths, against the loops."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_input import build

import fastcollate as fc
from fastcollate.testing.reference import assert_same, build_batch_loops
from fastcollate.testing.strategies import as_inputs, rollouts


@st.composite
def widths(draw, layout, inputs):
    """Draw widths that hold the inputs, or leave them to the data."""
    multiple = draw(st.integers(1, 8))

    def fixed(longest, *, rounded=True):
        width = longest + draw(st.integers(0, 9))
        width = -(-width // multiple) * multiple if rounded else width
        return draw(st.sampled_from([None, width]))

    prompt_lens = [len(row) for row in inputs.prompts]
    response_lens = [len(row) for row in inputs.responses]
    chosen = {"layout": layout, "pad_to_multiple_of": multiple}
    two = layout == "two_segment"
    chosen["max_response_len"] = fixed(max(response_lens), rounded=two)
    if two:
        chosen["max_prompt_len"] = fixed(max(prompt_lens))
    else:
        totals = map(sum, zip(prompt_lens, response_lens, strict=True))
        chosen["pad_to"] = fixed(max(totals))
    return chosen


@pytest.mark.parametrize("layout", ["left", "two_segment", "right"])
@given(data=st.data())
def test_layouts_equal_the_loops(layout, data):
    inputs = data.draw(rollouts())
    kinds = data.draw(as_inputs(inputs))
    options = {"pad_token_id": data.draw(st.integers(-2, 2)), **data.draw(widths(layout, inputs))}
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


def test_the_longest_row_is_not_the_width():
    fc.build_batch([[1]], [[2]], pad_token_id=0, pad_to=100, warn_above=2, array_type="numpy")
    with pytest.warns(UserWarning, match="longest row has 2 tokens"):
        fc.build_batch([[1]], [[2]], pad_token_id=0, pad_to=9, warn_above=1, array_type="numpy")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "middle"}, "layout is 'middle'; pass 'left'"),
        ({"layout": None}, "layout is None"),
        ({"pad_to": 2}, r"row 0 has \d+ tokens, but pad_to is 2"),
        ({"max_response_len": 1}, r"row \d has \d+ response tokens, but max_response_len is 1"),
        (
            {"layout": "two_segment", "max_prompt_len": 1},
            r"row \d has \d+ prompt tokens, but max_prompt_len is 1",
        ),
        ({"pad_to": -1}, "pad_to is -1; pass a number from 0"),
        ({"pad_to_multiple_of": 0}, "pad_to_multiple_of is 0; pass a number from 1"),
        ({"pad_to": 100, "pad_to_multiple_of": 64}, "pad_to is 100, which is no multiple"),
        ({"layout": "two_segment", "pad_to": 100}, "pass max_prompt_len and max_response_len"),
        ({"max_prompt_len": 100}, "max_prompt_len fixes .* layout='left'"),
    ],
)
def test_widths_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)


@pytest.mark.parametrize("argument", ["pad_to", "max_response_len", "pad_to_multiple_of"])
def test_widths_of_a_wrong_kind(argument):
    with pytest.raises(TypeError, match=f"{argument} is 1.5; pass a number"):
        build(**{argument: 1.5})


def test_no_multiple():
    with pytest.raises(TypeError, match="pad_to_multiple_of is None; pass a number"):
        build(pad_to_multiple_of=None)


def test_a_width_beyond_memory():
    with pytest.raises(MemoryError):
        build(pad_to=2**61)
    with pytest.raises(ValueError, match="larger than memory"):
        build(pad_to=2**63 - 1)
