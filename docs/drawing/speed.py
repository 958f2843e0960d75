"""Plots of the tables of `docs/speed.md`."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import NamedTuple

from svg import Picture

PAGE = Path(__file__).parents[1] / "speed.md"
UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
LEFT, WIDTH, LINE = 26, 330, 60


def table(header: str) -> list[list[str]]:
    """Return the cells of the table that begins with a header."""
    lines = PAGE.read_text("utf-8").partition(header)[2].split("\n")[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
    assert rows, f"{PAGE.name} has no table with the header {header}"
    return rows


def seconds(cell: str) -> float:
    """Return the first time in a cell."""
    found = re.search(r"([\d,.]+) (s|ms|µs)\b", cell)
    assert found, cell
    return float(found[1].replace(",", "")) * UNITS[found[2]]


def in_words(time: float) -> str:
    """Return a time with its unit."""
    unit = next(unit for unit, size in UNITS.items() if time >= size * 0.999)
    return f"{time / UNITS[unit]:.3g} {unit}"


class Bar(NamedTuple):
    """A line of a table."""

    name: str
    other: str
    """The implementation compared with, if it differs between lines."""
    here: float
    """Seconds."""
    there: float
    ratio: str
    """As in the table: that of the times before they were rounded."""


def bars(rows: list[Bar], theirs: str, text: str) -> Picture:
    """Draw two bars a row, our time and another, on a logarithmic axis."""
    low = 10 ** math.floor(math.log10(min(row.here for row in rows) / 2))
    high = 10 ** math.ceil(math.log10(max(row.there for row in rows)))
    scale = WIDTH / math.log10(high / low)
    picture = Picture(LEFT + WIDTH + 84, 44 + LINE * len(rows) + 32, text)
    picture.legend(16, 20, trained="fastcollate", masked=theirs)
    bottom = 44 + LINE * len(rows)
    for power in range(round(math.log10(high / low)) + 1):
        x = LEFT + power * scale
        picture.line(x, 40, x, bottom, "grid")
        picture.write(x, bottom + 14, in_words(low * 10**power), "small dim", "middle")
    for number, row in enumerate(rows):
        y = 62 + LINE * number
        name = f"{row.name} ({row.other})" if row.other else row.name
        picture.write(LEFT, y - 10, name, "small")
        for place, kind, time in ((y, "trained", row.here), (y + 16, "masked", row.there)):
            picture.box(LEFT, place, math.log10(time / low) * scale, 17, kind)
        end = LEFT + math.log10(row.there / low) * scale
        picture.write(end + 6, y + 24, row.ratio, "small bold")
    return picture


def batches() -> Picture:
    """Draw the times of batches."""
    rows = []
    for name, pool, _, numpy, _ in table("| rows are | pool |"):
        ratio = re.search(r"\(([\d.]+x)", pool)
        assert ratio, pool
        rows.append(Bar(name.partition(" (")[0], "", seconds(pool), seconds(numpy), ratio[1]))
    return bars(
        rows, "vectorised NumPy",
        "Times of a batch from each kind of rows, of fastcollate and of NumPy, as in the table.",
    )  # fmt: skip


def planning() -> Picture:
    """Draw the times of packing and balancing."""
    rows = []
    for name, here, there, ratio in table("| | here | there | |"):
        other = re.split(r",? [\d,.]+ (?:s|ms)\b", there)[0]
        name = name.replace(" log-normal lengths in bins of 16,384 tokens", " lengths")
        rows.append(Bar(name, other, seconds(here), seconds(there), ratio))
    return bars(
        rows, "framework",
        "Times of packing and balancing, of fastcollate and of each framework, as in the table.",
    )  # fmt: skip


def draw() -> dict[str, Picture]:
    """Draw the plots."""
    return {"speed_batches": batches(), "speed_planning": planning()}
