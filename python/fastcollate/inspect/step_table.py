"""The mini-batches of a step as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastcollate.common.arguments import tally
from fastcollate.common.arrays import offsets_of
from fastcollate.common.text import table_of

if TYPE_CHECKING:
    from fastcollate.plan.step_plan import StepPlan


def step_lines(plan: StepPlan) -> list[str]:
    """Return the table of mini-batches as lines, and the notes below it."""
    bins, offsets = plan.bin_offsets, plan._rank_offsets
    head = ["mini-batch", "prompts", "rows", "padding", "tokens/rank", "imbalance"]
    cells = [head if bins is None else [*head, "bins/rank"]]
    padding = np.diff(offsets_of(plan.is_padding)[offsets], axis=1)
    without_rows = np.count_nonzero(np.diff(offsets, axis=1) == padding, axis=1)
    columns = zip(plan.mini_batches, plan.tokens_per_rank, strict=True)
    for index, ((start, end), tokens) in enumerate(columns):
        least, most = int(tokens.min()), int(tokens.max())
        imbalance = most / float(tokens.mean()) if most else 1.0
        prompts = np.searchsorted(plan.prompt_offsets, [start, end - 1], "right")
        cells.append(
            [
                str(index),
                f"{prompts[1] - prompts[0] + 1 if start < end else 0:,}",
                f"{end - start:,}",
                f"{padding[index].sum():,}",
                f"{least:,}" if least == most else f"{least:,} to {most:,}",
                f"{imbalance:.3f}",
            ]
        )
        if bins is not None:
            first, second = np.searchsorted(bins, offsets[index, :2])
            cells[-1].append(f"{second - first:,}")
    notes = [
        f"mini-batch {index}: {tally(int(without_rows[index]), 'rank')} without a real row"
        for index in np.flatnonzero(without_rows)
    ]
    return [table_of(cells), *notes]
