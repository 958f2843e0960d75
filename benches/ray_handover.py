"""Measure the hand-over from a driver or rollout workers to training workers through Ray.

About 182 MB of left-padded torch tensors, all six outputs, in 4 mini-batches for 4 ranks. Most
responses are far shorter than the longest, as where generation has a limit: 72% is padding, on
which the bytes of columns depend (with 47%, they are 5.6 times fewer). All on one node, in
memory that the object store has used before, torch on one thread.

put
    Staging: all 16 shards into the object store.
get
    Fetching all 16 shards, one after the other, held together: as torch tensors, ready to train.
stored
    Bytes in the object store.

put_shards, get_shard
    fastcollate, from an existing batch: arrays out of band, views of the store's memory. As on
    any single node, the 4 ranks of a mini-batch share an object; the other ways put 16, and so does
    this one where nodes have one rank each ("by rank").
put_turns, collate
    fastcollate, from rows of 4 workers: columns without padding, of which each rank writes its own
    padded batch. Putting takes the rows' checks and packing into columns too, collating all of what
    `build_batch` does.
torch
    The plain way: slices of the batch's tensors, as Ray pickles tensors; cloned, since a pickled
    slice carries all that it is a view of. Ratios are to this one.
bytes
    The same as NumPy's bytes, which are copied on both sides, as SkyRL's TensorBatch does.
NumPy
    Arrays of the slices, which Ray carries out of band: the least that padded shards can take.

The driver's part is measured with 4 workers that hold columns of as many rows with 1, 4 and 16
times the tokens, and with routes of 48 layers and 8 experts: planning the step from their handles
and making all 16 shards' handles; how long it takes, and by how much it raises the driver's memory
at most.
"""

from __future__ import annotations

import importlib
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fastcollate as fc
from common.processes import in_process, peak_bytes
from common.report import Effort, Figures, main
from common.workload import VOCABULARY, Rollouts

