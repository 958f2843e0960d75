"""Column plots of a report: SVG, with numbers shown on hover."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fastcollate.cli.reporting.advice import is_far
from fastcollate.cli.reporting.outcomes import BARS, LOWEST_LOGPROB, usual_range
from fastcollate.cli.reporting.wording import decimal, short, span
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

LEFT, RIGHT, TOP, WIDTH, HEIGHT = 56, 14, 18, 276, 110
"""Margins and size of a plot, in pixels."""

LEAST_SEEN = 0.8
"""Height of the column of a single item among thousands."""

LONG = 5
"""The last column of a histogram holds all above, if the largest length is so many times p95."""

LEAST_APART = 0.15
"""Fraction of the width between two marks, whose names would overlap if they were nearer."""

FEW = 10
"""Distinct rewards that are listed; more are plotted."""

LEAST_SHOWN = 0.001
"""Share of log-probabilities from which on the plot begins."""


def columns(
    values: Sequence[float],
    titles: Sequence[str],
    ticks: Iterable[tuple[float, str]],
    most: float | None = None,
    marks: Iterable[tuple[str, float]] = (),
) -> str:
    """Return a column plot from 0 to `most`, or to the largest value.

    `ticks` are labels below fractions of the width, `marks` named lines at them.
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
    for fraction, tick in ticks:
        anchor = {0.0: "start", 1.0: "end"}.get(fraction, "middle")
        drawn.append(_label(LEFT + (right - LEFT) * fraction, bottom + 13, anchor, tick))
    for at, (name, fraction) in enumerate(marks):
        x = LEFT + (right - LEFT) * min(fraction, 1.0)
        is_left = fraction > 0.9 or (at == 0 and fraction > 0.2)
        drawn.append(f'<path class="mark" d="M{x:.1f} {TOP - 4}V{bottom}"/>')
        drawn.append(_label(x, TOP - 7, "end" if is_left else "start", name))
    width, height = round(max(right, 120)) + RIGHT, bottom + 18
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg role="img" {size}>{"".join(drawn)}</svg>'


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return up to five round numbers between two, by fractions of the way."""
    least = max(high - low, 1e-9) / 4
    size = 10.0 ** np.floor(np.log10(least))
    step = next(size * times for times in (1, 2, 2.5, 5, 10) if size * times >= least * 0.999)
    numbers = step * np.arange(np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9) + 1)
    return [((one - low) / (high - low), short(one + 0.0)) for one in numbers.tolist()]


def _label(x: float, y: float, anchor: str, content: str) -> str:
    return f'<text x="{x:.0f}" y="{y}" text-anchor="{anchor}">{escape(content)}</text>'


def histogram(lens: Integers, what: str) -> str:
    """Return a histogram of at least one length, with three of its numbers.

    `what` is an item that is counted, as "prompt".
    """
    middle, p95 = np.percentile(lens, [50, 95]).tolist()
    most = int(lens.max())
    is_clipped = most > LONG * p95 > 0
    end = 2 * int(p95) if is_clipped else most
    step = end // BARS + 1  # whole, so that all columns hold equally many integers
    edges = np.arange(0, end + step + 1, step)
    counts, _ = np.histogram(np.minimum(lens, edges[-1] - 1), edges)
    titles = [
        f"{span(int(edge), int(edge) + step - 1)}: {tally(count, what)}"
        for edge, count in zip(edges, counts.tolist(), strict=False)
    ]
    end = int(edges[-1])
    ticks = _ticks(0, end)
    if is_clipped:
        titles[-1] = f"{int(edges[-2]):,} to {most:,}: {tally(int(counts[-1]), what)}"
        ticks = [*(one for one in ticks if one[0] < 0.8), (1.0, "and above")]
    marks = [("median", middle / end), ("p95", p95 / end)]
    if p95 - middle < LEAST_APART * end:
        marks.pop()
    line = f"tokens: median {middle:,.10g}, p95 {p95:,.0f}, max {most:,}"
    return columns(counts.tolist(), titles, ticks, marks=marks) + text("p", line, "note")


def of_rewards(rewards: NDArray[np.float64], what: str) -> str:
    """Return a histogram of rewards, or a table of few distinct ones."""
    distinct, number = np.unique(rewards.astype(np.float32), return_counts=True)
    if len(distinct) <= min(FEW, max(len(rewards) // 2, 3)):
        shares = number / len(rewards)
        rows = zip(distinct.tolist(), number.tolist(), shares.tolist(), strict=True)
        lines = [(decimal(value), f"{count:,}", f"{share:.1%}") for value, count, share in rows]
        return table(("reward", what, "share"), lines)
    usual = usual_range(rewards)
    low, high = (
        end if is_far(reward, usual) else reward
        for end, reward in zip(usual, (float(rewards.min()), float(rewards.max())), strict=True)
    )
    are_whole = high - low < BARS and bool((distinct == np.floor(distinct)).all())
    bins = np.arange(low, high + 2) - 0.5 if are_whole else np.linspace(low, high, BARS // 2 + 1)
    counts, edges = np.histogram(np.clip(rewards, low, high), bins)
    names = [
        f"{low + at:g}" if are_whole else f"{decimal(start)} to {decimal(end)}"
        for at, (start, end) in enumerate(pairwise(edges.tolist()))
    ]
    ticks = _ticks(float(edges[0]), float(edges[-1]))
    if low > distinct[0]:
        names[0] += f", and below (from {decimal(float(distinct[0]))})"
        ticks = [(0.0, "and below"), *(one for one in ticks if one[0] > 0.25)]
    if high < distinct[-1]:
        names[-1] += f", and above (to {decimal(float(distinct[-1]))})"
        ticks = [*(one for one in ticks if one[0] < 0.75), (1.0, "and above")]
    noun = what.removesuffix("s") if what != "trajectories" else "trajectory"
    titles = [
        f"{name}: {tally(count, noun, what)}"
        for name, count in zip(names, counts.tolist(), strict=True)
    ]
    return columns(counts.tolist(), titles, ticks)


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
    below, last = (0.0, f"below {ends[0][1]:g}"), (1.0, "0 and above" if has_positive else "0")
    between = [one for one in _ticks(ends[0][0], 0) if 0.3 < one[0] < 0.7]
    return columns(counts, titles, (below, *between, last))


def of_lags(lags: Sequence[tuple[int, int]]) -> str:
    """Return the plot of tokens by the number of versions that they are behind the newest."""
    behind, tokens = np.array(lags).T
    most = int(behind.max())
    edges = np.arange(0, most + 2, most // BARS + 1)
    edges[-1] = most + 1
    counts, _ = np.histogram(behind, edges, weights=tokens)
    titles = [
        f"{span(start, end - 1)} behind: {tally(int(count), 'token')}"
        for (start, end), count in zip(pairwise(edges.tolist()), counts.tolist(), strict=True)
    ]
    return columns(counts.tolist(), titles, _ticks(0, most + 1))
