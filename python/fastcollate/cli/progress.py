"""Progress of reading, with the remaining time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")


def with_progress(items: Iterable[tuple[T, float]], what: str) -> Iterator[T]:
    """Yield items, and draw the fraction that comes with each if there is a terminal."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=1.0)
        for item, share in items:
            yield item
            bar.update(task, completed=share)
