"""Measure packed batches: `build_batch(layout=fc.Packed(...))` against NumPy and the floor.

1,024 examples in bins of 16,384 tokens: prompts of 50 to 1,000 and responses of 50 to 2,000
tokens, 1.6 M tokens in all, with log-probabilities, rewards and loss masks per response token.
Outputs are the ids, positions, sequence ids and boundaries, and the three fields in the form of
whole sequences; "next_token" moves the fields to the token before. A line of the table is one
interleaved run (see `common.timing`).

pool, fresh
    fastcollate in steady state, on memory of an earlier batch, and with `pool=None`, as every first
    call is; and how many times as long NumPy takes. The bins are planned before.
with plan
    The same as pool, and planning the bins by `fc.planning.pack`.
NumPy
    `build_packed_numpy` from `frameworks.numpy_rows`, the fastest that we could write, on
    the same bins.
left
    The same rows by `build_batch` in the left layout, which pads.
fill mapped, fill fresh
    Writing as many bytes, to memory in use and to memory taken anew.
read
    Visiting every number of the input lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import fastcollate as fc
from common.report import Effort, Figures, main, time_cell
from common.workload import Rollouts, arrays_of, as_lists, fill, fill_fresh, read, rollouts
from fastcollate.testing import reference
from frameworks.numpy_rows import build_packed_numpy

CAPACITY = 16_384


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure lists and arrays, in both alignments, and the outputs of SFT."""
    count = 20 if effort.is_smoke else 1_024
    arrays = rollouts(count, prompts=(50, 1_000), responses=(50, 2_000))
    lists = as_lists(arrays)
    for form, batch in ("lists", lists), ("arrays", arrays):
        for shift in ("none", "next_token"):
            yield f"{count:,}, {form}, {shift}", effort.run(candidates(batch, shift))
    sft = {name: lists[name] for name in ("prompts", "responses", "loss_mask")}
    yield f"{count:,}, lists, loss masks only", effort.run(candidates(sft, "next_token"))


def candidates(batch: Rollouts, shift: str) -> dict[str, Callable[[], Any]]:
    """Check that the results are equal; return the calls of a line of the table."""
    pairs = zip(batch["prompts"], batch["responses"], strict=True)
    lens = [len(prompt) + len(response) for prompt, response in pairs]
    plan = fc.planning.pack(lens, fc.Packed(CAPACITY))
    build = partial(fc.build_batch, **batch, pad_token_id=0, array_type="numpy")
    ours = partial(build, layout=fc.Packed(plan=plan, shift=shift))
    peer = partial(build_packed_numpy, **batch, pad_token_id=0, pack=plan, shift=shift)
    expected = peer()
    reference.assert_same(ours(), expected)
    outputs = arrays_of(expected)
    calls: dict[str, Callable[[], Any]] = {
        "pool": ours,
        "fresh": partial(ours, pool=None),
        "with plan": partial(build, layout=fc.Packed(CAPACITY, shift=shift)),
        "NumPy": peer,
        "left": build,
        "fill mapped": partial(fill, outputs),
        "fill fresh": partial(fill_fresh, outputs),
    }
    if isinstance(batch["prompts"][0], list):
        calls["read"] = partial(read, batch)
    return calls


if __name__ == "__main__":
    main(__doc__, measure, partial(time_cell, ours=["pool", "fresh", "with plan"]))
