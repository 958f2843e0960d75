"""Measure `fastcollate.BatchBuilder`: the work left after the last rollout.

Rollouts arrive one by one as lists, with all fields.

finish
    `BatchBuilder.finish()` in steady state, on memory of an earlier batch, and how many times as
    long NumPy takes.
NumPy
    `build_batch_numpy` from `frameworks.numpy_rows` on all lists, kept until the end: the
    padded batch, whatever the layout.
add, add a token
    All calls of `add` together, and their share for one prompt or response token.
fill mapped
    Writing as many bytes as the batch has to memory in use.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

import fastcollate as fc
from common.report import Effort, Figures, main, time_cell
from common.workload import Rollouts, arrays_of, as_lists, fill, long_rollouts
from fastcollate.testing import reference
from frameworks.numpy_rows import build_batch_numpy

OPTIONS: dict[str, dict[str, Any]] = {
    "left": {},
    "jagged, compact": {"layout": "jagged", "dtypes": "compact"},
}


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure long rows in the default layout and in the smallest."""
    rows = 20 if effort.is_smoke else 1_500
    batch = as_lists(long_rollouts(rows))
    tokens = sum(map(len, batch["prompts"])) + sum(map(len, batch["responses"]))
    for case, options in OPTIONS.items():
        builder = Measured(batch, options)
        reference.assert_same(
            builder.finish(),
            fc.build_batch(**batch, pad_token_id=0, array_type="numpy", **options),
        )
        calls = {
            "finish": builder.finish,
            "NumPy": partial(build_batch_numpy, **batch, pad_token_id=0),
            "fill mapped": partial(fill, arrays_of(builder.finish())),
        }
        times = effort.run(calls, prepare={"finish": builder.add_all})
        add = median(builder.seconds)
        yield f"{rows:,} long, {case}", times | {"add": add, "add a token": add / tokens}


class Measured:
    """A builder to which the same rollouts are added again and again."""

    def __init__(self, batch: Rollouts, options: dict[str, Any]) -> None:
        self.builder = fc.BatchBuilder(pad_token_id=0, array_type="numpy", **options)
        self.rows = list(zip(*batch.values(), strict=True))
        self.seconds: list[float] = []

    def add_all(self) -> None:
        """Add all rollouts, and note the time."""
        start = time.perf_counter()
        for prompt, response, rewards, loss_mask, logprobs in self.rows:
            self.builder.add(
                prompt, response, rewards=rewards, loss_mask=loss_mask, logprobs=logprobs
            )
        self.seconds.append(time.perf_counter() - start)

    def finish(self) -> fc.Batch:
        """Build the batch, of rollouts added before."""
        if not len(self.builder):
            self.add_all()
        return self.builder.finish()


if __name__ == "__main__":
    main(__doc__, measure, partial(time_cell, ours=["finish"]))
