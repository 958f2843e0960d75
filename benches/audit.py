"""Measure the audit of a step's batches by itself.

Eight ranks, rows of 100 to 900 sampled tokens after prompts of 20 to 300. A line of the table is
one interleaved run (see `common.timing`), on one core.

fastcollate
    `StepPlan.audit` of all batches and the turns: ids, loss mask and padding.
by hand
    A typical hand-written audit, vectorised within each row: for every row that is not padding,
    take the prompt and the response by the masks, compare both with the turn, and check that each
    turn comes once. It handles only rows of one turn in the padded layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

import fastcollate as fc
from common.report import Effort, Figures, main, time_cell

RANKS = 8


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure layouts."""
    count = 16 if effort.is_smoke else 20_000
    rng = np.random.default_rng(0)
    lens = rng.integers(20, 300, count), rng.integers(100, 900, count)
    prompts, responses = (
        fc.Ragged(rng.integers(1, 50_000, n.sum()), np.append(0, n.cumsum())) for n in lens
    )
    for layout in ("left", "jagged", fc.Packed(capacity=16_384)):
        plan = fc.plan_step(lens, dp_size=RANKS, layout=layout)
        shards = [plan.shard(0, rank) for rank in range(RANKS)]
        build = partial(fc.build_batch, prompts, responses, pad_token_id=0, array_type="numpy")
        batches = [build(shard=shard) for shard in shards]
        calls = {"fastcollate": partial(plan.audit, batches, prompts, responses)}
        assert calls["fastcollate"]().counts == {"trained": int(lens[1].sum())}
        if layout == "left":
            calls["by hand"] = partial(by_hand, batches, shards, prompts, responses)
            calls["by hand"]()
        figures = effort.run(calls)
        yield f"{layout}, {lens[1].sum():,} sampled tokens", figures


def by_hand(batches, shards, prompts, responses) -> None:  # type: ignore[no-untyped-def]
    """Compare rows one by one."""
    times = np.zeros(len(prompts), np.int64)
    for batch, shard in zip(batches, shards, strict=True):
        attention = batch["attention_mask"] == 1
        for row, turn in enumerate(shard.rows.tolist()):
            if shard.is_padding[row]:
                continue
            ids = batch["input_ids"][row][attention[row]]
            trained = batch["loss_mask"][row] == 1
            assert trained.sum() == len(responses[turn])
            assert np.array_equal(ids[: len(prompts[turn])], prompts[turn])
            assert np.array_equal(ids[-trained.sum() :], responses[turn])
            times[turn] += 1
    assert (times == 1).all()


def cell(figures: Figures, name: str) -> str:
    """Format a time."""
    ours = ["fastcollate"] if "by hand" in figures else []
    return time_cell(figures, name, ours=ours, peer="by hand")


if __name__ == "__main__":
    main(__doc__, measure, cell)
