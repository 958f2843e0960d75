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


def panels(name: str, count: int, **options: Any) -> tuple[Any, list[Any]]:
    """Make a figure with `count` panels in a row; `options` are those of `subplots`."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text, not outlines
    matplotlib.rcParams["svg.hashsalt"] = name
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(1, count, figsize=(10, 4), squeeze=False, **options)
    for panel in grid[0]:
        panel.grid(alpha=0.3)
    return figure, list(grid[0])


def save(figure: Any, legend_of: Any, target: Path | None) -> None:
    """Put the legend of a panel next to the last one; write the figure to a file, if given."""
    from matplotlib import pyplot

    panel = figure.axes[-1]
    handles, labels = legend_of.get_legend_handles_labels()
    panel.legend(handles, labels, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.tight_layout()
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    if target is not None:
        target.write_text(readable_on_dark(drawn.getvalue()), "utf-8")


def readable_on_dark(svg: str) -> str:
    """Add colours for readers whose system is dark."""
    return svg.replace("</style>", f"{DARK}</style>", 1)
