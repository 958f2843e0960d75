"""Measure `fastcollate.build_batch` against the references and the floor.

A line of the table is one interleaved run (see `timing.interleaved`), with all six outputs:

NumPy, loops
    `build_batch_numpy` and `build_batch_loops` from `fastcollate.testing.reference`, and how many
    times fastcollate's time they take. The loops are slow: they run three times only.
fill fresh, fill mapped
    Writing as many bytes, to memory taken anew and to memory in use.
read
    Visiting every number of the input lists.
beyond
    fastcollate's time beyond filling mapped memory.
"""

from __future__ import annotations

import argparse
import json
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import fastcollate as fc
from fastcollate.testing import reference
from timing import interleaved

Arrays = list[npt.NDArray[Any]]
ArrayType = Literal["numpy", "torch"]
Rollouts = dict[str, Any]
Calls = dict[str, Callable[[], Any]]
Times = dict[str, float]

VOCABULARY = 150_000
COLUMNS = ["fastcollate", "NumPy", "loops", "fill fresh", "fill mapped", "read"]


def main() -> None:
    """Measure all cases, and print a table or JSON."""
    parser = argparse.ArgumentParser(description="Measure fastcollate.build_batch.")
    parser.add_argument("--rounds", type=int, default=9, help="at least (default: %(default)s)")
    parser.add_argument("--smoke", action="store_true", help="one round on little data")
    parser.add_argument("--json", action="store_true", help="print seconds as JSON")
    args = parser.parse_args()
    if args.smoke:
        results = dict(measure(20, [1, 2], rounds=1, seconds=0.0))
    else:
        sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 10_000]
        results = dict(measure(1_500, sizes, rounds=args.rounds, seconds=0.5))
    if args.json:
        print(json.dumps(results, indent=2))
    else:
        Console(width=132).print(table(results))


def measure(
    long_rows: int, sizes: list[int], *, rounds: int, seconds: float
) -> Iterator[tuple[str, Times]]:
    """Measure long rows, 8 rows of 512 tokens, and batches of many sizes of short rows."""
    run = partial(interleaved, rounds=rounds, seconds=seconds)

    arrays = rollouts(long_rows, prompts=(100, 2_000), responses=(100, 4_000))
    lists = as_lists(arrays)
    loops = partial(reference.build_batch_loops, **lists, pad_token_id=0)
    calls = candidates(lists) | {"loops": loops}
    yield f"{long_rows:,} long, lists", run(calls, slow={"loops"})
    yield f"{long_rows:,} long, arrays", run(candidates(arrays))

    arrays = rollouts(8, prompts=(256, 256), responses=(256, 256))
    array_types: list[ArrayType] = ["numpy", "torch"] if find_spec("torch") else ["numpy"]
    for kind, batch in ("lists", as_lists(arrays)), ("arrays", arrays):
        for array_type in array_types:
            yield f"8 of 512, {kind}, {array_type}", run(candidates(batch, array_type))

    for size in sizes:
        arrays = rollouts(size, prompts=(32, 256), responses=(32, 256))
        yield f"{size:,} short, arrays", run(candidates(arrays))


def rollouts(rows: int, *, prompts: tuple[int, int], responses: tuple[int, int]) -> Rollouts:
    """Make arguments of `build_batch`: int32 and float32 arrays with lengths in these ranges."""
    rng = np.random.default_rng(rows)
    prompt_lens = rng.integers(*prompts, rows, endpoint=True)
    response_lens = rng.integers(*responses, rows, endpoint=True)
    return {
        "prompts": [rng.integers(VOCABULARY, size=n, dtype=np.int32) for n in prompt_lens],
        "responses": [rng.integers(VOCABULARY, size=n, dtype=np.int32) for n in response_lens],
        "rewards": [rng.standard_normal(n, np.float32) for n in response_lens],
        "loss_masks": [rng.integers(2, size=n, dtype=np.int32) for n in response_lens],
        "logprobs": [-rng.standard_exponential(n, np.float32) for n in response_lens],
    }


def as_lists(arrays: Rollouts) -> Rollouts:
    """Make the same of lists, with an object for every number as Python's parsers give them."""
    return {name: [row.tolist() for row in rows] for name, rows in arrays.items()}


def candidates(batch: Rollouts, array_type: ArrayType = "numpy") -> Calls:
    """Check that the results are the same; return what a line of the table compares."""
    ours = partial(fc.build_batch, **batch, pad_token_id=0, array_type=array_type)
    peer = partial(reference.build_batch_numpy, **batch, pad_token_id=0)
    outputs = list(peer().values())
    if array_type == "torch":
        peer = partial(as_tensors, peer)
    reference.assert_same(ours(), peer())

    calls: Calls = {
        "fastcollate": ours,
        "NumPy": peer,
        "fill fresh": partial(fill_fresh, outputs),
        "fill mapped": partial(fill, outputs),
    }
    if isinstance(batch["prompts"][0], list):
        calls["read"] = partial(read, batch)
    return calls


def as_tensors(build: Callable[[], dict[str, npt.NDArray[Any]]]) -> dict[str, Any]:
    import torch

    return {name: torch.from_numpy(array) for name, array in build().items()}


def fill_fresh(outputs: Arrays) -> Arrays:
    fresh = [np.empty_like(array) for array in outputs]
    fill(fresh)
    return fresh


def fill(outputs: Arrays) -> None:
    for array in outputs:
        array.view(np.uint8).fill(1)  # a memset: a quarter faster than filling int64


def read(batch: Rollouts) -> None:
    # The fastest visit of every object without C code of our own: 4.2 ns for an int or float
    # that is not in the cache. list.copy takes 4.4 and sum 5.6.
    for rows in batch.values():
        for row in rows:
            deque(row, maxlen=0)


def table(results: dict[str, Times]) -> Table:
    """Lay out the results: a line for each case."""
    out = Table("rows", *COLUMNS, "beyond", box=SIMPLE)
    for column in out.columns[1:]:
        column.justify = "right"
    for case, times in results.items():
        ours = times["fastcollate"]
        cells = [duration(times[name]) if name in times else "" for name in COLUMNS]
        for name in "NumPy", "loops":
            if name in times:
                cells[COLUMNS.index(name)] += f" ({times[name] / ours:.2f}x)"
        beyond = duration(ours - times["fill mapped"]) if "fill mapped" in times else ""
        out.add_row(case, *cells, beyond)
    return out


def duration(seconds: float) -> str:
    if abs(seconds) < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.1f} ms"


if __name__ == "__main__":
    main()
