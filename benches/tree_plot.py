"""Draw the savings of trees, and the time of their plans: `docs/trees.svg`.

Samples of a prompt share the prompt: n rows with prompts of P and responses of R tokens have
`n(P + R) / (P + nR)` times the tokens of their tree. Of a trajectory whose d turns are rows, each
row repeats all turns before it: `(d + 1) / 2` times. The lines are these formulas. The time is that
of `prefix_tree` and of packing its plan, for int32 arrays, over the tokens of all rows; a bare copy
of the same tokens stands beside it. Needs matplotlib; without it, nothing is drawn.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fastcollate as fc
from common.figures import panels, save
from common.report import Effort

FIGURE = Path(__file__).parent.parent / "docs" / "trees.svg"
RESPONSE = 1_000
CAPACITY = 1 << 17

Rows = list[Any]


class Point(NamedTuple):
    """The savings of a tree, and the time of its plan."""

    repeats: int
    ratio: float
    formula: float
    plan: float
    """Nanoseconds a token."""
    copy: float


def samples(rng: np.random.Generator, count: int, prompt_len: int, total: int) -> tuple[Rows, Rows]:
    """Make groups of rows with one prompt, with the given number of tokens in all."""
    groups = max(1, total // (count * (prompt_len + RESPONSE)))
    prompts = rng.integers(0, 150_000, (groups, prompt_len), np.int32).repeat(count, 0)
    return list(prompts), list(rng.integers(0, 150_000, (len(prompts), RESPONSE), np.int32))


def trajectories(rng: np.random.Generator, turns: int, total: int) -> tuple[Rows, Rows]:
    """Make trajectories in which every turn is a row, with all earlier turns as its prompt."""
    groups = max(1, total // (RESPONSE * turns * (turns + 1) // 2))
    tokens = rng.integers(0, 150_000, (groups, turns * RESPONSE), np.int32)
    ends = range(0, turns * RESPONSE, RESPONSE)
    rows = [(row[:end].copy(), row[end : end + RESPONSE]) for row in tokens for end in ends]
    prompts, responses = zip(*rows, strict=True)
    return list(prompts), list(responses)


def point(rows: tuple[Rows, Rows], count: int, formula: float, effort: Effort) -> Point:
    """Measure rows."""
    plan = fc.planning.prefix_tree(*rows)
    flat = np.concatenate([*rows[0], *rows[1]])
    times = effort.run(
        {
            "plan": lambda: fc.planning.prefix_tree(*rows).pack(fc.Tree(CAPACITY)),
            "copy": flat.copy,
        }
    )
    in_ns = 1e9 / plan.tokens_before
    return Point(count, plan.token_ratio, formula, times["plan"] * in_ns, times["copy"] * in_ns)


def series(effort: Effort) -> Iterator[tuple[str, list[Point]]]:
    """Measure samples of longer and longer prompts, and trajectories."""
    rng = np.random.default_rng(0)
    total = 40_000 if effort.is_smoke else 8_000_000
    counts = (2, 4) if effort.is_smoke else (1, 2, 4, 8, 16, 32, 64)
    for prompt_len in (250, 1_000, 4_000, 8_000):
        found = []
        for count in counts:
            formula = count * (prompt_len + RESPONSE) / (prompt_len + count * RESPONSE)
            rows = samples(rng, count, prompt_len, total)
            found.append(point(rows, count, formula, effort))
        yield f"samples, P/R = {prompt_len / RESPONSE:g}", found
    yield (
        "turns of a trajectory",
        [
            point(trajectories(rng, turns, total), turns, (turns + 1) / 2, effort)
            for turns in counts
        ],
    )


def draw(cases: dict[str, list[Point]], target: Path | None) -> None:
    """Draw the points, and the formulas as lines."""
    figure, (ratios, times) = panels("trees", 2)
    for number, (name, points) in enumerate(cases.items()):
        repeats = [point.repeats for point in points]
        color = f"C{number}"
        ratios.plot(repeats, [point.formula for point in points], "-", color=color, alpha=0.5)
        ratios.plot(repeats, [point.ratio for point in points], "o", color=color)
        times.plot(repeats, [point.plan for point in points], "o-", color=color, label=name)
    copies = [point.copy for points in cases.values() for point in points]
    times.axhline(float(np.median(copies)), color="gray", linestyle=":", label="a bare copy")
    label = "samples of a prompt, or turns of a trajectory"
    ticks = [point.repeats for point in points]
    for panel in (ratios, times):
        panel.set_xscale("log", base=2)
        panel.set(xlabel=label)
        panel.set_xticks(ticks, [str(tick) for tick in ticks])
    ratios.set_yscale("log", base=2)
    ratios.set_yticks([1, 2, 4, 8, 16, 32], ["1", "2", "4", "8", "16", "32"])
    ratios.set(ylabel="tokens before / after", title="points: plans, lines: formulas")
    times.set(ylabel="time to plan, ns per token", ylim=(0, None))
    save(figure, times, target)


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
    cases = dict(series(Effort(args.smoke, 1 if args.smoke else args.rounds)))
    for name, points in cases.items():
        for point in points:
            print(
                f"{name}: {point.repeats}: {point.ratio:.3f}x fewer (formula {point.formula:.3f}), "
                f"{point.plan:.2f} ns a token (copy {point.copy:.2f})"
            )
    draw(cases, None if args.smoke else args.out)


if __name__ == "__main__":
    main()
