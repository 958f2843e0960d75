"""The figures of `docs/gpu.md`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.figures import panels, save
from common.report import Figures
from device.batches import size_text
from device.tables import COPIES, LOOPS, OF_BUS, PADDING, PINNING, WAITING, Results, percent

STYLES = {"without": ":", "prefetch": "-", "DataLoader": "--"}


def draw(results: Results, folder: Path) -> None:
    """Draw the measurements."""
    if cases := results.get("pinning"):
        _draw_rates(cases, PINNING, "built, GB/s", folder / "gpu_pinning.svg")
    if cases := results.get("copies"):
        _draw_rates(cases, ("bus", *COPIES), "copied, GB/s", folder / "gpu_copies.svg")
    if results.get("copied") and results.get("built"):
        _draw_waiting(results, folder / "gpu_waiting.svg")
    if cases := results.get("padding"):
        _draw_padding(cases, folder / "gpu_padding.svg")


def _draw_rates(cases: Sequence[Figures], names: Sequence[str], what: str, target: Path) -> None:
    figure, (panel,) = panels(target.stem, 1)
    for name in names:
        rates = [of["bytes"] / of[name] / 1e9 for of in cases]
        _draw_line(panel, cases, rates, name)
    if "bus" in names:
        goal = [OF_BUS * of["bytes"] / of["bus"] / 1e9 for of in cases]
        _draw_line(
            panel, cases, goal, f"goal: {percent(OF_BUS)} of the bus", linestyle=":", marker=""
        )
    panel.set_ylabel(what)
    panel.set_ylim(bottom=0)  # after all lines, since it ends automatic scaling
    save(figure, panel, target)


def _draw_padding(cases: Sequence[Figures], target: Path) -> None:
    figure, (panel,) = panels(target.stem, 1)
    for there, here in PADDING:
        _draw_line(panel, cases, [of[here] / of[there] for of in cases], there)
    panel.axhline(1, color="black", linewidth=0.8)
    panel.set_ylabel("times as fast as padded here")
    panel.set_ylim(bottom=0)
    save(figure, panel, target)


def _draw_line(
    panel: Any, cases: Sequence[Figures], values: Sequence[float], name: str, **style: Any
) -> None:
    panel.plot([of["bytes"] for of in cases], values, **{"marker": "o", **style}, label=name)
    panel.set(xscale="log", xlabel="bytes of the batch")


def _draw_waiting(results: Results, target: Path) -> None:
    """Draw a panel for each source of batches: a colour for each size, a style for each loop."""
    figure, grid = panels(target.stem, 2)
    for panel, source in zip(grid, ("copied", "built"), strict=True):
        sizes = sorted({of["bytes"] for of in results[source]})
        for number, size in enumerate(sizes):
            cases = [of for of in results[source] if of["bytes"] == size]
            for name in LOOPS:
                if name in cases[0]:
                    panel.plot(
                        [of["factor"] for of in cases],
                        [100 * of[name] for of in cases],
                        STYLES[name],
                        color=f"C{number}",
                        marker="o",
                        label=f"{size_text(size)}, {name}",
                    )
        panel.axhline(100 * WAITING, color="black", linewidth=0.8)
        panel.set(title=f"batches are {source}", xlabel="step, times what its batch takes")
        panel.set_ylabel("the device waits, %")
    save(figure, grid[-1], target)
