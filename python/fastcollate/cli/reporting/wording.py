"""Words and numbers that several parts of a report share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def noun_of(figures: Mapping[str, Any]) -> str:
    """Return the word for the rows of a file: they are turns if trajectories are known."""
    return "row" if figures["trajectories"] is None else "turn"


def read_as(figures: Mapping[str, Any]) -> str:
    """Name the source and the columns that were read, and those that were not."""
    unread = f"; not read: {', '.join(figures['unread'])}" if figures["unread"] else ""
    return f"read as {figures['source']}{unread}"


def kind_of(found: Mapping[str, Any]) -> str:
    """Name the kind of a finding, with its number."""
    return f"{found['kind']} ({found['number']:,})"


def is_mistake(found: Mapping[str, Any]) -> bool:
    """Return True for a probable mistake. Equal rows are often right: samples of a prompt."""
    return bool(found["kind"] != "duplicate")


def span(least: int, most: int) -> str:
    """Return a range of integers."""
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def short(number: float) -> str:
    """Format a number of tokens, or of what a plot counts."""
    for size, unit in ((1e9, " G"), (1e6, " M")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
