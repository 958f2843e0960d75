"""Shards of steps drawn at random."""

import numpy as np
from hypothesis import strategies as st

from fastcollate.plan.shard import Shard


def shard_of(rows, padding, prompts, responses, first_pad=0, *, is_planned=False):
    """Return a shard of these rows of a step; with its own lengths, as plans have them, or not."""
    lens = [(len(p), len(r), len(p) + len(r)) for p, r in zip(prompts, responses, strict=True)]
    own = np.array([*lens, (1, 1, 2)])[rows]
    lens += [(1, 1, 2)] * any(row < 0 for row in rows)
    widths = tuple(map(max, zip(*lens, strict=True)))
    planned = {"lengths": own[:, 2], "prompt_lengths": own[:, 0]} if is_planned else {}
    return Shard(np.array(rows), np.array(padding), len(prompts), widths, first_pad, **planned)


@st.composite
def shards(draw, turns):
    """Draw rows of a step: some or all of them, in any order, copies and synthetic ones."""
    count = len(turns.prompts)
    rows = draw(st.lists(st.integers(-1, count - 1), min_size=1, max_size=count + 3))
    padding = [row < 0 or draw(st.booleans()) for row in rows]
    if draw(st.booleans()):  # as a rank of real rows that follow each other
        start = draw(st.integers(0, count - 1))
        rows = list(range(start, draw(st.integers(start, count - 1)) + 1))
        padding = [False] * len(rows)
    first_pad, is_planned = draw(st.integers(0, 5)), draw(st.booleans())
    step = turns.prompts, turns.responses
    return shard_of(rows, padding, *step, first_pad, is_planned=is_planned)
