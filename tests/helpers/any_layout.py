"""Strategies of layouts."""

from hypothesis import strategies as st

import fastcollate as fc


@st.composite
def layouts(draw, name, inputs):
    """Draw a layout of a name, with widths that hold the inputs or are left to the data."""
    if name == "jagged":
        return fc.Jagged()
    multiple = draw(st.integers(1, 8))

    def fixed(longest, *, rounded=True):
        width = longest + draw(st.integers(0, 9))
        width = -(-width // multiple) * multiple if rounded else width
        return draw(st.sampled_from([None, width]))

    prompt_lens = [len(row) for row in inputs.prompts]
    response_lens = [len(row) for row in inputs.responses]
    two = name == "two_segment"
    chosen = {"multiple_of": multiple}
    chosen["pad_response_to"] = fixed(max(response_lens), rounded=two)
    if two:
        return fc.TwoSegment(**chosen, pad_prompt_to=fixed(max(prompt_lens)))
    totals = map(sum, zip(prompt_lens, response_lens, strict=True))
    kind = fc.Left if name == "left" else fc.Right
    return kind(**chosen, pad_to=fixed(max(totals)))
