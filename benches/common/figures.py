"""Figures as SVG, with the same bytes for the same numbers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

# matplotlib's colours, by its style attributes; on dark, lines and points have a contrast above 6.
LINES = {
    "#1f77b4": "#58a6ff",
    "#d62728": "#ff7b72",
    "#2ca02c": "#56d364",
    "#ff7f0e": "#ffa657",
    "#9467bd": "#d2a8ff",
    "#808080": "#b1bac4",
}
RULES = [
    "text { fill: #e6edf3 !important }",
    '[style*="fill: #ffffff"] { fill: #1c2128 !important }',
    '[style*="stroke: #000000"] { stroke: #9da7b1 !important }',
    '[style*="stroke-opacity: 0.5"] { stroke-opacity: 0.8 !important }',
    *(
        f'[style*="{part}: {line}"] {{ {part}: {on_dark} !important }}'
        for line, on_dark in LINES.items()
        for part in ("fill", "stroke")
    ),
]
DARK = "\n@media (prefers-color-scheme: dark) {\n  " + "\n  ".join(RULES) + "\n}\n"


def panels(name: str, count: int) -> tuple[Any, list[Any]]:
    """Make a figure of `count` panels, one above the other: a phone shows its text readably."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text, not outlines
    matplotlib.rcParams["svg.hashsalt"] = name
    matplotlib.rcParams["font.size"] = 11
    from matplotlib import pyplot

    size = 6, 3.8 * count
    figure, grid = pyplot.subplots(count, squeeze=False, figsize=size, layout="constrained")
    for panel in grid.flat:
        panel.grid(alpha=0.3)
    return figure, list(grid.flat)


def save(figure: Any, legend_of: Any, target: Path | None) -> None:
    """Put the legend of a panel at the bottom; write the figure to a file, if given."""
    from matplotlib import pyplot

    handles, labels = legend_of.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    if target is not None:
        target.write_text(readable_on_dark(drawn.getvalue()), "utf-8")


def readable_on_dark(svg: str) -> str:
    """Add colours for readers whose system is dark."""
    return svg.replace("</style>", f"{DARK}</style>", 1)
