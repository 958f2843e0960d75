"""The decision diagram of the page "Which layout?"."""

from __future__ import annotations

from svg import Picture

QUESTIONS = (
    (("Does your framework", "fix the layout?"), ("its own layout", "left · two_segment")),
    (("Are a third of tokens", "shared prefixes?"), ("fc.Tree(capacity)", "prefix sharing")),
    (("Is more than 25%", "of it padding?"), ("fc.Packed(capacity)", "sequence packing")),
    (("Do you only move", "or store batches?"), ('"jagged"', "values and offsets")),
)


def draw() -> dict[str, Picture]:
    """Draw the questions in order, each with the layout for a yes."""
    height, gap, top = 46, 26, 14
    end = top + (height + gap) * len(QUESTIONS)
    picture = Picture(
        430, end + height + 14,
        "Decision diagram. Does your framework fix the layout? Then use its own. Are a third of "
        "tokens shared prefixes? Then Tree. Is more than 25 percent padding? Then Packed. Do you "
        "only move or store batches? Then jagged. Otherwise left, or right for fine-tuning.",
    )  # fmt: skip

    def node(x: float, y: float, kind: str, texts: tuple[str, str], first: str) -> None:
        picture.box(x, y, 180, height, kind)
        for line, (text, style) in enumerate(zip(texts, (first, "small"), strict=True)):
            picture.write(x + 90, y + 15 + 17 * line, text, style, "middle")

    for number, (question, answer) in enumerate(QUESTIONS):
        y = top + (height + gap) * number
        picture.box(16, y, 180, height, "plain")
        for line, text in enumerate(question):
            picture.write(106, y + 15 + 17 * line, text, "", "middle")
        node(234, y, "trained" if number else "prompt", answer, "code bold" if number else "bold")
        picture.arrow(197, y + height / 2, 233, y + height / 2)
        picture.write(215, y + height / 2 - 9, "yes", "small dim", "middle")
        picture.arrow(106, y + height, 106, y + height + gap - 1)
        picture.write(113, y + height + gap / 2, "no", "small dim")
    node(16, end, "trained", ('"left" or "right"', "for RL · for fine-tuning"), "code bold")
    return {"which_layout": picture}
