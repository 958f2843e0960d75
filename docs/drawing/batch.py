"""The batch of the start page: the picture shows what its first snippet returns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from svg import Picture

START_PAGE = Path(__file__).parents[1] / "index.md"
WORDS = {
    2: "‹end›", 11: "+", 12: "=", 13: "*", 21: "2", 23: "4", 26: "6", 27: "7", 31: "calc", 32: "42",
    40: "Hi", 41: "Hello",
}  # fmt: skip
CELL, LEFT, ROW, TITLE = 48, 16, 36, 26


def batch_of_start_page() -> Any:
    """Run the first snippet of the start page."""
    code = re.search(
        r"^```python\n(.*?)^```$", START_PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert code, "the start page has no snippet"
    names: dict[str, Any] = {}
    exec(code[1], names)
    return names["batch"]


def kind(attention: float, trained: float, is_response: bool) -> str:
    """Return the kind of a position."""
    if not attention:
        return "padding"
    if not is_response:
        return "prompt"
    return "trained" if trained else "masked"


def draw() -> dict[str, Picture]:
    """Draw the tokens, and the outputs along responses below them."""
    batch = batch_of_start_page()
    ids, attention = batch.input_ids.tolist(), batch.attention_mask.tolist()
    mask, rewards = batch.loss_mask.tolist(), batch.rewards.tolist()
    sampled = batch.response_mask.tolist()
    width, response = len(ids[0]), len(mask[0])
    begin = width - response
    picture = Picture(
        2 * LEFT + CELL * width, 82 + (TITLE + 8) * 2 + TITLE + ROW * len(ids) + 52 * len(ids),
        "Three rows of token ids, padded on the left. Below them, loss_mask and rewards have one "
        "value for each response position, aligned on the right.",
    )  # fmt: skip
    y = 12.0
    picture.write(LEFT, y + 10, f"input_ids ({len(ids)}, {width})", "code bold")
    y += TITLE
    for row, tokens in enumerate(ids):
        for column, token in enumerate(tokens):
            at = column - begin
            is_response = at >= 0 and bool(sampled[row][at])
            trained = is_response and mask[row][at]
            x = LEFT + CELL * column
            picture.box(x, y, CELL, ROW, kind(attention[row][column], trained, is_response))
            is_token = attention[row][column]
            if is_token:
                picture.write(x + CELL / 2, y + 12, WORDS[token], "bold", "middle")
            picture.write(
                x + CELL / 2, y + (27 if is_token else 18), str(token), "small code", "middle"
            )
        y += ROW
    for name, values in (("loss_mask", mask), ("rewards", rewards)):
        y += 8
        x = LEFT + CELL * begin
        picture.write(x, y + 10, f"{name} ({len(ids)}, {response})", "code bold")
        y += TITLE
        for row, numbers in enumerate(values):
            for at, number in enumerate(numbers):
                is_response = bool(sampled[row][at])
                box = kind(is_response, mask[row][at], True)
                picture.box(LEFT + CELL * (begin + at), y, CELL, 26, box, f"{number:g}")
            y += 26
    picture.legend(
        LEFT, y + 24, prompt="prompt", trained="sampled, trains", masked="tool output, masked",
        padding="padding",
    )  # fmt: skip
    return {"batch": picture}
