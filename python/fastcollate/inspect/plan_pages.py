"""Plans as HTML: their tables, and plots of the fill of bins and the load of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fastcollate.inspect import markup

if TYPE_CHECKING:
    from fastcollate.plan.merge_report import MergeReport
    from fastcollate.plan.tree_report import TreeReport
    from fastcollate.rows.lengths import Integers

SHOWN = 8
"""Number of breaks, mini-batches or shared runs that are shown."""

SHOWN_LINES = 60
"""Number of lines of a drawn tree that are shown."""

MOST_COLUMNS = 160
"""Largest number of columns of a plot."""


def merge_page(title: str, report: MergeReport) -> str:
    """Return the savings of merging, and the first breaks."""
    sizes = [
        ("rows", report.num_turns, report.num_rows),
        ("tokens", report.tokens_before, report.tokens_after),
        ("with padding", report.padded_tokens_before, report.padded_tokens_after),
    ]
    counts = np.bincount(report.rows_per_trajectory)
    spread = [(f"{rows:,}", f"{n:,}") for rows, n in enumerate(counts.tolist()) if n]
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in report.breaks.kinds)
    breaks = [text_block(broken) for broken in report.breaks[:SHOWN]]
    return markup.page(
        markup.text("p", title, "title"),
        _before_after(sizes),
        markup.table(("rows of a trajectory", "trajectories"), spread),
        markup.text("p", f"breaks: {len(report.breaks):,}{f' ({kinds})' if kinds else ''}"),
        *breaks,
        more(len(report.breaks) - len(breaks), "plan.report.breaks"),
        *([_draw_tree(report)] if breaks else []),
    )


def _draw_tree(report: MergeReport) -> str:
    """Return the rows of the trajectory with the most breaks."""
    lines = str(report.tree()).splitlines()
    more = len(lines) - SHOWN_LINES
    lines = [*lines[:SHOWN_LINES], *([f"... {more:,} more lines"] if more > 0 else [])]
    return markup.fold("the trajectory with the most breaks", text_block("\n".join(lines)))


def text_page(content: object) -> str:
    """Return text as a page."""
    return markup.page(text_block(content))


def text_block(content: object) -> str:
    """Return text as a block."""
    return markup.text("div", content, "tokens")


def bins_page(title: str, cells: Sequence[Sequence[str]], loads: Integers, capacity: int) -> str:
    """Return the contents and fill of bins."""
    fullest = f"tokens of each bin, the fullest first, of {capacity:,}"
    plot = markup.columns(drawn(-np.sort(-loads)), max(capacity, int(loads.max(initial=0))))
    return markup.page(
        markup.text("p", title, "title"),
        markup.table(cells[0], cells[1:]),
        *([plot, markup.text("p", fullest, "note")] if plot else []),
    )


def tree_page(title: str, report: TreeReport) -> str:
    """Return the savings of sharing, and the rows that share most."""
    sizes = [
        ("tokens", report.tokens_before, report.tokens_after),
        ("attention pairs", report.attention_pairs_before, report.attention_pairs_after),
    ]
    shape = (report.num_trees, report.depth, report.forks)
    largest = report.largest(SHOWN)
    return markup.page(
        markup.text("p", title, "title"),
        _before_after(sizes),
        markup.table(
            ("trees", "nodes of the longest way", "forks"), [[f"{number:,}" for number in shape]]
        ),
        *(markup.text("div", tokens, "tokens") for tokens in largest),
        more(report.num_shared - len(largest), "plan.report.shared"),
    )


def _before_after(sizes: Sequence[tuple[str, int, int]]) -> str:
    """Return a table of sizes before and after, and their ratios."""
    rows = [
        (name, f"{before:,}", f"{after:,}", f"{before / after:.1f}x fewer" if after else "")
        for name, before, after in sizes
    ]
    return markup.table(("", "before", "after", ""), rows)


def more(count: int, place: str) -> str:
    """Return a note on items that are not shown, if there are any."""
    return markup.text("p", f"and {count:,} more in {place}", "note") if count > 0 else ""


def drawn(values: Integers) -> list[float]:
    """Return the values, thinned evenly if they exceed the columns of a plot."""
    if len(values) > MOST_COLUMNS:
        values = values[np.linspace(0, len(values) - 1, MOST_COLUMNS).astype(np.int64)]
    return [float(value) for value in values.tolist()]
