"""Forecasts of the compute and idle time of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastcollate.common.arguments import tally
from fastcollate.common.text import table_of
from fastcollate.rows.lengths import Integers

Sync: TypeAlias = Literal["step", "micro_batch"]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Forecast:
    """Compute and idle time of each rank in each mini-batch, in the unit of the costs.

    Made by :meth:`StepPlan.forecast` and :meth:`TreeBins.forecast`.

    Parameters
    ----------
    times
        For each mini-batch, the compute time of each micro-batch, float64 (dp_size,
        micro-batches).
    sync
        ``"step"``: ranks synchronize once per mini-batch; ``"micro_batch"``: after every
        micro-batch.
    bounds
        Lower bound of the time of each mini-batch under any plan, float64 (mini-batches,): the mean
        of all ranks or, if larger, the costliest row alone, without padding.
    tokens, padding, duplicates
        Tokens of each mini-batch's rows, other positions, and shared tokens computed again, int64
        (mini-batches,).
    """

    times: tuple[Floats, ...]
    sync: Sync
    bounds: Floats
    tokens: Integers
    padding: Integers
    duplicates: Integers

    @property
    def rank_times(self) -> Floats:
        """Compute time of each rank, float64 (mini-batches, dp_size)."""
        return np.array([times.sum(1) for times in self.times])

    @property
    def step_times(self) -> Floats:
        """Time of each mini-batch, float64 (mini-batches,)."""
        if self.sync == "step":
            return np.array([times.sum(1).max() for times in self.times])
        return np.array([times.max(0).sum() for times in self.times])

    @property
    def waits(self) -> Floats:
        """Idle share of each rank's time, float64 (mini-batches, dp_size)."""
        steps = self.step_times[:, None]
        return 1 - _ratio(self.rank_times, np.broadcast_to(steps, self.rank_times.shape))

    @property
    def time(self) -> float:
        """Time of all mini-batches."""
        return float(self.step_times.sum())

    @property
    def bound(self) -> float:
        """Lower bound of the time of all mini-batches."""
        return float(self.bounds.sum())

    @property
    def idle(self) -> float:
        """Idle share of the time of all ranks."""
        return 1 - float(_ratio(self.rank_times.mean(1).sum(), np.array(self.time)))

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics to log."""
        positions = int(self.tokens.sum() + self.padding.sum())
        return {
            "forecast/time": self.time,
            "forecast/bound": self.bound,
            "forecast/idle": self.idle,
            "forecast/max_wait": float(self.waits.max(initial=0.0)),
            "forecast/tokens": float(self.tokens.sum()),
            "forecast/padding": float(self.padding.sum()),
            "forecast/padding_share": self.padding.sum() / positions if positions else 0.0,
            "forecast/duplicates": float(self.duplicates.sum()),
        }

    def describe(self) -> str:
        """Return a table of the mini-batches.

        Times are of the fastest and slowest rank; the bound is a share of the time.
        """
        cells = [["mini-batch", "time", "ranks", "waiting", "bound", "padding", "duplicates"]]
        values = zip(self.step_times, self.rank_times, self.waits.mean(1), self.bounds, strict=True)
        for index, (time, ranks, wait, bound) in enumerate(values):
            least, most = f"{ranks.min():.4g}", f"{ranks.max():.4g}"
            cells.append(
                [
                    str(index),
                    f"{time:.4g}",
                    least if least == most else f"{least} to {most}",
                    f"{wait:.1%}",
                    f"{bound / time:.1%}" if time > 0 else "100.0%",
                    f"{self.padding[index]:,}",
                    f"{self.duplicates[index]:,}",
                ]
            )
        return "\n".join((repr(self), table_of(cells)))

    def plot(self, axes: Any = None, mini_batch: int = 0) -> Any:
        """Plot a bar for each rank and micro-batch of a mini-batch; gaps are idle time.

        Parameters
        ----------
        axes
            The matplotlib axes to draw on; new ones by default.
        mini_batch
            Index of the mini-batch to plot.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        ImportError
            matplotlib is not installed.
        """
        axes = new_axes() if axes is None else axes
        times = self.times[mini_batch]
        ends = times.max(0) if self.sync == "micro_batch" else times
        starts = np.broadcast_to(np.cumsum(ends, -1) - ends, times.shape)
        for rank, (left, widths) in enumerate(zip(starts, times, strict=True)):
            colors = [f"C{index % 10}" for index in range(len(widths))]
            axes.barh(rank, widths, left=left, color=colors, edgecolor="white", linewidth=0.5)
        axes.axvline(
            self.step_times[mini_batch], color="black", linewidth=1, label="all ranks done"
        )
        axes.axvline(self.bounds[mini_batch], color="black", linestyle=":", label="bound")
        axes.set(xlabel="predicted time", ylabel="rank", title=f"mini-batch {mini_batch}")
        axes.invert_yaxis()
        axes.legend()
        return axes

    def __repr__(self) -> str:
        mini_batches = tally(len(self.times), "mini-batch", "mini-batches")
        return (
            f"Forecast: {mini_batches} in {self.time:.4g}, of which ranks wait {self.idle:.1%}; "
            f"no plan takes less than {self.bound:.4g}"
        )


def _ratio(numerator: Any, denominator: Floats) -> Floats:
    """Divide where the denominator is above 0; 1 elsewhere."""
    out = np.ones(denominator.shape)
    np.divide(numerator, denominator, out=out, where=denominator > 0)
    return out


def new_axes() -> Any:
    """Return the axes of a new matplotlib figure."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "plots need matplotlib, which is not installed; install it, or use describe()"
        ) from error
    return pyplot.subplots(layout="constrained")[1]
