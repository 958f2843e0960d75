"""Measure the shards of a step: `Batch.shards`, `Batch.select` and `build_batch(shard=...)`.

1,024 rows of 256 prompts in 4 mini-batches, of 257, 254, 258 and 255 rows, for 4 ranks: each
mini-batch lacks 1 to 3 rows, which copies of its first fill up, one to a rank. Batches are of torch
tensors in the left layout and have all six outputs. A line of the table is one interleaved run (see
`common.timing`). A call makes all 16 shards, and holds them together.

Of contiguous shards, 8 are views, which take no time for their bytes: all that have no padding row.
The other 8, and all 16 of strided shards and of those balanced by tokens, are written once; so is
what `build_batch` makes.

pool, fresh
    fastcollate in steady state, on memory of earlier shards, and with `pool=None`, as every first
    call is; and how many times as long the plain way takes. `select`: the shards of a batch that is
    there already, in one call; `build`: each shard from its rows.
each
    The same as `pool`, by a call of `select` for each shard.
then select
    For builds: building the batch of all rows, and its shards.
cat, clone
    The plain way: slicing each mini-batch, padding each tensor by `torch.cat` with copies of row 0,
    or zeros for loss masks, as SkyRL's `pad_training_input_batch` does, and copying what each rank
    gets. Of contiguous shards, those that have a padding row are padded by themselves. For builds,
    after fastcollate has built the batch of all rows.
cat
    The same without the copies of contiguous and strided shards, which are views of the batch or
    the padded mini-batch then and keep all of it alive.
index
    Taking each shard's rows by their indices from the whole batch, then masking padding rows: each
    value is copied once.
fill
    Writing as many bytes as the 16 shards have, to memory in use.
one rank
    For builds: one of the 16 shards, as a worker builds its own.

Lines with "kept" are of the plain ways at their best: the C library keeps all memory that is freed
(Linux with glibc). Without, tensors of long rows are on memory taken anew in each call, as they are
in a process that does nothing about it; that is most of their time, and varies much. torch copies
on one thread: several are little faster, and much slower where cores are busy.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np

import fastcollate as fc
from common.processes import in_process
from common.report import Effort, Figures, main, time_cell
from common.workload import Rollouts, as_lists, fill, long_rollouts, rollouts
from fastcollate.testing import reference

Tensors = Mapping[str, Any]

RANKS = 4
SHARDS = ["contiguous", "strided", "tokens"]


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure everything in separate processes, each with its own memory."""
    if not find_spec("torch"):
        return
    for size in ["short"] if effort.is_smoke else ["short", "long"]:
        for keeps in (False, True) if sys.platform == "linux" else (False,):
            heap = ", kept" if keeps else ""
            for shards in SHARDS[:1] if effort.is_smoke else SHARDS:
                figures = in_process(of_selected, effort, size, shards, keeps)
                yield f"select {size}, {shards}{heap}", figures
            for form in "arrays", "lists":
                figures = in_process(of_built, effort, size, form, keeps)
                yield f"build {size}, {form}{heap}", figures


def make(effort: Effort, size: str, keeps: bool) -> tuple[Rollouts, list[str]]:
    """Make rows and their uids, in a process that keeps or returns freed memory."""
    import torch

    torch.set_num_threads(1)
    if keeps:
        keep_memory()
    counts = [17, 14, 18, 15] if effort.is_smoke else [257, 254, 258, 255]
    uids = uids_of(counts, prompts=4 * (counts[0] // 4))
    if size == "long":
        return long_rollouts(len(uids)), uids
    return rollouts(len(uids), prompts=(32, 256), responses=(32, 256)), uids


def keep_memory() -> None:
    """Let the C library give no memory back to the system, nor map large blocks each by itself."""
    trim_threshold, mmap_threshold = -1, -3  # from malloc.h
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):  # glibc only
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, (1 << 31) - 1)


