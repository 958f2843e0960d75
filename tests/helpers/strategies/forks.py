"""Rows with shared prefixes."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from fastcollate.testing.drawing import Rollouts
from strategies.trajectories import VOCABULARIES, distinct


@st.composite
def forks(draw: st.DrawFn, *, max_rows: int = 12, max_many: int = 200) -> Rollouts:
    """Draw rows that fork everywhere: inside prompts, inside responses, and between the two.

    Each row begins with some, all or none of the tokens of an earlier one, and ends with some of
    its own, or with none: then it is a prefix or a copy. Prompt lengths are drawn independently, so
    that equal rows may have different prompts, and prompts and responses may be empty. At times
    prompts are equal, as for several samples of one prompt.

    Parameters
    ----------
    max_rows
        The most rows of most batches; there is at least one.
    max_many
        The same for some of them.

    Returns
    -------
    SearchStrategy[Rollouts]
        Token ids are of a vocabulary of two to four, and equal ones are either the same object
        wherever a row repeats an earlier one or all different objects. There are no fields.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    vocabulary = draw(st.sampled_from(VOCABULARIES))
    count = draw(st.integers(1, draw(st.sampled_from([1, max_rows, max_rows, max_many]))))
    max_new = draw(st.sampled_from([1, 3, 20]))
    keeps_prompts = draw(st.booleans())
    prompts: list[list[int]] = []
    responses: list[list[int]] = []
    for row in range(count):
        prompt, stream = [], []
        if row > 0 and rng.integers(8) > 0:
            earlier = int(rng.integers(row))
            prompt, stream = prompts[earlier], prompts[earlier] + responses[earlier]
            stream = stream[: rng.integers(len(stream) + 1)] if rng.integers(3) > 0 else stream
        new = rng.integers(len(vocabulary), size=rng.integers(max_new + 1))
        stream = stream + [vocabulary[place] for place in new.tolist()]
        is_kept = keeps_prompts and row > 0 and len(stream) >= len(prompt)
        end = len(prompt) if is_kept else int(rng.integers(len(stream) + 1))
        prompts.append(stream[:end])
        responses.append(stream[end:])
    if draw(st.booleans()):
        prompts, responses = distinct(prompts), distinct(responses)
    return Rollouts(prompts, responses)
