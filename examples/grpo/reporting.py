"""Output of a run: a progress bar, a table and a plot."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from grpo.options import Options

T = TypeVar("T")

SMOOTHED = 10
"""Steps that are averaged: the reward of a single one is mostly luck."""


@dataclass
class Report:
    """The figures of a step."""

    reward: float
    """The mean of all games."""
    losses: list[float]
    """One per mini-batch, of all ranks together."""
    turns: int
    rows: int
    """The number of rows built from the turns."""
    positions: int
    """The number of positions in the training input, with padding, on all ranks together."""
    seconds: dict[str, float]
    """Time of each part, by its name, on the first rank."""


class Clock:
    """Adds up times."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, what: str) -> Iterator[None]:
        """Measure a block."""
        start = time.perf_counter()
        yield
        self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - start

    def iterate(self, what: str, items: Iterable[T]) -> Iterator[T]:
        """Measure the time to get items."""
        iterator = iter(items)
        while True:
            try:
                with self.measure(what):
                    item = next(iterator)
            except StopIteration:
                return
            yield item


class ProgressBar:
    """Shows the progress of a run, in steps or in seconds, and its reward."""

    def __init__(self, options: Options, is_shown: bool = True) -> None:
        self._counts_seconds = math.isfinite(options.seconds)
        self._rewards: list[float] = []
        self._start = time.monotonic()
        self._bar = Progress(
            TextColumn("step {task.fields[step]}, reward {task.fields[reward]:.2f}"),
            BarColumn(),
            TimeElapsedColumn(),
            disable=not is_shown,
        )
        total = options.seconds if self._counts_seconds else options.steps
        self._task = self._bar.add_task("", total=total, step=0, reward=0.0)

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._start

    def show(self, report: Report) -> None:
        """Count a step."""
        self._rewards.append(report.reward)
        step, reward = len(self._rewards), np.mean(self._rewards[-SMOOTHED:])
        completed = self.elapsed if self._counts_seconds else step
        self._bar.update(self._task, completed=completed, step=step, reward=reward)

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def table_of(reports: Sequence[Report]) -> Table:
    """Sum a run up."""
    table = Table(title=f"{len(reports):,} steps", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    rewards = [report.reward for report in reports]
    first, last = np.mean(rewards[:SMOOTHED]), np.mean(rewards[-SMOOTHED:])
    table.add_row(f"reward of the first and last {SMOOTHED} steps", f"{first:.2f} to {last:.2f}")
    turns, rows, positions = (
        sum(getattr(report, name) for report in reports) / len(reports)
        for name in ("turns", "rows", "positions")
    )
    table.add_row("turns of a step, and the rows they make", f"{turns:,.0f} to {rows:,.0f}")
    table.add_row("positions that the model learns from", f"{positions:,.0f}")
    for what in reports[0].seconds:
        mean = np.mean([report.seconds[what] for report in reports])
        table.add_row(f"{what}, milliseconds a step", f"{mean * 1e3:,.1f}")
    return table


def check_plot(path: Path) -> None:
    """Raise the errors of `plot` before the run."""
    from matplotlib.figure import Figure

    Figure().savefig(io.BytesIO(), format=path.suffix[1:] or None)
    is_new = not path.exists()
    with path.open("ab"):
        pass
    if is_new:
        path.unlink()


def plot(reports: Sequence[Report], path: Path) -> None:
    """Draw reward and time over steps (needs matplotlib)."""
    from matplotlib.figure import Figure

    steps = np.arange(1, len(reports) + 1)
    rewards = [report.reward for report in reports]
    figure = Figure(figsize=(8, 7), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot(steps, rewards, alpha=0.3)
    above.plot(steps, smoothed(rewards), color="C0")
    title = f"What a step's games earn, and the mean of {SMOOTHED} steps"
    above.set(title=title, ylabel="reward (1: the first guess is right)", ylim=(0, None))
    for what in reports[0].seconds:
        times = [report.seconds[what] * 1e3 for report in reports]
        below.plot(steps, smoothed(times), label=what)
    title = f"What a step's time goes into, as the mean of {SMOOTHED} steps"
    below.set(title=title, xlabel="step", ylabel="milliseconds", yscale="log")
    figure.legend(loc="outside lower center", ncols=len(reports[0].seconds))
    figure.savefig(path, dpi=120)


def smoothed(values: Sequence[float]) -> NDArray[np.float64]:
    """Return the mean of each value and of those before it."""
    sums = np.cumsum(np.pad(values, (SMOOTHED, 0)))
    counts = np.minimum(np.arange(1, len(values) + 1), SMOOTHED)
    means: NDArray[np.float64] = (sums[SMOOTHED:] - sums[:-SMOOTHED]) / counts
    return means