def uids_of(counts: list[int], prompts: int) -> list[str]:
    """Return uids of each mini-batch's rows; every prompt has a row."""
    rng = np.random.default_rng(0)
    each = prompts // len(counts)
    sizes = [1 + rng.multinomial(count - each, np.full(each, 1 / each)) for count in counts]
    return [f"prompt {uid}" for uid, size in enumerate(np.concatenate(sizes)) for _ in range(size)]


OF_TOKENS = {"input_ids", "attention_mask"}
"""Outputs that padding rows have as well."""


def plan_of(batch: fc.Batch, uids: list[str], shards: Any) -> fc.planning.StepPlan:
    """Plan 4 mini-batches, each of which needs padding."""
    prompts = len(set(uids)) // 4
    plan = fc.plan_step(
        batch,
        uids=uids,
        prompts_per_mini_batch=prompts,
        dp_size=RANKS,
        shard_by=shards,
        pad_rows="copy_first",
    )
    assert plan.num_mini_batches == 4
    for begin, end in pairwise(plan.mini_batch_offsets.tolist()):
        assert np.count_nonzero(~plan.is_padding[begin:end]) % RANKS != 0
    return plan


def all_shards(plan: fc.planning.StepPlan) -> list[fc.planning.Shard]:
    """Return the shards of all mini-batches and ranks."""
    return [shard for of_ranks in plan.shards() for shard in of_ranks]


def of_selected(effort: Effort, size: str, shards: str, keeps: bool) -> Figures:
    """Measure shards of a batch that has been built."""
    arrays, uids = make(effort, size, keeps)
    batch = fc.build_batch(**arrays, pad_token_id=0)
    plan = plan_of(batch, uids, shards)

    def ours() -> list[fc.Batch]:
        return [shard for of_ranks in batch.shards(plan) for shard in of_ranks]

    def each() -> list[fc.Batch]:
        return [batch.select(shard) for shard in all_shards(plan)]

    views = sum(shares_memory(shard, batch) for shard in ours())
    are_whole = [not shard.is_padding.any() for shard in all_shards(plan)]
    assert views == (sum(are_whole) if shards == "contiguous" else 0)
    peers = plain_ways(plan, shards)
    check(ours(), batch, peers)
    check(each(), batch, peers)
    pool = fc.memory.set_default_pool(None)
    calls: dict[str, Callable[[], object]] = {"pool": ours, "fresh": ours, "each": each}
    calls |= {name: partial(way, batch) for name, way in peers.items()}
    calls["fill"] = partial(fill, bytes_of(ours()))
    pools = {
        "pool": partial(fc.memory.set_default_pool, pool),
        "fresh": partial(fc.memory.set_default_pool, None),
        "each": partial(fc.memory.set_default_pool, pool),
    }
    return effort.run(calls, prepare=pools)


def of_built(effort: Effort, size: str, form: str, keeps: bool) -> Figures:
    """Measure shards that are built from rows, contiguous ones."""
    arrays, uids = make(effort, size, keeps)
    columns = as_lists(arrays) if form == "lists" else arrays
    whole = partial(fc.build_batch, **columns, pad_token_id=0)
    plan = plan_of(whole(), uids, "contiguous")

    def ours(**options: Any) -> list[fc.Batch]:
        return [whole(shard=shard, **options) for shard in all_shards(plan)]

    def then_select() -> list[fc.Batch]:
        return [shard for of_ranks in whole().shards(plan) for shard in of_ranks]

    peers = plain_ways(plan, "contiguous")
    check(ours(), whole(), peers)
    calls: dict[str, Callable[[], object]] = {
        "pool": ours,
        "fresh": partial(ours, pool=None),
        "then select": then_select,
    }
    calls |= {name: partial(after, whole, way) for name, way in peers.items()}
    calls["fill"] = partial(fill, bytes_of(ours()))
    calls["one rank"] = partial(whole, shard=plan.shard(0, 0))
    return effort.run(calls)


