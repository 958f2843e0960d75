"""Plots as static SVG bars, with labels in HTML.

They stretch to the available width, so they hold no text except that shown on hover.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEIGHT = 120
BINS = 48

_PATTERN = (
    '<pattern id="hatch" width="8" height="4" patternUnits="userSpaceOnUse">'
    '<rect width="8" height="4" class="pad"/><rect width="8" height="1" class="hatch"/></pattern>'
)
DEFINITIONS = (
    f'<svg width="0" height="0" class="defs" aria-hidden="true"><defs>{_PATTERN}</defs></svg>'
)
"""SVG definitions that plots refer to; once per page."""


def histogram(values: NDArray[Any], what: str, unit: str = "tokens") -> str:
    """Draw a histogram of lengths, with the median, the 95th percentile and the longest.

    Parameters
    ----------
    values
        At least one non-negative number.
    what
        The items that are counted, as "prompts".
    unit
        The unit of the numbers; ``"%"`` for fractions.
    """
    most = float(values.max())
    if unit == "%":
        edges = np.linspace(0, max(1.0, most), BINS // 2 + 1)
    else:  # bins of integer width, so that all hold equally many integers
        step = int(most) // BINS + 1
        edges = np.arange(0, most + step + 1, step)
    counts, edges = np.histogram(values, edges)
    width = 1000 / len(counts)
    highest = max(int(counts.max()), 1)
    bars = []
    for index, count in enumerate(counts.tolist()):
        if count == 0:
            continue
        height = max(HEIGHT * count / highest, 1.5)
        low, high = edges[index : index + 2] - (0, 0 if unit == "%" else 1)
        lengths = [_number(edge, unit) for edge in dict.fromkeys((low, high))]
        tip = f"{' to '.join(lengths)}: {count:,} {what}"
        bars.append(
            f'<rect x="{index * width + 1:.1f}" y="{HEIGHT - height:.1f}" '
            f'width="{width - 2:.1f}" height="{height:.1f}" class="bar">{_tip(tip)}</rect>'
        )
    middle, p95 = np.percentile(values, [50, 95]).tolist()
    lines = [
        f'<line x1="{1000 * at / edges[-1]:.1f}" x2="{1000 * at / edges[-1]:.1f}" y1="0" '
        f'y2="{HEIGHT}" class="{name}" vector-effect="non-scaling-stroke"/>'
        for name, at in (("median", middle), ("p95", p95))
    ]
    end = _number(float(edges[-1]), unit)
    axis = f'<div class="axis"><span>0</span><span>{escape(end)}</span></div>'
    numbers = ", ".join(
        f"{name} {_number(at, unit)}"
        for name, at in (("median", middle), ("95 %", p95), ("longest", most))
    )
    if unit == "%":
        numbers = numbers.replace("longest", "fullest")
    label = f"Histogram of {what}: {numbers}"
    return (
        f'<div class="plot">{_svg(bars + lines, HEIGHT, label)}{axis}'
        f'<p class="note">{escape(numbers)}</p></div>'
    )


def share_bar(parts: Sequence[tuple[str, float, str]], total: float) -> str:
    """Draw parts of a total side by side: class, size and hover text of each."""
    at, drawn = 0.0, []
    for name, size, tip in parts:
        width = 1000 * size / total if total else 0.0
        fill = ' fill="url(#hatch)"' if name == "padding" else ""
        drawn.append(
            f'<rect x="{at:.1f}" y="0" width="{width:.1f}" height="16" class="{name}"{fill}>'
            f"{_tip(tip)}</rect>"
        )
        at += width
    return _svg(drawn, 16, "; ".join(tip for _, _, tip in parts), "strip")


def columns(values: Sequence[float], what: str) -> str:
    """Draw one column per rank, with the mean as a line."""
    most = max(values, default=0.0) or 1.0
    width = 1000 / max(len(values), 1)
    bars = []
    for rank, value in enumerate(values):
        height = 80 * value / most
        tip = f"rank {rank}: {_short(value)} {what}"
        bars.append(
            f'<rect x="{rank * width + 3:.1f}" y="{80 - height:.1f}" width="{width - 6:.1f}" '
            f'height="{height:.1f}" class="bar">{_tip(tip)}</rect>'
        )
    y = 80 - 80 * (sum(values) / max(len(values), 1)) / most
    bars.append(
        f'<line x1="0" x2="1000" y1="{y:.1f}" y2="{y:.1f}" class="median" '
        'vector-effect="non-scaling-stroke"/>'
    )
    label = f"{what} of {len(values)} ranks: {_short(min(values))} to {_short(max(values))}"
    return _svg(bars, 80, label)


def _svg(parts: Sequence[str], height: int, label: str, name: str = "bars") -> str:
    return (
        f'<svg class="{name}" viewBox="0 0 1000 {height}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def _tip(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _number(value: float, unit: str) -> str:
    return f"{value:.0%}" if unit == "%" else f"{value:,.0f}"


def _short(value: float) -> str:
    """Format a cost or a number of tokens."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