RANKS = MINI_BATCHES = WORKERS = 4
ROWS = 1_136
STORE_BYTES = 1 << 30


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure in a separate process, with its own Ray."""
    if not find_spec("torch") or not find_spec("ray"):
        return
    yield from in_process(of_everything, effort).items()


def of_everything(effort: Effort) -> dict[str, Figures]:
    """Measure the driver alone, in fresh memory, and then the ways to hand over."""
    ray = start_ray()
    try:
        driver = {
            f"driver, {factor}x tokens": of_driver(ray, effort, factor) for factor in (1, 4, 16)
        } | {"driver, routes": of_driver(ray, effort, 1, layers=48)}
        return of_shards(ray, effort) | driver
    finally:
        ray.shutdown()


def rows_of(effort: Effort, factor: float = 1.0) -> Rollouts:
    """Make rows whose responses have 900 tokens on average, and 4,096 at most."""
    rng = np.random.default_rng(0)
    count = 32 if effort.is_smoke else ROWS
    scale = (0.1 if effort.is_smoke else 1.0) * factor
    prompt_lens = (scale * rng.integers(100, 700, count)).astype(int) + 1
    drawn = np.minimum(rng.lognormal(math.log(650), 0.9, count), 4_096)
    drawn[0] = 4_096
    response_lens = (scale * drawn).astype(int) + 1
    return {
        "prompts": [rng.integers(VOCABULARY, size=n, dtype=np.int32) for n in prompt_lens],
        "responses": [rng.integers(VOCABULARY, size=n, dtype=np.int32) for n in response_lens],
        "rewards": [rng.standard_normal(n, np.float32) for n in response_lens],
        "loss_mask": [rng.integers(2, size=n, dtype=np.int32) for n in response_lens],
        "logprobs": [-rng.standard_exponential(n, np.float32) for n in response_lens],
        "uids": [f"prompt {row // 4}" for row in range(count)],
    }


def start_ray() -> Any:
    """Start a node with an object store of a gigabyte."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    warnings.simplefilter("ignore")  # Ray's own
    # Worker processes import the same modules as this one.
    places = [Path(fc.__file__).parents[1], Path(__file__).parent]
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, places))
    import ray

    importlib.import_module("fastcollate.ray")
    ray.init(
        num_cpus=1,
        object_store_memory=STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    return ray


class Way(NamedTuple):
    """A way to hand all shards over."""

    put: Callable[[], Any]
    get: Callable[[Any], list[Any]]
    refs: Callable[[Any], list[Any]]


def of_shards(ray: Any, effort: Effort) -> dict[str, Figures]:
    """Measure all ways to put shards and to get them."""
    import torch

    torch.set_num_threads(1)
    rows = rows_of(effort)
    batch = fc.build_batch(**rows, pad_token_id=0)
    count = len(rows["prompts"])
    options: dict[str, Any] = {
        "prompts_per_mini_batch": count // 4 // MINI_BATCHES,
        "dp_size": RANKS,
    }
    plan = fc.plan_step(batch, **options)
    ways = {
        "put_shards, get_shard": Way(
            lambda: fc.ray.put_shards(batch, plan),
            lambda refs: [fc.ray.get_shard(ref) for ranks in refs for ref in ranks],
            lambda refs: list({ref.ref for ranks in refs for ref in ranks}),
        ),
        "the same by rank": Way(
            lambda: fc.ray.put_shards(batch, plan, ranks_per_node=1),
            lambda refs: [fc.ray.get_shard(ref) for ranks in refs for ref in ranks],
            lambda refs: [ref.ref for ranks in refs for ref in ranks],
        ),
        "put_turns, collate": Way(
            lambda: put_blocks(rows, options),
            lambda plan: [fc.ray.collate(shard, pad_token_id=0) for shard in shards_of(plan)],
            lambda plan: [ref for block in plan.blocks for ref in block.refs],
        ),
        **plain_ways(ray, batch, plan),
    }
    expected = [batch.select(shard) for shard in shards_of(plan)]
    for way in ways.values():
        for found, shard in zip(way.get(way.put()), expected, strict=True):
            assert all(torch.equal(found[key], values) for key, values in shard.items())
    padded = sum(values.nbytes for values in batch.values())
    figures: dict[str, Figures] = {name: {} for name in ways}
    put = effort.run({name: way.put for name, way in ways.items()})
    staged = {name: way.put() for name, way in ways.items()}
    get = effort.run({name: lambda n=name: ways[n].get(staged[n]) for name in ways})
    stored = {name: float(stored_bytes(ray, way.refs(staged[name]))) for name, way in ways.items()}
    for name, own in figures.items():
        for column, values in (("put", put), ("get", get), ("stored", stored)):
            own[column] = values[name]
            own[f"{column}, ratio"] = values["torch"] / values[name]
    figures["the batch"] = {"stored": float(padded)}
    return figures


def put_blocks(rows: Rollouts, options: dict[str, Any]) -> Any:
    """Put each worker's rows, and plan the step."""
    bounds = np.linspace(0, len(rows["prompts"]), WORKERS + 1).astype(int).tolist()
    bounds[1:-1] = [4 * round(bound / 4) for bound in bounds[1:-1]]  # whole prompts
    blocks = [
        fc.ray.put_turns({name: column[first:end] for name, column in rows.items()})
        for first, end in pairwise(bounds)
    ]
    return fc.ray.plan_step(blocks, **options)


def shards_of(plan: Any) -> list[Any]:
    """Return all shards."""
    return [plan.shard(index, rank) for index in range(MINI_BATCHES) for rank in range(RANKS)]


def plain_ways(ray: Any, batch: fc.Batch, plan: fc.planning.StepPlan) -> dict[str, Way]:
    """Return the ways without fastcollate. Shards are consecutive, so they are slices."""
    import torch

    places = [(int(shard.rows[0]), int(shard.rows[-1]) + 1) for shard in shards_of(plan)]
    assert not plan.is_padding.any()
    tensors = dict(batch)

    def put(pack: Callable[[Any], Any]) -> Callable[[], Any]:
        return lambda: [
            ray.put({key: pack(values[first:end]) for key, values in tensors.items()})
            for first, end in places
        ]

    def get(unpack: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
        return lambda refs: [
            {key: unpack(values) for key, values in ray.get(ref).items()} for ref in refs
        ]

    def as_bytes(values: Any) -> Any:
        array = values.numpy()
        return array.tobytes(), array.shape, array.dtype.str

    def of_bytes(packed: Any) -> Any:
        data, shape, dtype = packed
        return torch.from_numpy(np.frombuffer(data, dtype).reshape(shape).copy())

    return {
        "torch": Way(put(torch.clone), get(lambda values: values), list),
        "bytes": Way(put(as_bytes), get(of_bytes), list),
        "NumPy": Way(put(lambda values: values.numpy()), get(torch.from_numpy), list),
    }


def stored_bytes(ray: Any, refs: list[Any]) -> int:
    """Count the bytes of objects in the store."""
    # One by one: for objects of several owners at once, Ray 2.60 sometimes aborts.
    locations = ray.experimental.get_object_locations
    return sum(locations([ref])[ref]["object_size"] for ref in refs)


def put_part(effort: Effort, factor: int, layers: int, index: int) -> Any:
    """Put the rows of one worker."""
    importlib.import_module("fastcollate.ray")
    rows = rows_of(effort, factor)
    count = len(rows["prompts"]) // WORKERS
    own = slice(index * count, (index + 1) * count)
    turns: dict[str, Any] = {name: column[own] for name, column in rows.items()}
    if layers:
        lens = map(len, turns["prompts"]), map(len, turns["responses"])
        routes = [
            np.zeros((sum(both) - 1, layers, 8), np.uint8) for both in zip(*lens, strict=True)
        ]
        turns["fields"] = {"routes": fc.RoutedExperts(routes, num_experts=128)}
    return fc.ray.put_turns(turns)


def of_driver(ray: Any, effort: Effort, factor: int, layers: int = 0) -> Figures:
    """Measure the driver's work on columns that workers hold."""

    @ray.remote(num_cpus=0.25)
    class Worker:
        def put(self, index: int) -> Any:
            # By name: the module that is run has another one in this process than in workers.
            own = importlib.import_module("ray_handover")
            return own.put_part(effort, factor, layers, index)

    workers = [Worker.remote() for _ in range(WORKERS)]
    refs = [worker.put.remote(index) for index, worker in enumerate(workers)]
    ray.wait(refs, num_returns=WORKERS)

    def plan() -> Any:
        blocks = ray.get(refs)
        rows = sum(block.num_rows for block in blocks)
        made = fc.ray.plan_step(
            blocks, prompts_per_mini_batch=rows // 4 // MINI_BATCHES, dp_size=RANKS
        )
        return made, shards_of(made)

    plan()
    memory, _ = peak_bytes(plan)
    times = []
    for _ in range(effort.rounds):
        start = time.perf_counter()
        made, _ = plan()
        times.append(time.perf_counter() - start)
    stored = stored_bytes(ray, [ref for block in made.blocks for ref in block.refs])
    return {"time": float(np.median(times)), "memory": float(memory), "stored": float(stored)}


def cell(figures: Figures, name: str) -> str:
    """Format a time, a size, or a ratio."""
    value = figures[name]
    if name.endswith("ratio"):
        return f"{value:.1f}x"
    return f"{value / 1e6:.1f} MB" if name in ("stored", "memory") else f"{value * 1e3:.1f} ms"


if __name__ == "__main__":
    main(__doc__, measure, cell)
