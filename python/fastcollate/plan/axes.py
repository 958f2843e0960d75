"""matplotlib axes for plots of plans."""

from __future__ import annotations

from typing import Any


def new_axes() -> Any:
    """Return the axes of a new matplotlib figure."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "plots need matplotlib, which is not installed; install it, or use describe()"
        ) from error
    return pyplot.subplots(layout="constrained")[1]
