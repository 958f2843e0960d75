"""Selection of some bins of a tree, with their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate.common.arguments import tally
from fastcollate.common.arrays import like_of, offsets_of, ranges_of, take, to_numpy
from fastcollate.ops.ragged_outputs import ragged_outputs, taken_values
from fastcollate.rows.lengths import check_indices

if TYPE_CHECKING:
    from fastcollate.ops.batch_state import BatchState


def select_bins(state: BatchState, bins: Any) -> BatchState:
    """See :meth:`fastcollate.Batch.select`."""
    plan = state.plan
    if not plan.is_tree:
        raise ValueError(
            f"bins is given, but the batch has layout={plan.layout!r}; pass a batch that was built "
            "with layout=fc.Tree(...), or a shard"
        )
    bins = check_indices("bins", bins, "bins")
    count = plan.num_output_rows
    if len(bins) == 0 or bins.max() >= count or len(np.unique(bins)) < len(bins):
        raise ValueError(
            f"bins is {bins.tolist()}, but the batch has {tally(count, 'bin')}; pass one or "
            f"more of the numbers from 0 to {count - 1}, each once"
        )
    rows, selected = plan.select_bins(bins)
    # Positions of the rows' values in outputs that concatenate them.
    lens = {
        "response": plan.response_lens,
        "stream": plan.prompt_lens + plan.response_lens,
    }
    aligns = {output.align.removesuffix("_values") for output in state.spec.table}
    places = {
        name: ranges_of(offsets_of(of_rows)[rows], of_rows[rows])
        for name, of_rows in lens.items()
        if name in aligns
    }
    follows = dict(zip(("predictors", "row_bins"), selected.tree_positions(), strict=True))
    data: dict[str, Any] = {}
    for ragged in ragged_outputs(state.spec.table):
        data |= taken_values(state, ragged, places[ragged.align])
    for output in state.spec.table:
        key, align, value = output.key, output.align, state.data[output.key]
        if key in data:
            continue
        if output.field is None and key in follows:
            data[key] = like_of(follows[key], value)
        elif align == "sequence":
            data[key] = take(value, bins)
        elif align in places:
            data[key] = take(value, places[align])
        elif align == "row":
            data[key] = take(value, rows)
        elif align == "object":
            data[key] = [value[row] for row in rows.tolist()]
        elif align == "joined":
            offsets = to_numpy(state.data[f"{key}_offsets"])
            data[key] = take(value, ranges_of(offsets[rows], np.diff(offsets)[rows]))
        else:
            data[key] = like_of(offsets_of(np.diff(to_numpy(value))[rows]), value)
    was = state.is_padding
    return state._replace(
        data={output.key: data[output.key] for output in state.spec.table},
        made_by=selected,
        owner=None,
        transfer=None,
        is_padding=[False if was is None else was[row] for row in rows.tolist()],
        **state.ids_of(rows.tolist()),
    )
