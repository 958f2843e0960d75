"""Measure the peak memory of one call, in a process of its own (Linux only).

batch
    The bytes of the outputs.
fastcollate, NumPy
    How much the call raises the process's memory at most, beside its input, on memory taken anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import fastcollate as fc
from common.processes import in_process, peak_bytes
from common.report import Effort, Figures, main
from common.workload import Rollouts, arrays_of, as_lists, long_rollouts
from fastcollate.testing import reference
from routed_experts import candidates

Candidates = tuple[Callable[..., Any], Callable[[], Any]]


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure batches from lists and arrays, and routed experts."""
    if sys.platform != "linux":
        return
    rows = 20 if effort.is_smoke else 1_500
    for case, make in {
        f"{rows:,} long, lists": partial(of_lists, rows),
        f"{rows:,} long, arrays": partial(of_arrays, rows),
        "routes in uint8": partial(candidates, effort.is_smoke, "uint8"),
        "routes in int32": partial(candidates, effort.is_smoke, "int32"),
    }.items():
        size, ours = in_process(peak, make, 0)
        _, peer = in_process(peak, make, 1)
        yield case, {"batch": size, "fastcollate": ours, "NumPy": peer}


def of_lists(rows: int) -> Candidates:
    return of_rollouts(as_lists(long_rollouts(rows)))


def of_arrays(rows: int) -> Candidates:
    return of_rollouts(long_rollouts(rows))


def of_rollouts(batch: Rollouts) -> Candidates:
    ours = partial(fc.build_batch, **batch, pad_token_id=0, array_type="numpy")
    return ours, partial(reference.build_batch_numpy, **batch, pad_token_id=0)


def peak(make: Callable[[], Candidates], index: int) -> tuple[int, int]:
    """Return the bytes of a candidate's outputs, and by how much it raises memory."""
    fc.set_default_pool(None)
    call = make()[index]
    size = sum(array.nbytes for array in arrays_of(call()))
    return size, peak_bytes(call)


def megabytes(sizes: Figures, name: str) -> str:
    """Format a size, as a multiple of the batch's too."""
    return f"{sizes[name] / 1e6:.1f} MB ({sizes[name] / sizes['batch']:.2f}x)"


if __name__ == "__main__":
    main(__doc__, measure, megabytes)
