"""Rows of every layout, and batches of them with attention masks."""

from hypothesis import strategies as st

import fastcollate as fc

LAYOUTS = {
    "left": fc.Left(multiple_of=4),
    "two_segment": fc.TwoSegment(pad_prompt_to=9),
    "right": fc.Right(),
    "jagged": fc.Jagged(),
    "packed": fc.Packed(capacity=18),
    "aligned": fc.Packed(capacity=24, multiple_of=4, padding_as="last_segment"),
    "shifted": fc.Packed(capacity=18, shift="next_token", padding_as="no_segment"),
    "split": fc.Packed(capacity=7, algorithm="concat"),
    "one row": fc.Packed.single_row(pad_to=70),
    "tree": fc.Tree(),
    "trees": fc.Tree(capacity=20),
}

ROWS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 9)), min_size=1, max_size=4)


def rows_of(lens, layout):
    """Make prompts and responses of these lengths: of all tokens different, or with forks."""
    ids = iter(range(1, 1000))
    if layout in ("tree", "trees") or isinstance(layout, fc.Tree):  # all begin alike
        rows = [
            [1 + (row >> max(0, 5 - i) // 2 & 1) for i in range(p + r)]
            for row, (p, r) in enumerate(lens)
        ]
    else:
        rows = [[next(ids) for _ in range(p + r)] for p, r in lens]
    parts = [(row[:p], row[p:]) for row, (p, _) in zip(rows, lens, strict=True)]
    return map(list, zip(*parts, strict=True))


def built(lens, layout, array_type="numpy"):
    """Build a batch of rows of these lengths."""
    prompts, responses = rows_of(lens, layout)
    layout = LAYOUTS[layout] if isinstance(layout, str) else layout
    return fc.build_batch(prompts, responses, pad_token_id=0, array_type=array_type, layout=layout)


def with_prompts(lens, layout):
    """Give all rows a prompt where the first token of a response has no place without one."""
    is_needed = layout in ("shifted", "tree", "trees")
    return [(max(p, 1), r) for p, r in lens] if is_needed else lens
