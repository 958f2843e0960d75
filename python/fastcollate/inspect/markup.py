"""Small self-contained HTML: escaped text, tables, bars, and the styles of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

CSS = """
.fastcollate{font:13px/1.5 system-ui,sans-serif;color:inherit;max-width:100%;overflow-wrap:anywhere}
.fastcollate p{margin:.3em 0}
.fastcollate .title{font-weight:600}
.fastcollate .part{margin-left:1em}
.fastcollate .note{opacity:.7}
.fastcollate .tokens,.fastcollate .text{font:12px/1.7 ui-monospace,Menlo,Consolas,monospace;
white-space:pre-wrap;border-left:2px solid rgba(128,128,128,.4);padding-left:.7em}
.fastcollate .tokens{max-width:100ch}
.fastcollate .tokens div{padding-left:4ch;text-indent:-4ch}
.fastcollate .text{white-space:pre;overflow-x:auto;margin-bottom:.7em}
.fastcollate .prompt{background:rgba(56,139,253,.18)}
.fastcollate .trained{background:rgba(46,160,67,.36);font-weight:600;border-bottom:2px solid}
.fastcollate .masked{background:rgba(210,153,34,.28);font-style:italic;border-bottom:1px dotted}
.fastcollate .padding{background:repeating-linear-gradient(
-45deg,rgba(128,128,128,.3) 0 3px,transparent 3px 6px)}
.fastcollate .folded{opacity:.7}
.fastcollate table{border-collapse:collapse;margin:.5em 0;font-variant-numeric:tabular-nums;
display:block;overflow-x:auto}
.fastcollate td,.fastcollate th{padding:.1em .7em;text-align:right;background:none;
white-space:nowrap;border-bottom:1px solid rgba(128,128,128,.3)}
.fastcollate td:first-child,.fastcollate th:first-child{text-align:left;padding-left:0;
white-space:normal;min-width:9em}
.fastcollate th{white-space:normal;overflow-wrap:normal}
.fastcollate a{color:inherit}
.fastcollate .wide{width:min(40em,45vw)}
.fastcollate .bar{display:flex;height:.9em;max-width:40em;border:solid;border-width:0 1px}
.fastcollate .filled{background:rgba(56,139,253,.6)}
.fastcollate .bar>*{padding:0;border:0;border-radius:0;min-width:1px}
.fastcollate svg{display:block;max-width:100%;height:auto;fill:currentColor;opacity:.8}
.fastcollate svg text{font-size:11px}
.fastcollate svg rect{fill:rgb(56,139,253)}
.fastcollate svg path{fill:none;stroke:currentColor;opacity:.5}
.fastcollate svg .mark{stroke-dasharray:3 3;opacity:.9}
.fastcollate summary{cursor:pointer;opacity:.7}
"""
"""Translucent colours, for light and dark pages."""

PLOT_LEFT, PLOT_TOP, PLOT_WIDTH, PLOT_HEIGHT = 56, 18, 290, 110
"""Margins and size of a column plot, in pixels."""


def page(*parts: str) -> str:
    """Join parts of a view, with its styles."""
    style = CSS.replace("\n", "")
    return f'<div class="fastcollate"><style>{style}</style>{"".join(parts)}</div>'


def text_page(content: str) -> str:
    """Return text as a page, with its tables intact where there is no width."""
    return page(text("div", content, "text"))


def element(tag: str, content: str, kind: str = "") -> str:
    """Return an element; `content` is HTML."""
    attribute = f' class="{kind}"' if kind else ""
    return f"<{tag}{attribute}>{content}</{tag}>"


def text(tag: str, content: object, kind: str = "") -> str:
    """Return an element with a text."""
    return element(tag, escape(str(content)), kind)


def table(
    head: Sequence[object], rows: Iterable[Sequence[object]], bars: Sequence[str] = ()
) -> str:
    """Return a table of texts, each row with a bar at its end if there are some."""
    lines = ["".join(text("th", cell) for cell in head)]
    lines += ["".join(text("td", cell) for cell in row) for row in rows]
    for at, bar in enumerate(bars):
        lines[at + 1] += element("td", bar, "wide")
    return element("table", "".join(element("tr", line) for line in lines))


def shares(parts: Iterable[tuple[str, int]]) -> str:
    """Return a bar divided by the number of positions of each kind or other name."""
    pieces = [
        f'<span class="{kind}" style="flex:{count} 1 0" title="{kind} {count:,}"></span>'
        for kind, count in parts
        if count > 0
    ]
    return element("div", "".join(pieces), "bar")


def short(number: float) -> str:
    """Format a number of tokens."""
    for size, unit in ((1e9, " G"), (1e6, " M")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def columns(
    values: Sequence[float],
    titles: Sequence[str],
    ticks: Sequence[str],
    most: float | None = None,
    marks: Iterable[tuple[str, float]] = (),
) -> str:
    """Return a column plot from 0 to `most`, or to the largest value; titles are shown on hover.

    `ticks` are labels from the first to the last column; `marks` are named lines at fractions of
    the width.
    """
    if max(values, default=0) <= 0:
        return ""
    most = most or max(values)
    each = min(PLOT_WIDTH / len(values), 24.0)
    bars = "".join(
        f'<rect x="{PLOT_LEFT + index * each:.1f}" y="{PLOT_TOP + PLOT_HEIGHT - height:.1f}" '
        f'width="{each * 0.85:.1f}" height="{height:.1f}"><title>{escape(title)}</title></rect>'
        for index, (value, title) in enumerate(zip(values, titles, strict=True))
        # A column of a single item among thousands is still seen.
        for height in [max(PLOT_HEIGHT * value / most, 0.8 if value > 0 else 0.0)]
    )
    right, bottom = PLOT_LEFT + each * len(values), PLOT_TOP + PLOT_HEIGHT
    labels: list[tuple[float, float, str, str]] = [
        (PLOT_LEFT - 5, PLOT_TOP + 4, "end", short(most)),
        (PLOT_LEFT - 5, bottom, "end", "0"),
    ]
    for at, tick in enumerate(ticks):
        anchor = "middle" if 0 < at < len(ticks) - 1 else ("end" if at else "start")
        x = PLOT_LEFT + (right - PLOT_LEFT) * at / (len(ticks) - 1)
        labels.append((x, bottom + 13, anchor, tick))
    lines = ""
    for at, (name, fraction) in enumerate(marks):
        x = PLOT_LEFT + (right - PLOT_LEFT) * min(fraction, 1.0)
        lines += f'<path class="mark" d="M{x:.1f} {PLOT_TOP - 4}V{bottom}"/>'
        is_left = fraction > 0.9 or (at == 0 and fraction > 0.2)
        labels.append((x, PLOT_TOP - 7, "end" if is_left else "start", name))
    drawn = "".join(
        f'<text x="{x:.0f}" y="{y}" text-anchor="{anchor}">{escape(label)}</text>'
        for x, y, anchor, label in labels
    )
    axes = f'<path d="M{PLOT_LEFT} {PLOT_TOP}V{bottom}H{right:.0f}"/>'
    size = f"{max(right, 120):.0f} {bottom + 18}"
    width, height = size.split()
    return (
        f'<svg role="img" width="{width}" height="{height}" viewBox="0 0 {size}">'
        f"{axes}{bars}{lines}{drawn}</svg>"
    )


def fold(summary: str, content: str) -> str:
    """Return content that is shown when its summary is clicked."""
    return element("details", text("summary", summary) + content)
