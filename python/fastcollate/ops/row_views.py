"""The rows of a batch one by one, without padding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate.common.row_columns import IDS
from fastcollate.ops.parts import Parts
from fastcollate.ops.relayout import relayout
from fastcollate.plan.layouts import JAGGED

if TYPE_CHECKING:
    from fastcollate.ops.batch_state import BatchState


def row_views(state: BatchState) -> Iterator[dict[str, Any]]:
    """Return the real rows in order (see :meth:`fastcollate.Batch.rows`)."""
    is_real = state.is_real.tolist()
    jagged = state if state.plan.is_jagged else relayout(state, JAGGED.spec)
    plan, table, data = jagged.plan, jagged.spec.table, jagged.data
    prompt_lens, response_lens = plan.prompt_lens, plan.response_lens
    lens = (prompt_lens + response_lens).tolist()
    counts = {"sequence": lens, "stream": lens, "response": response_lens.tolist()}
    offsets = {output.field: output.key for output in table if output.align == "joined_offsets"}
    columns: dict[str, Any] = {"prompt_len": prompt_lens.tolist()}
    for output in table:
        value = data[output.key]
        if output.align in counts:
            columns[output.key] = Parts(value, counts[output.align]).views
        elif output.align == "joined":
            ends = np.asarray(data[offsets[output.field]])
            columns[output.key] = Parts(value, np.diff(ends).tolist()).views
        elif output.align in ("row", "array", "object"):
            columns[output.key] = value
    columns |= {IDS[name]: values for name, values in jagged.ids.items()}
    rows = zip(is_real, *columns.values(), strict=True)
    return (dict(zip(columns, row, strict=True)) for is_real, *row in rows if is_real)
