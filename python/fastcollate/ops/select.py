"""Shards of a batch: the rows that one rank trains on, as views if they are adjacent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastcollate.ops.relayout import names_of, relayout
from fastcollate.plan.shard import Shard, check_shard

if TYPE_CHECKING:
    from fastcollate._fastcollate import Plan
    from fastcollate.batch import Batch
    from fastcollate.plan.layouts import Layout


def selected(batch: Batch, shard: Shard) -> Batch:
    """See :meth:`fastcollate.Batch.select`."""
    check_shard(shard)
    if batch.plan.has_bins:
        advice = " or bins=..." if batch.plan.is_tree else ""
        raise ValueError(
            f"the batch has layout={batch.plan.layout!r}, so several of its rows share a row of "
            f"the outputs; pass shard to build_batch{advice}, or select from a padded or jagged "
            "batch"
        )
    plan = batch.plan
    found = None if shard.layout is None else _other_layout(plan, shard, shard.layout)
    if found is not None:
        raise ValueError(
            f"the step was planned with layout={shard.layout!r}, but selected rows keep the layout "
            f"of their batch, {found}; plan the step without layout, or pass shard to build_batch"
        )
    first = plan.first_in_view(shard)
    if first is None:
        return relayout(batch, plan.layout_for(shard), shard)
    rows = slice(first, first + len(shard.rows))
    views = _views(batch, rows)

    def pick() -> Plan:
        return plan.pick(shard, plan.layout_for(shard))

    return batch._replace(
        _data=views,
        _plan_or_call=pick,
        _owner=None,
        _handover=None,
        is_padding=[False] * len(shard.rows) if (was := batch.is_padding) is None else was[rows],
        **{name: list(values[rows]) for name, values in names_of(batch).items()},
    )


def _other_layout(plan: Plan, shard: Shard, layout: Layout) -> str | None:
    """Describe a batch's layout, if it arranges rows differently from the layout of the step."""
    if layout.name != plan.layout:
        return repr(plan.layout)
    kept = plan.pick(shard, plan.layout_for(shard))
    planned = plan.pick(shard, layout.spec)
    if (kept.width, kept.response_width) == (planned.width, planned.response_width):
        return None
    return f"{plan.layout!r} with rows of {kept.width} positions in place of {planned.width}"


def _views(batch: Batch, rows: slice) -> dict[str, Any]:
    """Return the outputs of adjacent rows, over the same memory."""
    outputs = [(output.key, output.align, output.field) for output in batch.spec.table]
    # Concatenated values are selected by their offsets; all others, by rows.
    spans: dict[tuple[str, int | None], slice] = {}
    for key, align, field in outputs:
        if align.endswith("_offsets"):
            offsets = batch._data[key]
            span = slice(int(offsets[rows.start]), int(offsets[rows.stop]))
            spans.setdefault((align.removesuffix("_offsets"), field), span)
    views: dict[str, Any] = {}
    for key, align, field in outputs:
        value = batch._data[key]
        if align.endswith("_offsets"):
            views[key] = value[rows.start : rows.stop + 1] - value[rows.start]
        elif align == "batch":  # in a jagged batch only the longest row
            views[key] = int((batch.plan.prompt_lens + batch.plan.response_lens)[rows].max())
        else:
            views[key] = value[spans.get((align, field if align == "joined" else None), rows)]
    return views
