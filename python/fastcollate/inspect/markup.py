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
.fastcollate .bar{display:flex;height:.9em;max-width:40em;border:solid;border-width:0 1px}
.fastcollate .filled{background:rgba(56,139,253,.6)}
.fastcollate .bar>*{padding:0;border:0;border-radius:0;min-width:1px}
.fastcollate summary{cursor:pointer;opacity:.7}
"""
"""Translucent colours, for light and dark pages."""


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


def fold(summary: str, content: str) -> str:
    """Return content that is shown when its summary is clicked."""
    return element("details", text("summary", summary) + content)
