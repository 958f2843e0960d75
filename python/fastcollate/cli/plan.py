"""``fastcollate plan``: mini-batches, ranks and bins of the rollouts of a file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fastcollate.cli.files import Source
from fastcollate.cli.options import (
    RANKS,
    AsJson,
    CostsPath,
    Debug,
    Input,
    MergePolicy,
    Ranks,
    SchemaName,
    costs_of,
    reads_columns,
    rows_option,
)
from fastcollate.cli.printing import print_json, print_text
from fastcollate.cli.reporting.wording import read_as
from fastcollate.cli.rows import FileRows, check_capacity
from fastcollate.cli.writing import check_writable, write_whole
from fastcollate.common.arrays import offsets_of
from fastcollate.inspect.step_table import step_figures, step_notes
from fastcollate.plan.costs import Costs
from fastcollate.plan.layouts import Packed
from fastcollate.plan.merge import Policy
from fastcollate.plan.step_plan import StepPlan
from fastcollate.plan.stepping import plan_step
from fastcollate.rows.lengths import Integers

SAID = (
    *("source", "unread", "rows_are", "prompts", "rows", "mini_batches", "ranks"),
    *("padding_rows", "bins", "per_mini_batch", "remarks"),
)
"""Figures that earlier lines have as well."""

MERGED = "merged turns"

SHOWN_LINES = 24
"""Number of plan lines that are printed."""


@reads_columns
def plan(
    *,
    path: Input,
    schema: SchemaName = None,
    dp: Ranks = RANKS,
    capacity: Annotated[
        int | None,
        typer.Option(min=1, metavar="TOKENS", help="Pack rows into bins of this many tokens."),
    ] = None,
    costs: CostsPath = None,
    prompts_per_mini_batch: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="PROMPTS", help="Prompts per mini-batch; needs ids of prompts."
        ),
    ] = None,
    rows_per_mini_batch: Annotated[
        int | None, rows_option("Rows per mini-batch; by default all.")
    ] = None,
    merge: MergePolicy = "exact",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the plan here, as JSON."),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
    names: dict[str, str],
) -> None:
    """Plan a training step on the rows of a file: mini-batches, ranks, bins and their load."""
    cost = costs_of(costs)
    source = Source.of(path, names, schema)
    if output is not None:
        check_writable(output, [*source.paths, costs])
    policy = None if merge == "none" else merge
    lens, numbers, uids, rows_are = _rows(source.chunks(), policy)
    if prompts_per_mini_batch is not None and uids is None:
        raise ValueError(
            "--prompts-per-mini-batch needs the prompts of rows; name their column with --uids "
            "COLUMN"
        )
    are_apart = prompts_per_mini_batch is None and uids is not None and not _are_together(uids)
    if capacity is not None:
        check_capacity(lens.sum(1), numbers, capacity)
    found = plan_step(
        (lens[:, 0], lens[:, 1]),
        uids=None if are_apart else uids,
        prompts_per_mini_batch=prompts_per_mini_batch,
        rows_per_mini_batch=rows_per_mini_batch,
        dp_size=dp,
        allow_partial=True,
        shard_by="tokens" if cost is None else cost,
        layout=None if capacity is None else Packed(capacity),
    )
    remarks = []
    if are_apart:
        remarks.append("rows of a prompt are apart in the file, so each row counts as a prompt")
    asked = prompts_per_mini_batch or rows_per_mini_batch or 0
    count = found.num_prompts if prompts_per_mini_batch else found.num_real_rows
    if asked and count % asked:
        which = "the last mini-batch" if count > asked else "the only mini-batch"
        remarks.append(f"{which} is smaller: it has {count % asked} of {asked}")
    per_mini_batch = step_figures(found)
    figures = {
        "source": source.title,
        "unread": source.unread,
        "rows_are": rows_are,
        **_figures(found, cost),
        "per_mini_batch": per_mini_batch,
        "remarks": [*step_notes(per_mini_batch), *remarks],
    }
    if output is not None:
        write_whole(output, json.dumps(found.to_dict()))
    if as_json:
        print_json(figures, indent=2)
        return
    lines = [read_as(figures)]
    if rows_are == MERGED:
        lines.append(f"rows are merged turns (--merge {merge})")
    lines += found.describe().splitlines()
    if len(lines) > SHOWN_LINES:
        lines = [*lines[:SHOWN_LINES], f"... {len(lines) - SHOWN_LINES:,} more lines"]
    lines += [
        f"{name.replace('_', ' ')}: {_text(value)}"
        for name, value in figures.items()
        if name not in SAID
    ]
    lines += remarks
    if output is not None:
        lines.append(f"wrote {output}")
    print_text("\n".join(lines))


def _rows(
    chunks: Iterable[FileRows], policy: Policy | None
) -> tuple[Integers, list[int], list[Any] | None, str]:
    """Return prompt and response tokens of rows, their numbers, their uids, and what they are.

    The number of a merged row is that of its last turn.
    """
    lens, numbers, uids, rows_are = [], list[int](), [], "rows"
    for rows in chunks:
        ids, calls = rows.ids, rows.calls
        of_chunk = ids.get("uids", [])
        has_trajectories = bool(ids.keys() - {"uids"})
        if policy is None or not has_trajectories:
            rows_are = "turns" if has_trajectories else rows_are
            lens.append(np.stack([calls.prompts.lengths, calls.responses.lengths], 1))
            numbers += range(rows.first_row, rows.first_row + len(calls))
            uids += of_chunk
            continue
        rows_are, merged = MERGED, rows.merge(policy)
        lens.append(np.stack([merged.prompt_lens, merged.response_lens], 1))
        numbers += (merged.sources + rows.first_row).tolist()
        uids += [of_chunk[turn] for turn in merged.sources.tolist() if of_chunk]
    return np.concatenate(lens), numbers, uids or None, rows_are


def _are_together(uids: list[Any]) -> bool:
    """Return True if the rows of each prompt are next to each other."""
    return len(list(groupby(uids))) == len({*uids})


def _figures(plan: StepPlan, costs: Costs | None) -> dict[str, Any]:
    """Return the metrics of a plan."""
    times = plan.forecast(costs or Costs(per_token=1.0), computes_padding=False)
    figures: dict[str, Any] = {
        "prompts": plan.num_prompts,
        "rows": plan.num_real_rows,
        "mini_batches": plan.num_mini_batches,
        "ranks": plan.dp_size,
        "padding_rows": len(plan.padding_rows),
        "cost": "tokens" if costs is None else repr(costs),
        "load_per_rank": times.rank_times.sum(0).tolist(),
        "idle_share": times.idle,
    }
    if plan.bin_offsets is not None:
        assert isinstance(plan.layout, Packed)
        loads = np.diff(offsets_of(plan.added_tokens)[plan.bin_offsets])
        figures["bins"] = len(loads)
        figures["bin_fill"] = float(loads.mean()) / (plan.layout.capacity or 1)
    return figures


def _text(value: Any) -> str:
    if isinstance(value, list):
        shown = [f"{one:,.6g}" if one < 1e5 else f"{one:,.0f}" for one in value[:16]]
        return ", ".join(shown) + (" ..." if len(value) > 16 else "")
    if isinstance(value, float):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else str(value)
