"""NeMo-RL: packers of sequences and their metrics."""

from __future__ import annotations

import contextlib
import io
import random
from typing import Any

from hypothesis import strategies as st

from fastcollate.testing.verifying.subjects import Draw, Peer, Subject, draw_numbers

NEMO_RL = Subject("NeMo-RL", "nemo_rl")

PACKING = "nemo_rl.data.packing.algorithms"
ALGORITHMS = [
    "concatenative",
    "first_fit_decreasing",
    "FIRST_FIT_SHUFFLE",
    "modified_first_fit_decreasing",
    "best",
]
NUMBERS = st.none() | st.integers(0, 12)


def packed(packer: Any, seed: int, *lengths: list[int]) -> list[list[list[int]]]:
    """Pack several times; NeMo-RL prints times."""
    random.seed(seed)
    with contextlib.redirect_stdout(io.StringIO()):
        return [packer.pack(one) for one in lengths]


def with_metrics(
    get_packer: Any,
    algorithm: str,
    capacity: int,
    options: dict[str, Any],
    lengths: list[int],
    seed: int,
) -> dict[str, Any]:
    """Pack twice with a packer by name."""
    packer = get_packer(algorithm, capacity, collect_metrics=True, **options)
    bins = packed(packer, seed, lengths, lengths[1:])
    return {
        "bins": bins,
        "metrics": packer.compute_metrics(lengths, bins[0]),
        "aggregated": packer.get_aggregated_metrics(),
    }


@NEMO_RL.calls(PACKING, "get_packer", by=with_metrics)
def packers(draw: Draw, nemo_rl: Peer) -> dict[str, Any]:
    """Draw lengths with tokens, most of which fit, and compare bins and metrics."""
    capacity = draw(st.sampled_from([6, 7, 12, 60, 101]))
    lengths = draw_numbers(draw, nemo_rl.scale, 1, capacity, 40)
    return {
        "algorithm": draw(st.sampled_from(ALGORITHMS)),
        "capacity": capacity,
        "options": {name: draw(NUMBERS) for name in ("min_bin_count", "bin_count_multiple")},
        "lengths": [*lengths, draw(st.sampled_from([capacity] * 9 + [capacity + 1]))],
        "seed": draw(st.integers(0, 9)),
    }


@NEMO_RL.calls(PACKING, "PackingAlgorithm", by=lambda algorithms, name: algorithms[name].value)
def algorithms(draw: Draw, nemo_rl: Peer) -> dict[str, Any]:
    """Draw an algorithm; NeMo-RL's main branch has more."""
    return {"name": draw(st.sampled_from([name.upper() for name in ALGORITHMS]))}


def measured(kind: Any, packings: list[list[list[int]]]) -> list[dict[str, float]]:
    """Return statistics of packings alone and together."""
    metrics, found = kind(), []
    for sizes in packings:
        lengths = [size for members in sizes for size in members]
        items = iter(range(len(lengths)))
        bins = [[next(items) for _ in members] for members in sizes]
        found.append(metrics.calculate_stats_only(lengths, bins, 36))
        metrics.update(lengths, bins, 36)
    return [*found, metrics.get_aggregated_stats()]


@NEMO_RL.calls("nemo_rl.data.packing.metrics", "PackingMetrics", by=measured)
def metrics(draw: Draw, nemo_rl: Peer) -> dict[str, Any]:
    """Draw bins of sequences."""
    sizes = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), max_size=5)
    return {"packings": draw(st.lists(sizes, max_size=3))}


def limited(kind: Any, most: int, lengths: list[int]) -> list[list[int]]:
    """Pack with a limit on sequences, which the concatenative packer has."""
    packer = kind(30)
    packer.max_sequences_per_bin = most
    return packed(packer, 0, lengths)[0]


@NEMO_RL.calls(
    PACKING,
    "ConcatenativePacker",
    "FirstFitDecreasingPacker",
    "FirstFitShufflePacker",
    "ModifiedFirstFitDecreasingPacker",
    by=limited,
)
def limits(draw: Draw, nemo_rl: Peer) -> dict[str, Any]:
    """Draw lengths that fit, and a limit on sequences or none."""
    return {
        "most": draw(st.sampled_from([-1, 1, 3])),
        "lengths": draw_numbers(draw, nemo_rl.scale, 1, 30, 30, min_size=0),
    }
