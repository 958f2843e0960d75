"""Shards of a batch: the rows that one rank trains on, views where they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate._fastcollate import LayoutSpec
from fastcollate.arrays import describe, like_of
from fastcollate.ingest.fields import RESERVED, PerRowObjects
from fastcollate.plan.step_plan import SYNTHETIC_LENS, Shard

if TYPE_CHECKING:
    from fastcollate._fastcollate import Plan
    from fastcollate.batch import Batch


def check_shard(name: str, shard: Any) -> None:
    """Check that an argument is a shard."""
    if not isinstance(shard, Shard):
        raise TypeError(
            f"{name} is {describe(shard)}; pass plan.shard(mini_batch, rank) of what "
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
    from fastcollate.relayout import laid_out

    check_shard("shard", shard)
    if batch.plan.layout == "packed":
        raise ValueError(
            "the batch is packed: several of its rows share one of the outputs; "
            "pass rows=shard to build_batch, or select from a padded or jagged batch"
        )
    if shard.bin_offsets is not None:
        raise ValueError(
            "the step was planned with pack=, and packed rows are written from the turns: "
            "pass rows=shard and layout='packed' to build_batch"
        )
    plan = batch.plan
    first = plan.adjacent(shard)
    layout, is_wider = layout_of(plan, shard)
    if first is None or is_wider:
        return laid_out(batch, layout, shard)
    rows = slice(first, first + len(shard.rows))
    views, recipe, pick = _views(batch, rows), batch.recipe, partial(plan.pick, shard, layout)
    if "loss_mask" not in views:
        views = _with_loss_mask(batch, views, pick())
        recipe = recipe._replace(outputs=recipe.outputs.with_loss_mask("float32"))
    again = type(batch)(
        views,
        None,
        recipe,
        merge_plan=batch.merge_plan,
        is_padding=[False] * len(shard.rows) if (was := batch.is_padding) is None else was[rows],
        **{name: list(values[rows]) for name, values in _names(batch).items()},
    )
    again._plan_or_call = pick
    again._masked_rewards = batch._masked_rewards
    return again


def _names(batch: Batch) -> dict[str, Sequence[Any]]:
    """Return what names the rows of a batch."""
    names = ("uids", "trajectory_ids", "is_last_step")
    return {name: values for name in names if (values := getattr(batch, name)) is not None}


def name_rows(again: Batch, batch: Batch, shard: Shard | None) -> None:
    """Name the rows of a batch that were picked from another."""
    for name, values in _names(batch).items():
        if shard is not None:
            values = picked_names(name, values, shard.rows.tolist(), shard)
        setattr(again, name, values)
    if shard is None:
        again.is_padding = batch.is_padding
    else:
        was = batch.is_padding or [False] * batch.plan.num_rows
        rows = zip(shard.rows.tolist(), shard.is_padding.tolist(), strict=True)
        again.is_padding = [is_padding or was[row] for row, is_padding in rows]


def layout_of(plan: Plan, shard: Shard) -> tuple[LayoutSpec, bool]:
    """Return the layout of a batch, as wide as the shard's step, and whether that is wider."""
    prompt, response, row = shard.widths or (0, 0, 0)
    if shard.rows.min(initial=0) < 0:
        prompt, response = max(prompt, SYNTHETIC_LENS[0]), max(response, SYNTHETIC_LENS[1])
        row = max(row, sum(SYNTHETIC_LENS))
    if plan.layout == "jagged":
        return LayoutSpec("jagged", None, None, None, 1), False
    response_width = max(plan.response_width, response)
    if plan.layout == "two_segment":
        prompt_width = max(plan.width - plan.response_width, prompt)
        layout = LayoutSpec(plan.layout, None, prompt_width, response_width, 1)
        return layout, prompt_width + response_width > plan.width
    width = max(plan.width, row)
    is_wider = (width, response_width) != (plan.width, plan.response_width)
    return LayoutSpec(plan.layout, width, None, response_width, 1), is_wider


def objects_of(batch: Batch, rows: Sequence[int] | None) -> dict[str, Any]:
    """Return the outputs that the core does not write, of these rows."""
    objects: dict[str, Any] = {}
    for key in _object_keys(batch):
        value = batch[key]
        if isinstance(value, list):
            objects |= PerRowObjects(value, False).outputs(key, rows)
            continue
        offsets = np.asarray(batch[f"{key}_offsets"]).tolist()
        chosen = range(len(offsets) - 1) if rows is None else rows
        # -1 is a synthetic row: nothing of the first one.
        bounds = [(offsets[row], offsets[row + 1]) if row >= 0 else (0, 0) for row in chosen]
        arrays = [value[start:stop] for start, stop in bounds]
        objects |= PerRowObjects(arrays, True).outputs(key, None)
    return objects


def _object_keys(batch: Batch) -> list[str]:
    """Return the keys of lists of one array a row, and of arrays joined that have offsets."""
    others = [key for key in batch if key not in RESERVED]
    fields = {spec.key for spec in batch.recipe.fields}
    return [
        key
        for key in others
        if key not in fields and (isinstance(batch[key], list) or f"{key}_offsets" in batch)
    ]


def _with_loss_mask(batch: Batch, views: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """Add the loss mask that follows from the plan, in front of fields."""
    fields = {"router_padding_mask", *(spec.key for spec in batch.recipe.fields)}
    own = [key for key in views if key in RESERVED and key not in fields]
    mask = like_of(plan.loss_mask(), views["input_ids"])
    return {key: views[key] for key in own} | {"loss_mask": mask} | views


def _views(batch: Batch, rows: slice) -> dict[str, Any]:
    """Return the outputs of rows that follow each other, over the same memory."""
    plan = batch.plan
    objects: dict[str, Any] = {}
    for key in _object_keys(batch):
        objects |= _view_of_objects(batch, key, rows)
    if plan.layout != "jagged":
        return {
            key: objects[key] if key in objects else value[rows] for key, value in batch.items()
        }
    aligned = {"loss_mask": "response"} | {spec.key: spec.align for spec in batch.recipe.fields}
    tokens, answers = (
        slice(int(batch[name][rows.start]), int(batch[name][rows.stop]))
        for name in ("offsets", "response_offsets")
    )

    def view(key: str, value: Any) -> Any:
        if key in objects:
            return objects[key]
        if key == "max_seqlen":
            return int((plan.prompt_lens + plan.response_lens)[rows].max())
        if key in ("offsets", "cu_seqlens", "response_offsets"):
            return value[rows.start : rows.stop + 1] - value[rows.start]
        align = aligned.get(key, "sequence")
        return value[{"row": rows, "response": answers}.get(align, tokens)]

    return {key: view(key, value) for key, value in batch.items()}


def _view_of_objects(batch: Batch, key: str, rows: slice) -> dict[str, Any]:
    if isinstance(batch[key], list):
        return {key: batch[key][rows]}
    offsets = batch[f"{key}_offsets"]
    start = offsets[rows.start]
    joined = batch[key][int(start) : int(offsets[rows.stop])]
    return {key: joined, f"{key}_offsets": offsets[rows.start : rows.stop + 1] - start}
