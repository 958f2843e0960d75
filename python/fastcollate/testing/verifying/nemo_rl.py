"""NeMo-RL: packers of sequences and their metrics."""

from __future__ import annotations

import contextlib
import io
import random
from typing import Any

from hypothesis import strategies as st

from fastcollate.compat import nemo_rl as compat
from fastcollate.testing.verifying.sizes import draw_numbers
from fastcollate.testing.verifying.subjects import Case, Draw, Peer, Subject

NEMO_RL = Subject("NeMo-RL", "nemo_rl")
NEMO_RL.not_compared["SequencePacker"] = "the abstract base of the packers"

ALGORITHMS = [
    "concatenative",
    "first_fit_decreasing",
    "FIRST_FIT_SHUFFLE",
    "modified_first_fit_decreasing",
    "best",
]
NUMBERS = st.none() | st.integers(0, 12)


@NEMO_RL.compares("get_packer")
def packers(draw: Draw, nemo_rl: Peer) -> Case:
    """Draw lengths with tokens, most of which fit, and compare bins and metrics."""
    capacity = draw(st.sampled_from([6, 7, 12, 60, 101]))
    given = {
        "algorithm": draw(st.sampled_from(ALGORITHMS)),
        "capacity": capacity,
        "options": {name: draw(NUMBERS) for name in ("min_bin_count", "bin_count_multiple")},
        "lengths": draw_numbers(draw, nemo_rl.scale, 1, capacity, 40),
        "seed": draw(st.integers(0, 9)),
    }
    given["lengths"].append(draw(st.sampled_from([capacity] * 9 + [capacity + 1])))
    return Case(
        theirs=lambda: packed(nemo_rl("nemo_rl.data.packing.algorithms").get_packer, **given),
        ours=lambda: packed(compat.get_packer, **given),
        given=given,
    )


def packed(
    get_packer: Any,
    algorithm: str,
    capacity: int,
    options: dict[str, Any],
    lengths: list[int],
    seed: int,
) -> dict[str, Any]:
    """Pack twice; NeMo-RL prints times."""
    packer = get_packer(algorithm, capacity, collect_metrics=True, **options)
    random.seed(seed)
    with contextlib.redirect_stdout(io.StringIO()):
        bins = [packer.pack(lengths), packer.pack(lengths[1:])]
    return {
        "bins": bins,
        "metrics": packer.compute_metrics(lengths, bins[0]),
        "aggregated": packer.get_aggregated_metrics(),
    }


@NEMO_RL.compares("PackingAlgorithm")
def algorithms(draw: Draw, nemo_rl: Peer) -> Case:
    """Draw an algorithm; NeMo-RL's main branch has more."""
    name = draw(st.sampled_from([name.upper() for name in ALGORITHMS]))
    return Case(
        theirs=lambda: nemo_rl("nemo_rl.data.packing.algorithms").PackingAlgorithm[name].value,
        ours=lambda: compat.PackingAlgorithm[name].value,
        given={"name": name},
    )


@NEMO_RL.compares("PackingMetrics")
def metrics(draw: Draw, nemo_rl: Peer) -> Case:
    """Draw bins of sequences."""
    sizes = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), max_size=5)
    packings = draw(st.lists(sizes, max_size=3))
    return Case(
        theirs=lambda: measured(nemo_rl("nemo_rl.data.packing.metrics").PackingMetrics(), packings),
        ours=lambda: measured(compat.PackingMetrics(), packings),
        given={"packings": packings},
    )


def measured(metrics: Any, packings: list[list[list[int]]]) -> list[dict[str, float]]:
    """Return statistics of packings alone and together."""
    found = []
    for sizes in packings:
        lengths = [size for members in sizes for size in members]
        items = iter(range(len(lengths)))
        bins = [[next(items) for _ in members] for members in sizes]
        found.append(metrics.calculate_stats_only(lengths, bins, 36))
        metrics.update(lengths, bins, 36)
    return [*found, metrics.get_aggregated_stats()]


def _compare_packer(name: str) -> None:
    @NEMO_RL.compares(name)
    def packer(draw: Draw, nemo_rl: Peer) -> Case:
        most = draw(st.sampled_from([-1, 1, 3]))
        lengths = draw_numbers(draw, nemo_rl.scale, 1, 30, 30, min_size=0)
        module = nemo_rl("nemo_rl.data.packing.algorithms")
        return Case(
            theirs=lambda: limited(getattr(module, name)(30), most, lengths),
            ours=lambda: limited(getattr(compat, name)(30), most, lengths),
            given={"max_sequences_per_bin": most, "lengths": lengths},
        )


for _name in (
    "ConcatenativePacker",
    "FirstFitDecreasingPacker",
    "FirstFitShufflePacker",
    "ModifiedFirstFitDecreasingPacker",
):
    _compare_packer(_name)


def limited(packer: Any, most: int, lengths: list[int]) -> list[list[int]]:
    """Pack with a limit on sequences, which the concatenative packer has."""
    packer.max_sequences_per_bin = most
    random.seed(0)
    with contextlib.redirect_stdout(io.StringIO()):
        bins: list[list[int]] = packer.pack(lengths)
    return bins
