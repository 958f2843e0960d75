"""Column plots of a report: SVG, with numbers shown on hover."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fastcollate.cli.reporting.outcomes import BARS, LOWEST_LOGPROB
from fastcollate.cli.reporting.wording import short, span
from fastcollate.common.arguments import tally
from fastcollate.inspect.markup import table, text
from fastcollate.rows.lengths import Integers

STYLE = """
.fastcollate svg{display:block;max-width:100%;height:auto;fill:currentColor;opacity:.8}
.fastcollate svg text{font-size:11px}
.fastcollate svg rect{fill:rgb(56,139,253)}
.fastcollate svg path{fill:none;stroke:currentColor;opacity:.5}
.fastcollate svg .mark{stroke-dasharray:3 3;opacity:.9}
"""

LEFT, TOP, WIDTH, HEIGHT = 56, 18, 290, 110
"""Margins and size of a plot, in pixels."""

LEAST_SEEN = 0.8
"""Height of the column of a single item among thousands."""

FEW = 10
"""Distinct rewards that are listed; more are plotted."""

LEAST_SHOWN = 0.001
"""Share of log-probabilities from which on the plot begins."""


def columns(
    values: Sequence[float],
    titles: Sequence[str],
    ticks: Sequence[str],
    most: float | None = None,
    marks: Iterable[tuple[str, float]] = (),
) -> str:
    """Return a column plot from 0 to `most`, or to the largest value.

    `ticks` are labels from the first to the last column; `marks` are named lines at fractions of
    the width.
    """
    if max(values, default=0) <= 0:
        return ""
    most = most or max(values)
    each = min(WIDTH / len(values), 24.0)
    right, bottom = LEFT + each * len(values), TOP + HEIGHT
    drawn = [
        f'<path d="M{LEFT} {TOP}V{bottom}H{right:.0f}"/>',
        _label(LEFT - 5, TOP + 4, "end", short(most)),
        _label(LEFT - 5, bottom, "end", "0"),
    ]
    for index, (value, title) in enumerate(zip(values, titles, strict=True)):
        height = max(HEIGHT * value / most, LEAST_SEEN if value > 0 else 0.0)
        drawn.append(
            f'<rect x="{LEFT + index * each:.1f}" y="{bottom - height:.1f}" '
            f'width="{each * 0.85:.1f}" height="{height:.1f}"><title>{escape(title)}</title></rect>'
        )
    last = len(ticks) - 1
    for at, tick in enumerate(ticks):
        anchor = "start" if at == 0 else "end" if at == last else "middle"
        drawn.append(_label(LEFT + (right - LEFT) * at / last, bottom + 13, anchor, tick))
    for at, (name, fraction) in enumerate(marks):
        x = LEFT + (right - LEFT) * min(fraction, 1.0)
        is_left = fraction > 0.9 or (at == 0 and fraction > 0.2)
        drawn.append(f'<path class="mark" d="M{x:.1f} {TOP - 4}V{bottom}"/>')
        drawn.append(_label(x, TOP - 7, "end" if is_left else "start", name))
    width, height = round(max(right, 120)), bottom + 18
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg role="img" {size}>{"".join(drawn)}</svg>'


def _label(x: float, y: float, anchor: str, content: str) -> str:
    return f'<text x="{x:.0f}" y="{y}" text-anchor="{anchor}">{escape(content)}</text>'


def histogram(lens: Integers, what: str) -> str:
    """Return a histogram of at least one length, with three of its numbers.

    `what` is an item that is counted, as "prompt".
    """
    most = int(lens.max())
    step = most // BARS + 1  # whole, so that all columns hold equally many integers
    counts, edges = np.histogram(lens, np.arange(0, most + step + 1, step))
    titles = [
        f"{span(int(edge), int(edge) + step - 1)}: {tally(count, what)}"
        for edge, count in zip(edges, counts.tolist(), strict=False)
    ]
    middle, p95 = np.percentile(lens, [50, 95]).tolist()
    end = float(edges[-1])
    ticks = [f"{end * part / 4:,.0f}" for part in range(5)]
    marks = ("median", middle / end), ("p95", p95 / end)
    line = f"tokens: median {middle:,.0f}, p95 {p95:,.0f}, max {most:,}"
    return columns(counts.tolist(), titles, ticks, marks=marks) + text("p", line, "note")


def of_rewards(rewards: NDArray[np.float64], what: str) -> str:
    """Return a histogram of rewards, or a table of few distinct ones."""
    distinct, number = np.unique(rewards, return_counts=True)
    if len(distinct) <= min(FEW, max(len(rewards) // 2, 3)):
        shares = number / len(rewards)
        rows = zip(distinct.tolist(), number.tolist(), shares.tolist(), strict=True)
        lines = [(f"{value:.4g}", f"{count:,}", f"{share:.1%}") for value, count, share in rows]
        return table(("reward", what, "share"), lines)
    counts, edges = np.histogram(rewards, BARS // 2)
    titles = [
        f"{low:.3g} to {high:.3g}: {count:,} {what}"
        for (low, high), count in zip(pairwise(edges.tolist()), counts.tolist(), strict=True)
    ]
    return columns(counts.tolist(), titles, (f"{edges[0]:.3g}", f"{edges[-1]:.3g}"))


def of_logprobs(bars: NDArray[np.int64], has_positive: bool) -> str:
    """Return the plot of tokens by log-probability, of which `bars` go down from 0."""
    bars, edges = bars[::-1], np.linspace(LOWEST_LOGPROB, 0, BARS + 1)
    first = int(np.searchsorted(np.cumsum(bars), LEAST_SHOWN * bars.sum()))
    first = min(first, BARS * 3 // 4)
    counts = [int(bars[: first + 1].sum()), *bars[first + 1 :].tolist()]
    ends = list(pairwise(edges[first:].tolist()))
    titles = [
        f"{f'{low:g} to' if at else 'below'} {high:g}: {tally(count, 'token')}"
        for at, ((low, high), count) in enumerate(zip(ends, counts, strict=True))
    ]
    last = "0 and above" if has_positive else "0"
    ticks = (f"below {ends[0][1]:g}", f"{ends[len(ends) // 2][0]:g}", last)
    return columns(counts, titles, ticks)
