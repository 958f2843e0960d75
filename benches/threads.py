"""Measure how `fastcollate.build_batch` scales with cores, in processes held to so many (Linux).

pool, fresh
    fastcollate in steady state, on memory of an earlier batch, and with `pool=None`, and how many
    times as long NumPy takes, which uses one core.
fill mapped, fill fresh
    Writing as many bytes on one core, to memory in use and to memory taken anew.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial

from build_batch import candidates
from common.processes import in_process
from common.report import Effort, Figures, main, time_cell
from common.workload import as_lists, columns, long_rollouts


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure long rows on 1, 2 and 4 cores, as far as available."""
    if sys.platform != "linux":
        return
    rows = 20 if effort.is_smoke else 1_500
    for form in "arrays", "Ragged", "lists":
        for cores in 1, 2, 4:
            if cores <= len(os.sched_getaffinity(0)):
                times = in_process(times_of, effort, rows, form, cores=cores)
                yield f"{rows:,} long, {form}, {cores} core{'s' * (cores > 1)}", times


def times_of(effort: Effort, rows: int, form: str) -> Figures:
    """Measure in this process."""
    arrays = long_rollouts(rows)
    batch = {"arrays": arrays, "lists": as_lists(arrays)} | columns(arrays)
    peer_input = None if form == "lists" else arrays
    return effort.run(candidates(batch[form], peer_input=peer_input))


if __name__ == "__main__":
    main(__doc__, measure, partial(time_cell, ours=["pool", "fresh"]))