# Implementations for comparison


def plain_ways(
    plan: fc.planning.StepPlan, shards: str
) -> dict[str, Callable[[Tensors], list[Tensors]]]:
    """Return calls that make all shards of a batch."""
    ways: dict[str, Callable[[Tensors], list[Tensors]]] = {
        "cat, clone": partial(by_cat, plan, shards, True)
    }
    if shards != "tokens":
        ways["cat"] = partial(by_cat, plan, shards, False)
    return ways | {"index": partial(by_index, plan)}


def by_cat(plan: fc.planning.StepPlan, shards: str, copied: bool, batch: Tensors) -> list[Tensors]:
    """Slice mini-batches, pad them, and take what ranks get, copied or as views."""
    out: list[Tensors] = []
    for index, (start, end) in enumerate(plan.mini_batches):
        mini_batch = {key: values[start:end] for key, values in batch.items()}
        padded = mini_batch
        if shards != "contiguous":
            padded = padded_by_cat(mini_batch, mini_batch, -(end - start) % RANKS)
        for rank in range(RANKS):
            shard = plan.shard(index, rank)
            if shards == "tokens":
                # All padding rows of the mini-batch are equal.
                places: Any = np.where(shard.is_padding, end - start, shard.rows - start)
            elif shards == "strided":
                places = slice(rank, None, RANKS)
            else:
                rows = shard.rows[~shard.is_padding] - start
                places = slice(int(rows[0]), int(rows[-1]) + 1)
            views = {key: values[places] for key, values in padded.items()}
            if shards == "contiguous" and shard.is_padding.any():
                views = padded_by_cat(views, mini_batch, int(shard.is_padding.sum()))
            elif copied and shards != "tokens":  # indexing has made a copy
                views = {key: view.clone() for key, view in views.items()}
            out.append(views)
    return out


def padded_by_cat(batch: Tensors, mini_batch: Tensors, count: int) -> Tensors:
    """Copy rows, with copies of the mini-batch's first row added, which train nothing."""
    import torch

    def padding(key: str, values: Any) -> Any:
        if key in OF_TOKENS:
            return values[[0] * count]
        return torch.zeros(count, *values.shape[1:], dtype=values.dtype)

    return {key: torch.cat([rows, padding(key, mini_batch[key])]) for key, rows in batch.items()}


def by_index(plan: fc.planning.StepPlan, batch: Tensors) -> list[Tensors]:
    """Take rows by their indices."""
    import torch

    out: list[Tensors] = []
    for shard in all_shards(plan):
        rows = torch.tensor(shard.rows)
        taken = {key: values.index_select(0, rows) for key, values in batch.items()}
        for key in taken.keys() - OF_TOKENS:
            taken[key][torch.tensor(shard.is_padding)] = 0
        out.append(taken)
    return out


def after(whole: Callable[[], fc.Batch], way: Callable[[Tensors], list[Tensors]]) -> list[Tensors]:
    """Build the batch of all rows, and make its shards."""
    return way(whole())


def check(found: list[fc.Batch], batch: fc.Batch, ways: Mapping[str, Any]) -> None:
    """Check that all candidates make the same shards."""
    for way in ways.values():
        for one, expected in zip(found, way(batch), strict=True):
            reference.assert_same(one, expected)


def bytes_of(shards: list[fc.Batch]) -> list[np.ndarray[Any, Any]]:
    """Return memory as large as the outputs of shards."""
    return [np.empty_like(tensor.numpy()) for shard in shards for tensor in shard.values()]


def shares_memory(shard: Tensors, batch: Tensors) -> bool:
    """Return True if all tensors of a shard are views of a batch's."""
    return all(np.shares_memory(shard[key].numpy(), batch[key].numpy()) for key in batch)


if __name__ == "__main__":
    ours = ["pool", "fresh", "each", "then select"]
    main(__doc__, measure, partial(time_cell, ours=ours, peer="cat, clone"))
