"""Turns that became one row, with its masks: the picture of the page on merging."""

from __future__ import annotations

from glossary import PROMPTS, RESPONSES
from svg import Picture

import fastcollate as fc

CELL, ROW, LEFT = 32, 28, 130


def draw() -> dict[str, Picture]:
    """Draw what `build_batch` returns for three turns of a trajectory."""
    batch = fc.build_batch(
        PROMPTS, RESPONSES, pad_token_id=0, array_type="numpy", trajectory_ids=["t"] * 3,
        merge="exact",
    )  # fmt: skip
    (ids,), (trains,) = batch.input_ids.tolist(), batch.loss_mask.tolist()
    begin = len(ids) - len(trains)
    picture = Picture(
        LEFT + CELL * len(ids) + 16, 184,
        "The row of a trajectory of three turns. The response begins after the first prompt. "
        "response_mask is 1 on all of it; loss_mask is 0 on the observations between responses.",
    )  # fmt: skip
    for line, name in enumerate(("input_ids", "response_mask", "loss_mask")):
        y = 16 + 34 * line
        picture.write(16, y + ROW / 2, name, "code bold")
        values, first = (ids, 0) if name == "input_ids" else (batch[name][0].tolist(), begin)
        for column, value in enumerate(values, first):
            sampled = "trained" if trains[column - begin] else "masked"
            kind = "prompt" if column < begin else sampled
            picture.box(LEFT + CELL * column, y, CELL, ROW, kind, f"{value:g}")
    for turn, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        start = LEFT + CELL * len(prompt)
        picture.brace(start, start + CELL * len(response), 16 + 34 * 3, f"turn {turn}")
    picture.legend(
        16, 164, prompt="first prompt", trained="sampled, trains", masked="observation, masked"
    )
    return {"merged": picture}
