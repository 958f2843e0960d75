"""Rows of a batch or of a shard, as views if they are adjacent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate.common.arguments import is_sequence, tally
from fastcollate.common.arrays import describe, dtype_name, is_tensor
from fastcollate.common.text import show
from fastcollate.ops.collating import import_torch
from fastcollate.ops.missing_outputs import ROWS_ADVICE
from fastcollate.ops.ragged_outputs import ragged_outputs, viewed_values
from fastcollate.ops.relayout import relayout
from fastcollate.plan.shard import Shard, check_shard, join_shards, pad_names, shard_of_rows
from fastcollate.rows.lengths import check_indices

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastcollate._fastcollate import Plan
    from fastcollate.ops.batch_state import BatchState
    from fastcollate.plan.layout import Layout


def select_shards(state: BatchState, shards: Sequence[Any]) -> list[BatchState]:
    """See :meth:`fastcollate.Batch.shards`."""
    for shard in shards:
        _check_selected(state.plan, shard)
    return _pick(state, shards)


def _check_selected(plan: Plan, shard: Any) -> None:
    """Check that a shard's rows can be selected from a batch."""
    if not isinstance(shard, Shard) and (
        is_sequence(shard) or isinstance(shard, (Integral, slice))
    ):
        raise TypeError(f"shard is {describe(shard)}; {ROWS_ADVICE}")
    check_shard(shard)
    if shard.is_narrow:
        raise ValueError(
            "the shard is narrow, but selected rows keep the width of their batch; pass shard to "
            "build_batch, or select the shard of the plan and call to_layout"
        )
    if plan.has_bins:
        advice = " or bins=..." if plan.is_tree else ""
        raise ValueError(
            f"the batch has layout={plan.layout!r}, so several of its rows share a row of "
            f"the outputs; pass shard to build_batch{advice}, or select from a padded or jagged "
            "batch"
        )
    found = None if shard.layout is None else _other_layout(plan, shard, shard.layout)
    if found is not None:
        raise ValueError(
            f"the step was planned with layout={shard.layout!r}, but selected rows keep the layout "
            f"of their batch, {found}; plan the step without layout, or pass shard to build_batch"
        )


def select_rows(state: BatchState, rows: Any) -> BatchState:
    """See :meth:`fastcollate.Batch.select`."""
    plan = state.plan
    indices = _parse_rows(plan, rows)
    if plan.is_tree:
        shown = show(indices.tolist())
        raise ValueError(
            f"rows is {shown}, but the batch has layout='tree', whose rows share tokens; select "
            f"whole bins by bins=..., or call batch.to_layout('jagged').select(rows={shown})"
        )
    selected = _pick(state, [shard_of_rows(indices, plan.num_rows)])[0]
    return selected if state.is_padding is not None else selected._replace(is_padding=None)


def _parse_rows(plan: Plan, rows: Any) -> NDArray[np.int64]:
    """Return indices of a batch's rows, each once."""
    if not is_sequence(rows):
        raise TypeError(f"rows is {describe(rows)}; {ROWS_ADVICE}")
    is_array = isinstance(rows, np.ndarray) or is_tensor(rows)
    if is_array and dtype_name(rows.dtype) == "bool":
        raise TypeError(
            f"rows is {describe(rows)}, a mask; pass indices of rows, such as np.flatnonzero(mask)"
        )
    indices, count = check_indices("rows", rows, "rows"), plan.num_rows
    if len(indices) == 0:
        raise ValueError("rows is empty; pass the index of at least one row")
    if (beyond := np.flatnonzero(indices >= count)).size:
        at = beyond[0]
        raise ValueError(
            f"rows[{at}] is {indices[at]}, but the batch has {tally(count, 'row')}; pass indices "
            f"from 0 to {count - 1}"
        )
    order = np.argsort(indices, kind="stable")
    if (again := np.flatnonzero(np.diff(indices[order]) == 0)).size:
        at = order[again[0] + 1]
        raise ValueError(
            f"rows[{order[again[0]]}] and rows[{at}] are both {indices[at]}, and a repeated row "
            "would train twice; pass each row once"
        )
    return indices


