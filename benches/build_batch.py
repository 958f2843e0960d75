"""Measure `fastcollate.build_batch` against the references and the floor.

A line of the table is one interleaved run (see `common.timing`), with all six outputs:

pool, fresh
    fastcollate in steady state, on memory of an earlier batch, and with `pool=None`, as every first
    call is; and how many times as long NumPy takes.
NumPy, loops
    `build_batch_numpy` of `frameworks` and `build_batch_loops` of `fastcollate.testing`, on lists
    or arrays; columns are passed as arrays, their fastest form. The loops are slow: they run three
    times only.
fill mapped, fill fresh
    Writing as many bytes, to memory in use and to memory taken anew.
read
    Visiting every number of the input lists.

"jagged, compact" writes no padding, int32 ids and no masks; its peer is the padded batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy.typing as npt

import fastcollate as fc
from common.report import Effort, Figures, main, time_cell
from common.workload import (
    Rollouts,
    arrays_of,
    as_lists,
    columns,
    fill,
    fill_fresh,
    long_rollouts,
    read,
    rollouts,
)
from fastcollate.testing import reference
from frameworks.numpy_rows import build_batch_numpy

Calls = dict[str, Callable[[], Any]]

SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 10_000]


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure long rows in all forms, 8 rows of 512 tokens, and many sizes of short rows."""
    rows = 20 if effort.is_smoke else 1_500
    arrays = long_rollouts(rows)
    lists = as_lists(arrays)
    loops = partial(reference.build_batch_loops, **lists, pad_token_id=0)
    calls = candidates(lists) | {"loops": loops}
    yield f"{rows:,} long, lists", effort.run(calls, slow=["loops"])
    yield f"{rows:,} long, lists, jagged, compact", effort.run(jagged_candidates(lists))
    yield f"{rows:,} long, arrays", effort.run(candidates(arrays))
    for form, batch in columns(arrays).items():
        yield f"{rows:,} long, {form}", effort.run(candidates(batch, peer_input=arrays))

    arrays = rollouts(8, prompts=(256, 256), responses=(256, 256))
    for form, batch in ("lists", as_lists(arrays)), ("arrays", arrays):
        yield f"8 of 512, {form}, numpy", effort.run(candidates(batch))
        if find_spec("torch"):
            yield f"8 of 512, {form}, torch", effort.run(candidates(batch, array_type="torch"))

    for size in SIZES[:2] if effort.is_smoke else SIZES:
        arrays = rollouts(size, prompts=(32, 256), responses=(32, 256))
        yield f"{size:,} short, arrays", effort.run(candidates(arrays))


def candidates(
    batch: Rollouts, *, peer_input: Rollouts | None = None, array_type: str = "numpy"
) -> Calls:
    """Check that the results are equal; return the calls of a line of the table."""
    ours = partial(fc.build_batch, **batch, pad_token_id=0, array_type=array_type)
    peer = partial(build_batch_numpy, **(peer_input or batch), pad_token_id=0)
    outputs = arrays_of(peer())
    if array_type == "torch":
        peer = partial(as_tensors, peer)
    reference.assert_same(ours(), peer())
    return compared(batch, ours, peer, outputs)


def jagged_candidates(batch: Rollouts) -> Calls:
    """Return the calls of the line of jagged batches."""
    ours = partial(
        fc.build_batch,
        **batch,
        pad_token_id=0,
        array_type="numpy",
        layout="jagged",
        dtypes="compact",
    )
    peer = partial(build_batch_numpy, **batch, pad_token_id=0)
    return compared(batch, ours, peer, arrays_of(ours()))


def compared(
    batch: Rollouts,
    ours: Callable[..., Any],
    peer: Callable[[], Any],
    outputs: list[npt.NDArray[Any]],
) -> Calls:
    calls: Calls = {
        "pool": ours,
        "fresh": partial(ours, pool=None),
        "NumPy": peer,
        "fill mapped": partial(fill, outputs),
        "fill fresh": partial(fill_fresh, outputs),
    }
    if isinstance(batch["prompts"], list) and isinstance(batch["prompts"][0], list):
        calls["read"] = partial(read, batch)
    return calls


def as_tensors(build: Callable[[], dict[str, npt.NDArray[Any]]]) -> dict[str, Any]:
    import torch

    return {name: torch.from_numpy(array) for name, array in build().items()}


if __name__ == "__main__":
    main(__doc__, measure, partial(time_cell, ours=["pool", "fresh"]))
