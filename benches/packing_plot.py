"""Draw the fill of bins and the times of packers: `docs/packing.svg`.

16,384 log-normal lengths, bins of 16,384 tokens; fastcollate's algorithms and the frameworks' (see
`packing.py`). Needs matplotlib; without it, nothing is drawn.
"""

from __future__ import annotations

import argparse
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fastcollate as fc
from common.figures import panels, save
from common.packers import Lengths, peers
from common.report import Effort
from packing import CAPACITY

FIGURE = Path(__file__).parent.parent / "docs" / "packing.svg"
ALGORITHMS = ("ffd", "bfd", "mffd", "balanced", "ff", "concat", "next_fit")
CASES = {
    "median 1,800 tokens, sigma 1": (1_800, 1.0),
    "median 5,000 tokens, sigma 0.4": (5_000, 0.4),
}


class Point(NamedTuple):
    """The result of a packer."""

    algorithm: str
    is_ours: bool
    name: str
    seconds: float
    efficiency: float


def points(lengths: Lengths, effort: Effort) -> list[Point]:
    """Measure all packers."""
    calls: dict[str, Any] = {}
    about: dict[str, tuple[str, bool, float]] = {}
    for algorithm in ALGORITHMS:
        calls[algorithm] = partial(
            fc.planning.pack, lengths, fc.Packed(CAPACITY, algorithm=algorithm)
        )
        about[algorithm] = algorithm, True, calls[algorithm]().efficiency
    for peer in peers():
        calls[peer.name] = partial(peer.pack, peer.prepare(lengths), CAPACITY)
        room = CAPACITY * len(calls[peer.name]())
        about[peer.name] = peer.algorithm, False, int(lengths.sum()) / room
    slow = [name for name in calls if name not in ALGORITHMS]
    times = effort.run(calls, slow=slow)
    return [
        Point(algorithm, is_ours, name, times[name], efficiency)
        for name, (algorithm, is_ours, efficiency) in about.items()
    ]


def draw(cases: dict[str, list[Point]], target: Path | None) -> None:
    """Draw a line for each algorithm: its fill, its time here and in a framework."""
    figure, grid = panels("packing", len(cases))
    for panel, (title, found) in zip(grid, cases.items(), strict=True):
        full = {point.algorithm: point.efficiency for point in found}
        for is_ours, color, marker in (True, "tab:blue", "o"), (False, "tab:red", "D"):
            drawn = [point for point in found if point.is_ours is is_ours]
            panel.plot(
                [1e3 * point.seconds for point in drawn],
                [ALGORITHMS.index(point.algorithm) for point in drawn],
                marker,
                color=color,
                fillstyle="full" if is_ours else "none",
                label="fastcollate" if is_ours else "framework",
            )
        for point in found:
            if not point.is_ours:
                place = 1e3 * point.seconds, ALGORITHMS.index(point.algorithm)
                side, shift = ("left", 7) if point.seconds < 0.1 else ("right", -7)
                panel.annotate(
                    point.name, place, (shift, 0),
                    textcoords="offset points", ha=side, va="center",
                )  # fmt: skip
        names = [f"{name}, {full[name]:.1%} full" for name in ALGORITHMS]
        panel.set(xscale="log", title=title, xlabel="milliseconds", ylim=(len(names) - 0.5, -0.5))
        panel.set_yticks(range(len(names)), names)
        panel.xaxis.set_major_formatter("{x:g}")
    save(figure, grid[-1], target)


def main() -> None:
    """Measure and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="on little data, keeping nothing")
    parser.add_argument("--rounds", type=int, default=11, help="at least (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=FIGURE, help="default: %(default)s")
    args = parser.parse_args()
    if find_spec("matplotlib") is None:
        print("matplotlib is not installed: nothing is drawn")
        return
    count, rounds = (64, 1) if args.smoke else (16_384, args.rounds)
    cases = {}
    for title, (median, sigma) in CASES.items():
        lengths = np.random.default_rng(count).lognormal(np.log(median), sigma, count)
        lengths = np.clip(lengths, 1, CAPACITY).astype(np.int64)
        cases[title] = points(lengths, Effort(args.smoke, rounds))
        for point in cases[title]:
            print(f"{title}: {point.name}: {1e3 * point.seconds:.2f} ms, {point.efficiency:.2%}")
    draw(cases, None if args.smoke else args.out)


if __name__ == "__main__":
    main()