def _pick(state: BatchState, shards: Sequence[Shard]) -> list[BatchState]:
    """Return batches of shards' rows: views if they are adjacent, else copies, of one call."""
    plan = state.plan
    firsts = [plan.first_in_view(shard.spec) for shard in shards]
    written = [shard for shard, first in zip(shards, firsts, strict=True) if first is None]
    copies: Iterator[BatchState] = iter(())
    if written:
        joined = join_shards(written)
        copy = relayout(state, plan.layout_for(joined.spec), joined)
        copies = iter([copy] if len(written) == 1 else _divided(copy, written, plan))
    return [
        next(copies) if first is None else _view(state, first, shard, plan)
        for shard, first in zip(shards, firsts, strict=True)
    ]


def _divided(state: BatchState, shards: Sequence[Shard], plan: Plan) -> Iterator[BatchState]:
    """Return batches of shards, whose rows a batch has one after the other."""
    first = 0
    for shard in shards:
        view = _view(state, first, shard, plan)
        yield view._replace(data={key: _own_storage(value) for key, value in view.data.items()})
        first += len(shard)


def _own_storage(value: Any) -> Any:
    """Return a tensor over the same memory that is saved, and changed in place, by itself."""
    if not is_tensor(value):
        return value
    torch = import_torch()
    return torch.from_dlpack(torch.to_dlpack(value))


def _view(state: BatchState, first: int, shard: Shard, plan: Plan) -> BatchState:
    """Return a batch of a shard's rows, which are adjacent in a batch; `plan` numbers them."""
    rows = slice(first, first + len(shard))

    @cache
    def made_by() -> Plan:
        return plan.pick(shard.spec, plan.layout_for(shard.spec))

    was, ids = state.is_padding, state.ids_of(range(rows.start, rows.stop))
    padded: dict[str, Any] = {name: pad_names(name, of, shard) for name, of in ids.items()}
    return state._replace(
        data=_views(state, rows),
        made_by=made_by,
        owner=None,
        transfer=None,
        is_padding=[False] * len(shard) if was is None else was[rows],
        **padded,
    )


def _other_layout(plan: Plan, shard: Shard, layout: Layout) -> str | None:
    """Describe a batch's layout, if it arranges rows differently from the layout of the step."""
    if layout.name != plan.layout:
        return repr(plan.layout)
    kept = plan.pick(shard.spec, plan.layout_for(shard.spec))
    planned = plan.pick(shard.spec, layout.spec)
    if (kept.width, kept.response_width) == (planned.width, planned.response_width):
        return None
    return f"{plan.layout!r} with rows of {kept.width} positions in place of {planned.width}"


def _views(state: BatchState, rows: slice) -> dict[str, Any]:
    """Return the outputs of adjacent rows, over the same memory."""
    table = state.spec.table
    outputs = [(output.key, output.align, output.field) for output in table]
    # Concatenated values are selected by their offsets; all others, by rows.
    spans: dict[tuple[str, int | None], slice] = {}
    for key, align, field in outputs:
        if align.endswith("_offsets"):
            offsets = state.data[key]
            span = slice(int(offsets[rows.start]), int(offsets[rows.stop]))
            spans.setdefault((align.removesuffix("_offsets"), field), span)
    views: dict[str, Any] = {}
    for ragged in ragged_outputs(table):
        width = state.plan.leading_shape(ragged.align == "sequence")[-1]
        padded = slice(rows.start * width, rows.stop * width)
        views |= viewed_values(state, ragged, spans.get((ragged.align, None), padded))
    for key, align, field in outputs:
        value = state.data[key]
        if key in views:
            continue
        if align.endswith("_offsets"):
            views[key] = value[rows.start : rows.stop + 1] - value[rows.start]
        elif align == "batch":  # in a jagged batch only the longest row
            offsets = next(key for key, align, _ in outputs if align == "sequence_offsets")
            ends = state.data[offsets][rows.start : rows.stop + 1]
            views[key] = int((ends[1:] - ends[:-1]).max())
        else:
            views[key] = value[spans.get((align, field if align == "joined" else None), rows)]
    return {key: views[key] for key, _, _ in outputs}
