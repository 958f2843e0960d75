"""Progress bars by tqdm or rich."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias

ProgressArgument: TypeAlias = 'bool | Literal["tqdm", "rich"]'


class Bar(Protocol):
    """A progress bar."""

    def advance(self, waited: float) -> None:
        """Count one more item; `waited` is the fraction of the time spent waiting so far."""

    def close(self) -> None:
        """Leave the bar as it is."""


class NoBar:
    """Shows nothing."""

    def advance(self, waited: float) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def bar_of(progress: Any, total: int | None, unit: str) -> Bar:
    """Return the bar for an argument ``progress``.

    Raises
    ------
    ImportError
        Its library is not installed.
    """
    if progress is False:
        return NoBar()
    if progress is True:
        try:
            return TqdmBar(total, unit)
        except ImportError:
            try:
                return RichBar(total, unit)
            except ImportError as error:
                raise ImportError(
                    "progress=True needs tqdm or rich: pip install tqdm, or leave progress out"
                ) from error
    bars: dict[str, Callable[[int | None, str], Bar]] = {"tqdm": TqdmBar, "rich": RichBar}
    if not isinstance(progress, str) or progress not in bars:
        raise ValueError(f"progress is {progress!r}; pass True, False, 'tqdm' or 'rich'")
    try:
        return bars[progress](total, unit)
    except ImportError as error:
        raise ImportError(
            f"progress={progress!r} needs {progress}: pip install {progress}"
        ) from error


class TqdmBar:
    """A bar by tqdm."""

    def __init__(self, total: int | None, unit: str) -> None:
        from tqdm import tqdm

        self._bar: Any = tqdm(total=total, unit=f" {unit}")

    def advance(self, waited: float) -> None:
        """Count one more item."""
        self._bar.set_postfix_str(f"waited {waited:.0%}", refresh=False)
        self._bar.update()

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()


class RichBar:
    """A bar by rich."""

    def __init__(self, total: int | None, unit: str) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(f"{unit}, waited {{task.fields[waited]:.0%}}"),
            TimeElapsedColumn(),
        )
        self._progress: Any = Progress(*columns)
        self._task = self._progress.add_task("", total=total, waited=0.0)
        self._progress.start()

    def advance(self, waited: float) -> None:
        """Count one more item."""
        self._progress.update(self._task, advance=1, waited=waited)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._progress.live.is_started:  # else it prints an empty line each time
            self._progress.stop()
