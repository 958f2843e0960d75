"""The mini-batches of a step as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate.common.arguments import tally
from fastcollate.common.arrays import offsets_of
from fastcollate.common.text import table_of

if TYPE_CHECKING:
    from fastcollate.plan.step_plan import StepPlan


def step_figures(plan: StepPlan) -> list[dict[str, Any]]:
    """Return the figures of each mini-batch; tokens per rank include padding rows."""
    bins, offsets = plan.bin_offsets, plan._rank_offsets
    padding = np.diff(offsets_of(plan.is_padding)[offsets], axis=1)
    without_rows = np.count_nonzero(np.diff(offsets, axis=1) == padding, axis=1)
    found = []
    columns = zip(plan.mini_batches, plan.tokens_per_rank, strict=True)
    for index, ((start, end), tokens) in enumerate(columns):
        prompts = np.searchsorted(plan.prompt_offsets, [start, end - 1], "right")
        figures = {
            "prompts": int(prompts[1] - prompts[0] + 1) if start < end else 0,
            "rows": int(end - start),
            "padding_rows": int(padding[index].sum()),
            "tokens_per_rank": tokens.tolist(),
            "imbalance": float(tokens.max() / tokens.mean()) if tokens.any() else 1.0,
            "ranks_without_rows": int(without_rows[index]),
        }
        if bins is not None:
            first, second = np.searchsorted(bins, offsets[index, :2])
            figures["bins_per_rank"] = int(second - first)
        found.append(figures)
    return found


def step_lines(plan: StepPlan) -> list[str]:
    """Return the table of mini-batches as lines, and the notes below it."""
    head = ["mini-batch", "prompts", "rows", "padding", "tokens/rank", "imbalance"]
    cells = [head if plan.bin_offsets is None else [*head, "bins/rank"]]
    figures = step_figures(plan)
    for index, one in enumerate(figures):
        least, most = min(one["tokens_per_rank"]), max(one["tokens_per_rank"])
        row = [
            str(index),
            *(f"{one[name]:,}" for name in ("prompts", "rows", "padding_rows")),
            f"{least:,}" if least == most else f"{least:,} to {most:,}",
            f"{one['imbalance']:.3f}",
        ]
        if "bins_per_rank" in one:
            row.append(f"{one['bins_per_rank']:,}")
        cells.append(row)
    return [table_of(cells), *step_notes(figures)]


def step_notes(figures: list[dict[str, Any]]) -> list[str]:
    """Return a line for each mini-batch in which ranks have no real row."""
    counts = [one["ranks_without_rows"] for one in figures]
    return [
        f"mini-batch {index}: {tally(count, 'rank')} without a real row"
        for index, count in enumerate(counts)
        if count
    ]
