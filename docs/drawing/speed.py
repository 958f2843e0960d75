"""A plot of the first table of `docs/speed.md`: ratios, on a linear axis."""

from __future__ import annotations

import re
from pathlib import Path

from svg import Picture

PAGE = Path(__file__).parents[1] / "speed.md"
LEFT, WIDTH, LINE = 16, 360, 38


def ratios(header: str) -> list[tuple[str, float]]:
    """Return the name and the first ratio of each line of the table that begins with a header."""
    lines = PAGE.read_text("utf-8").partition(header)[2].split("\n")[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        name, pool = line.strip("|").replace("`", "").split("|")[:2]
        ratio = re.search(r"\(([\d.]+)x", pool)
        assert ratio, line
        rows.append((name.partition(" (")[0].strip(), float(ratio[1])))
    assert rows, f"{PAGE.name} has no table with the header {header}"
    return rows


def draw() -> dict[str, Picture]:
    """Draw a bar for each ratio, and a line at NumPy's speed."""
    rows = ratios("| rows are | pool |")
    scale = WIDTH / max(ratio for _, ratio in rows)
    bottom = 28 + LINE * len(rows)
    picture = Picture(
        LEFT + WIDTH + 56, bottom + 34,
        "How many times faster than vectorised NumPy fastcollate is, as in the table.",
    )  # fmt: skip
    picture.write(LEFT, 18, "times faster than vectorised NumPy", "small dim")
    for number, (name, ratio) in enumerate(rows):
        y = 42 + LINE * number
        picture.write(LEFT, y, name, "small")
        picture.box(LEFT, y + 8, ratio * scale, 15, "trained")
        picture.line(LEFT + scale, y + 9, LEFT + scale, y + 25)
        picture.write(LEFT + ratio * scale + 6, y + 15, f"{ratio:g}x", "small bold")
    picture.write(LEFT, bottom + 15, "line at 1x: as fast as NumPy", "small dim")
    return {"speed_batches": picture}
