"""Measure the peak memory of a batch, in a process of its own (Linux only).

batch
    The bytes of the outputs.
fastcollate, NumPy
    Peak increase of the process's memory in the call, without its input, on fresh memory.

"One by one" is a batch of rollouts that arrive as lists, each added to a `BatchBuilder` or kept
until the last one is there.
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
from frameworks.numpy_rows import build_batch_numpy
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
        f"{rows:,} long, one by one": partial(one_by_one, rows),
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


def one_by_one(rows: int) -> Candidates:
    batch = long_rollouts(rows)
    arrived = [{name: column[row] for name, column in batch.items()} for row in range(rows)]

    def ours() -> Any:
        builder = fc.BatchBuilder(pad_token_id=0, array_type="numpy")
        for arrays in arrived:
            prompt, response, rewards, loss_mask, logprobs = (
                array.tolist() for array in arrays.values()
            )
            builder.add(prompt, response, rewards=rewards, loss_mask=loss_mask, logprobs=logprobs)
        return builder.finish()

    def peer() -> Any:
        kept = [{name: row.tolist() for name, row in arrays.items()} for arrays in arrived]
        return build_batch_numpy(
            **{name: [one[name] for one in kept] for name in batch}, pad_token_id=0
        )

    return ours, peer


def of_rollouts(batch: Rollouts) -> Candidates:
    ours = partial(fc.build_batch, **batch, pad_token_id=0, array_type="numpy")
    return ours, partial(build_batch_numpy, **batch, pad_token_id=0)


def peak(make: Callable[[], Candidates], index: int) -> tuple[int, int]:
    """Return the bytes of a candidate's outputs, and its peak increase of memory."""
    fc.memory.set_default_pool(None)
    most, batch = peak_bytes(make()[index])
    return sum(array.nbytes for array in arrays_of(batch)), most


def megabytes(sizes: Figures, name: str) -> str:
    """Format a size, as a multiple of the batch's too."""
    return f"{sizes[name] / 1e6:.1f} MB ({sizes[name] / sizes['batch']:.2f}x)"


if __name__ == "__main__":
    main(__doc__, measure, megabytes)
