"""Measure the check of a batch by itself.

Rows of 100 to 900 response tokens after prompts of 20 to 300, with rewards, log-probabilities and
labels. A line of the table is one interleaved run (see `common.timing`), on one core.

fastcollate
    `Batch.check` with `vocab_size` and `eos_token_id`: all kinds of findings.
by hand
    The same checks written by hand, vectorised within each row of the padded layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

import fastcollate as fc
from common.report import Effort, Figures, main, time_cell

VOCAB, EOS = 50_000, 7


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure layouts."""
    count = 16 if effort.is_smoke else 5_000
    rng = np.random.default_rng(0)
    lens = rng.integers(20, 300, count), rng.integers(100, 900, count)
    prompts, responses = (
        fc.Ragged(rng.integers(8, VOCAB, n.sum()), np.append(0, n.cumsum())) for n in lens
    )
    responses.values[responses.offsets[1:] - 1] = EOS
    columns = {
        "rewards": rng.random(count),
        "logprobs": fc.Ragged(-rng.random(lens[1].sum()), responses.offsets),
        "loss_mask": fc.Ragged(np.ones(lens[1].sum()), responses.offsets),
    }
    for layout in ("left", "jagged", fc.Packed(capacity=16_384)):
        batch = fc.build_batch(
            *(prompts, responses),
            **columns,
            pad_token_id=0,
            labels="aligned",
            layout=layout,
            array_type="numpy",
        )
        calls = {"fastcollate": partial(batch.check, VOCAB, EOS)}
        assert {finding.kind for finding in calls["fastcollate"]()} <= {"padding"}
        if layout == "left":
            calls["by hand"] = partial(by_hand, batch)
            assert calls["by hand"]() == []
        figures = effort.run(calls)
        yield f"{layout}, {sum(n.sum() for n in lens):,} tokens", figures


def by_hand(batch: fc.Batch) -> list[tuple[int, str]]:
    """Check rows one by one."""
    found = []
    seen: dict[bytes, int] = {}
    for row, attention in enumerate(batch["attention_mask"]):
        is_token, is_response = attention == 1, batch["response_mask"][row] == 1
        ids = batch["input_ids"][row][is_token]
        trains = batch["loss_mask"][row][is_response] != 0
        logprobs = batch["logprobs"][row][is_response]
        rewards = batch["rewards"][row][is_response]
        if not trains.any():
            found.append((row, "trains nothing"))
        if batch["labels"][row][is_token][0] != -100:
            found.append((row, "label"))
        if np.isnan(logprobs).any() or (logprobs > 0).any() or np.isnan(rewards).any():
            found.append((row, "log-probability"))
        if (rewards[~trains] != 0).any():
            found.append((row, "reward"))
        if (ids >= VOCAB).any() or (ids < 0).any():
            found.append((row, "id"))
        if ids[-1] != EOS:
            found.append((row, "cut off"))
        if seen.setdefault(ids.tobytes(), row) != row:
            found.append((row, "duplicate"))
    return found


def cell(figures: Figures, name: str) -> str:
    """Format a time."""
    ours = ["fastcollate"] if "by hand" in figures else []
    return time_cell(figures, name, ours=ours, peer="by hand")


if __name__ == "__main__":
    main(__doc__, measure, cell)
