"""Shards of a batch: the rows that one rank trains on, views where they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fastcollate._fastcollate import SYNTHETIC_LENS, OutputTable
from fastcollate.arrays import describe, like_of
from fastcollate.plan.layouts import JAGGED, Layout, Left, Right, TwoSegment
from fastcollate.plan.step_plan import Shard

if TYPE_CHECKING:
    from fastcollate._fastcollate import Output, Plan
    from fastcollate.batch import Batch


def check_shard(shard: Any) -> None:
    """Check the argument ``shard``."""
    if not isinstance(shard, Shard):
        raise TypeError(
            f"shard is {describe(shard)}; pass plan.shard(mini_batch, rank) of what "
            "fastcollate.plan_step returned (shards of fastcollate.ray are for its collate)"
        )


def picked_names(
    name: str, values: Sequence[Any], sources: Sequence[int], shard: Shard | None
) -> list[Any]:
    """Return what names rows, by their sources; padding rows get names of their own."""
    if shard is None:
        return [values[source] for source in sources]
    names, pads = [], shard.first_pad
    for source, is_padding in zip(sources, shard.is_padding.tolist(), strict=True):
        if not is_padding:
            names.append(values[source])
            continue
        names.append(True if name == "is_last_step" else f"pad{pads}")
        pads += 1
    return names


def selected(batch: Batch, shard: Shard) -> Batch:
    """See :meth:`fastcollate.Batch.select`."""
    from fastcollate.ops.relayout import relayout

    check_shard(shard)
    if batch.plan.layout == "packed":
        raise ValueError(
            "the batch is packed: several of its rows share one of the outputs; "
            "pass shard=shard to build_batch, or select from a padded or jagged batch"
        )
    if shard.layout is not None:
        raise ValueError(
            f"the step was planned with layout={shard.layout!r}, but rows that are selected keep "
            "the layout of their batch: plan the step without layout, or pass the shard to "
            "build_batch"
        )
    plan = batch.plan
    first = plan.adjacent(shard)
    layout, is_wider = layout_of(plan, shard)
    if first is None or is_wider:
        return relayout(batch, layout, shard)
    rows = slice(first, first + len(shard.rows))
    views, recipe = _views(batch, rows), batch.recipe
    pick = partial(plan.pick, shard, layout.spec)
    if "loss_mask" not in recipe.table:
        outputs = recipe.outputs.with_loss_mask("float32")
        table = OutputTable.of_layout(
            plan.layout, False, recipe.pad_token_id, recipe.fields, outputs
        )
        recipe = recipe._replace(outputs=outputs, table=table)
        views["loss_mask"] = like_of(pick().loss_mask(), views["input_ids"])
        views = {output.key: views[output.key] for output in table}
    again = type(batch)(
        views,
        None,
        recipe,
        merge_plan=batch.merge_plan,
        is_padding=[False] * len(shard.rows) if (was := batch.is_padding) is None else was[rows],
        **{name: list(values[rows]) for name, values in names_of(batch).items()},
    )
    again._plan_or_call = pick
    again._masked_rewards = batch._masked_rewards
    return again


def names_of(batch: Batch) -> dict[str, Any]:
    """Return what names the rows of a batch."""
    names = ("uids", "trajectory_ids", "is_last_step")
    return {name: values for name in names if (values := getattr(batch, name)) is not None}


def layout_of(plan: Plan, shard: Shard) -> tuple[Layout, bool]:
    """Return the layout of a batch, as wide as the shard's step, and whether that is wider."""
    prompt, response, row = shard.widths or (0, 0, 0)
    if shard.rows.min(initial=0) < 0:
        prompt, response = max(prompt, SYNTHETIC_LENS[0]), max(response, SYNTHETIC_LENS[1])
        row = max(row, sum(SYNTHETIC_LENS))
    if plan.layout == "jagged":
        return JAGGED, False
    response_width = max(plan.response_width, response)
    if plan.layout == "two_segment":
        prompt_width = max(plan.width - plan.response_width, prompt)
        layout = TwoSegment(pad_prompt_to=prompt_width, pad_response_to=response_width)
        return layout, prompt_width + response_width > plan.width
    width = max(plan.width, row)
    is_wider = (width, response_width) != (plan.width, plan.response_width)
    kind = Left if plan.layout == "left" else Right
    return kind(pad_to=width, pad_response_to=response_width), is_wider


def _views(batch: Batch, rows: slice) -> dict[str, Any]:
    """Return the outputs of adjacent rows, over the same memory."""
    outputs = list(batch.recipe.table)
    # Values that lie end to end are found by their offsets; all others, by rows.
    spans: dict[tuple[str, int | None], slice] = {}
    for output in outputs:
        place = output.align.removesuffix("_offsets"), output.field
        if place[0] != output.align and place not in spans:
            offsets = batch[output.key]
            spans[place] = slice(int(offsets[rows.start]), int(offsets[rows.stop]))

    def view(output: Output) -> Any:
        value, align = batch[output.key], output.align
        if align.endswith("_offsets"):
            return value[rows.start : rows.stop + 1] - value[rows.start]
        if align == "batch":  # the longest row is the one such output of a jagged batch
            return int((batch.plan.prompt_lens + batch.plan.response_lens)[rows].max())
        return value[spans.get((align, output.field if align == "joined" else None), rows)]

    return {output.key: view(output) for output in outputs}
