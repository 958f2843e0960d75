"""Measure packing sequences into bins, against the frameworks' own packers.

Log-normal lengths with a median of 1,800 tokens and a mean of about 2,700, cut off at the capacity
of 16,384 tokens. 16,384 of them are packed by every algorithm and by the framework that it is known
from, with the same bins as a result; then up to 1,000,000 by first fit decreasing, with as many
bins as that takes, and with more.

fastcollate
    `pack`, and how many times as long the framework takes. It gets an array of NumPy, or a list if
    the framework gets one.
framework
    Its own function, where `make peers` has it (axolotl's needs numba, too); a port of NeMo-RL's.
    SkyRL's and NeMo-RL's first fit decreasing is the same quadratic loop.
bins, bins there
    Number of bins.
full
    Tokens divided by the capacity of all bins.
per n log n
    The time over n * log2(n): constant if the time grows so.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import fastcollate as fc
from common.packers import Lengths, peers
from common.report import Effort, Figures, main, time_cell

CAPACITY = 16_384


def _pack(lengths: Lengths, **options: Any) -> fc.planning.BinPlan:
    return fc.planning.pack(lengths, fc.Packed(CAPACITY, **options))


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure every algorithm against a framework, and the growth of the time."""
    lengths = log_normal(256 if effort.is_smoke else 16_384)
    for peer in peers():
        given = peer.prepare(lengths)
        ours = given if isinstance(given, list) else lengths
        plan = _pack(ours, algorithm=peer.algorithm)
        bins = peer.pack(given, CAPACITY)
        if "with tokens" in peer.name:
            assert list(map(len, bins)) == list(map(len, plan.bins))
        else:
            assert [list(contents) for contents in bins] == plan.bins
        calls = {
            "fastcollate": partial(_pack, ours, algorithm=peer.algorithm),
            "framework": partial(peer.pack, given, CAPACITY),
        }
        figures = effort.run(calls, slow=["framework"])
        figures |= {"bins": plan.num_bins, "bins there": len(bins), "full": plan.efficiency}
        yield f"{peer.algorithm}: {peer.name}", figures
    for algorithm in ("next_fit", "concat"):
        pack = partial(_pack, lengths, algorithm=algorithm)
        yield algorithm, effort.run({"fastcollate": pack}) | facts(pack())
    for number in (64, 256) if effort.is_smoke else (16_384, 65_536, 262_144, 1_000_000):
        pack = partial(_pack, log_normal(number))
        figures = effort.run({"fastcollate": pack}) | facts(pack())
        figures["per n log n"] = figures["fastcollate"] / (number * np.log2(number))
        yield f"ffd of {number:,}", figures
        split = partial(pack, grow_by="split", min_bins=int(1.2 * pack().num_bins))
        yield (
            f"ffd of {number:,}, a fifth more bins by splitting",
            effort.run({"fastcollate": split}),
        )


def log_normal(count: int) -> Lengths:
    """Make lengths."""
    lengths = np.random.default_rng(count).lognormal(np.log(1_800), 1.0, count)
    return np.clip(lengths, 1, CAPACITY).astype(np.int64)


def facts(plan: fc.planning.BinPlan) -> Figures:
    """Return the number of bins, and how full they are."""
    return {"bins": plan.num_bins, "full": plan.efficiency}


def cell(figures: Figures, name: str) -> str:
    """Format a time, a number of bins or a share."""
    if name in ("bins", "bins there"):
        return f"{figures[name]:,.0f}"
    if name == "full":
        return f"{figures[name]:.2%}"
    ours = ["fastcollate"] if "framework" in figures else []
    return time_cell(figures, name, ours=ours, peer="framework")


if __name__ == "__main__":
    main(__doc__, measure, cell)
