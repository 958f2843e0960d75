"""Measure partitions and micro-batches against verl's.

Lengths are log-normal, with a median of 2,000 tokens, or 5,000 for the last line, and 16,384 at
most, which is the capacity of micro-batches. The longer rows are, the more numbers of micro-batches
have to be tried until the cap holds. A line of the table is one interleaved run (see
`common.timing`) on lists of Python ints or, where it says so, an array of float32.

KK
    `partition`, and how many times as long verl's function takes. In lines of micro-batches:
    `compat.verl.rearrange_micro_batches` on a dict with a mask, with verl's on the same dict. In
    the line of prompts: `compat.verl.get_group_balanced_partitions`.
LPT, swaps
    `partition` with ``"lpt"`` and ``"lpt_swap"``.
verl
    `get_seqlen_balanced_partitions`, or the functions above, where `make peers` has them.
    Without them the plain port in `fastcollate.testing.reference`, which is faster: three to one,
    where they were compared.
plan
    `micro_batches`: the plan alone, from a list of lengths.
KK +, LPT +, swaps +
    The excess of the heaviest part over the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import fastcollate as fc
from common.report import Effort, Figures, main, time_cell
from fastcollate.compat import verl as compat
from fastcollate.testing.reference.partitioning import karmarkar_karp_loops
from frameworks.installed import real
from frameworks.verl import group_balanced_loops, rearrange_loops

Parts = list[list[int]]

OURS = "KK"
NAMES = {OURS: "karmarkar_karp", "LPT": "lpt", "swaps": "lpt_swap"}
CAPACITY = 16_384

PARTITIONS = [
    # Sequences, parts, and two flags: equal sizes, float32 workloads.
    (4_096, 818, False, False),
    (4_096, 818, False, True),
    (4_096, 64, False, False),
    (4_096, 8, True, False),
    (1_024, 8, True, False),
]


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure partitions of several numbers of parts, and micro-batches."""
    scale = 16 if effort.is_smoke else 1
    verl = real("verl.utils.seqlen_balancing")
    for count, k, equal_size, is_float in PARTITIONS:
        count, k = count // scale, max(2, k // scale)
        lengths = lengths_of(count)
        weights = (24_576 * lengths + lengths**2).astype(np.float32) if is_float else lengths
        given = weights if is_float else weights.tolist()
        calls: dict[str, Callable[[], Parts]] = {
            name: partial(
                fc.planning.partition, given, k, algorithm=algorithm, equal_size=equal_size
            )
            for name, algorithm in NAMES.items()
        }
        peer = sorted_port if verl is None else verl.get_seqlen_balanced_partitions
        calls["verl"] = partial(peer, given, k, equal_size)
        assert calls[OURS]() == calls["verl"]()
        figures = effort.run(calls, slow=["verl"])
        for name in NAMES:
            loads = [float(weights[part].sum(dtype=np.float64)) for part in calls[name]()]
            figures[f"{name} +"] = max(loads) * k / sum(loads) - 1
        case = f"{count:,} in {k:,}" + (", equal sizes" if equal_size else "")
        yield case + (", float32" if is_float else ""), figures

    for count, median in ((256, 2_000), (1_024, 2_000), (1_024, 5_000)):
        figures = micro_batches(effort, verl, lengths_of(count // scale, median))
        yield f"{count // scale:,} rows of {median:,}", figures

    figures = prompt_groups(effort, verl, 512 // scale, 64 // scale)
    yield f"{512 // scale:,} prompts of 8 rows in {64 // scale:,}", figures


def prompt_groups(effort: Effort, verl: Any, prompts: int, k: int) -> Figures:
    """Measure partitions of whole prompt groups of 8 rows each."""
    lengths = lengths_of(8 * prompts).tolist()
    uids = [f"prompt {row // 8}" for row in range(8 * prompts)]
    peer = group_balanced_loops if verl is None else verl.get_group_balanced_partitions
    calls: dict[str, Callable[[], Any]] = {
        OURS: partial(compat.get_group_balanced_partitions, lengths, uids, k),
        "verl": partial(peer, lengths, uids, k),
    }
    assert calls[OURS]() == calls["verl"]()
    return effort.run(calls, slow=["verl"])


def micro_batches(effort: Effort, verl: Any, lengths: Any) -> Figures:
    """Measure the micro-batches of rows."""
    count = len(lengths)
    width = int(lengths.max())
    ids = np.zeros((count, width), np.int64)
    batch: Any = {"input_ids": ids, "attention_mask": np.arange(width) < lengths[:, None]}
    calls: dict[str, Callable[[], Any]] = {
        "plan": partial(fc.planning.micro_batches, lengths.tolist(), CAPACITY)
    }
    try:
        import torch
    except ImportError:
        calls[OURS] = partial(compat.rearrange_micro_batches, batch, CAPACITY)
    else:
        batch = {key: torch.from_numpy(value) for key, value in batch.items()}
        calls[OURS] = partial(compat.rearrange_micro_batches, batch, CAPACITY)
        if verl is not None:
            calls["verl"] = partial(verl.rearrange_micro_batches, batch, CAPACITY)
            assert calls[OURS]()[1] == calls["verl"]()[1]
    if "verl" not in calls:
        calls["verl"] = partial(rearrange_loops, [lengths.tolist()], CAPACITY)
        assert calls[OURS]()[1] == calls["verl"]()[0]
    return effort.run(calls, slow=["verl"])


def lengths_of(count: int, median: int = 2_000) -> Any:
    """Draw log-normal lengths."""
    drawn = np.random.default_rng(count).lognormal(np.log(median), 0.8, count)
    return drawn.clip(1, CAPACITY).astype(np.int64)


def sorted_port(weights: Any, k: int, equal_size: bool) -> Parts:
    """Partition by the port of verl's function, with ascending indices as in verl's caller."""
    return [sorted(part) for part in karmarkar_karp_loops(weights, k, equal_size)]


def cell(figures: Figures, name: str) -> str:
    """Format a time, or an excess of weight."""
    if name.endswith("+"):
        return f"{figures[name]:.4%}"
    return time_cell(figures, name, ours=[*NAMES, "plan"], peer="verl")


if __name__ == "__main__":
    main(__doc__, measure, cell)
