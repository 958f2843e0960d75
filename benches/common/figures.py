"""Figures as SVG, with the same bytes for the same numbers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

# matplotlib's colours, by its style attributes.
DARK = """
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 !important }
  [style*="fill: #ffffff"] { fill: #1c2128 !important }
  [style*="stroke: #000000"] { stroke: #9da7b1 !important }
}
"""


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
