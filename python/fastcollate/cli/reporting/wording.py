"""Words and numbers that several parts of a report share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastcollate.inspect.findings import counted, title_of

NO_REASON = "(null)"
"""The finish reason of responses without one."""


def noun_of(figures: Mapping[str, Any]) -> str:
    """Return the word for the rows of a file: they are turns if trajectories are known."""
    return "row" if figures["trajectories"] is None else "turn"


def read_as(figures: Mapping[str, Any]) -> str:
    """Name the source and the columns that were read, and those that were not."""
    unread = f"; not read: {', '.join(figures['unread'])}" if figures["unread"] else ""
    return f"read as {figures['source']}{unread}"


def line_of(found: Mapping[str, Any]) -> str:
    """Describe a kind of finding by its first example, and what to do about it."""
    return (
        f"{title_of(found['kind'], len(found['rows']))}: {found['examples'][0]}; {found['advice']}"
    )


def counted_findings(figures: Mapping[str, Any]) -> str:
    """Return the number of kinds of findings by severity."""
    return counted(found["severity"] for found in figures["findings"])


def batches_of(figures: Mapping[str, Any]) -> str:
    """Name the batches of rows that are compared."""
    rows = figures["batch_rows"]
    return "one batch" if rows >= figures["turns"] else f"batches of {rows:,}"


def span(least: int, most: int) -> str:
    """Return a range of integers."""
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def decimal(number: float, noise: float = 0.0) -> str:
    """Format a number of any size; up to `noise`, it is 0."""
    if abs(number) <= noise:
        return "0"
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def short(number: float) -> str:
    """Format a number of tokens, or of what a plot counts."""
    for size, unit in ((1e9, " G"), (1e6, " M")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"
