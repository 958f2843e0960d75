"""Measure planning a step: prompt boundaries, and the rows of ranks.

100,000 rows of 10,000 prompts, named by strings of 36 characters. Boundaries come from lists in
which the rows of a prompt share one string, lists in which every row has its own, as parsers make
them, and NumPy arrays of strings. Steps are of rows whose strings are shared, for 8 ranks.

fastcollate
    `prompt_boundaries` or the whole `plan_step`, and how many times as long the Python loop takes.
Python loop
    SkyRL's `compute_prompt_boundaries` where `make peers` has it, else the port; the same strings.
NumPy
    Differences of neighbours in the list as an array. It does not detect repeated uids.
read
    Visiting every string.
"""

from __future__ import annotations

import random
import uuid
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

import fastcollate as fc
from common.report import Effort, Figures, main, time_cell
from frameworks import skyrl as port
from frameworks.installed import real

STEPS: dict[str, dict[str, Any]] = {
    "one mini-batch": {},
    "mini-batches of 1 prompt": {"prompts_per_mini_batch": 1},
    "of 100 prompts": {"prompts_per_mini_batch": 100},
    "100, by FLOPs": {"prompts_per_mini_batch": 100, "shard_by": "flops"},
    "one, by FLOPs": {"shard_by": "flops"},
    "100, by FLOPs, prompts kept": {
        "prompts_per_mini_batch": 100,
        "shard_by": "flops",
        "keep_together": "prompt",
        "pad_rows": "synthetic",
    },
}


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure boundaries of several inputs, and steps of several kinds."""
    skyrl = real("skyrl.train.dataset.preprocess") or port
    prompts = 200 if effort.is_smoke else 10_000
    shared = uids_of(prompts, 10 * prompts)
    copies = [uid[:9] + uid[9:] for uid in shared]
    inputs = {"shared str": shared, "str of their own": copies, "array of str": np.array(shared)}
    for case, uids in inputs.items():
        as_list = copies if isinstance(uids, np.ndarray) else uids
        assert fc.planning.prompt_boundaries(uids) == skyrl.compute_prompt_boundaries(as_list)
        calls = {
            "fastcollate": partial(fc.planning.prompt_boundaries, uids),
            "Python loop": partial(skyrl.compute_prompt_boundaries, as_list),
            "NumPy": partial(boundaries_numpy, uids),
            "read": partial(deque, as_list, maxlen=0),
        }
        yield f"boundaries, {case}", effort.run(calls)
    rng = np.random.default_rng(0)
    lens = tuple(rng.integers(100, 4_000, (2, len(shared))))
    for case, options in STEPS.items():
        plan = partial(fc.plan_step, lens, uids=shared, dp_size=8, **options)
        yield f"step, {case}", effort.run({"fastcollate": plan})


def uids_of(prompts: int, rows: int) -> list[str]:
    """Return uids of rows; every prompt has a row."""
    rng = random.Random(0)
    names = [str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(prompts)]
    return sorted(names + rng.choices(names, k=rows - prompts))


def boundaries_numpy(uids: Any) -> list[tuple[int, int]]:
    """Return the indices of strings that differ from their predecessors."""
    array = np.asarray(uids)
    ends = np.flatnonzero(array[1:] != array[:-1]) + 1
    offsets = [0, *ends.tolist(), len(array)]
    return list(pairwise(offsets))


def cell(figures: Figures, name: str) -> str:
    """Format a time."""
    ours = ["fastcollate"] if "Python loop" in figures else []
    return time_cell(figures, name, ours=ours, peer="Python loop")


if __name__ == "__main__":
    main(__doc__, measure, cell)
