"""The rows of a batch one by one, without padding."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from fastcollate.common.arrays import offsets_of, on_host
from fastcollate.common.row_columns import IDS
from fastcollate.ops.missing_outputs import missing_of_row
from fastcollate.ops.parts import Parts
from fastcollate.ops.ragged_outputs import RaggedOutput, ragged_outputs
from fastcollate.ops.relayout import relayout
from fastcollate.plan.layouts import JAGGED
from fastcollate.rows.columns import Ragged

if TYPE_CHECKING:
    from fastcollate.ops.batch_state import BatchState


class RowView(dict[str, Any]):
    """A row of a batch."""

    def __missing__(self, key: object) -> Any:
        raise KeyError(missing_of_row(self, key))

    def __getattr__(self, name: str) -> NoReturn:
        advice = f"read row[{name!r}]" if name in self else missing_of_row(self, name)
        raise AttributeError(f"a row is a dict, without attributes; {advice}")


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
    for ragged in ragged_outputs(table):
        columns[ragged.values] = _row_values(data, ragged, counts[ragged.align])
    columns |= {IDS[name]: values for name, values in jagged.ids.items()}
    rows = zip(is_real, *columns.values(), strict=True)
    return (RowView(zip(columns, row, strict=True)) for is_real, *row in rows if is_real)


def _row_values(data: dict[str, Any], output: RaggedOutput, lens: list[int]) -> list[Ragged]:
    """Return the values of each row's tokens, over the same memory."""
    values, ends = data[output.values], on_host(data[output.offsets])
    bounds = offsets_of(lens).tolist()
    of_rows = (ends[first : last + 1] for first, last in pairwise(bounds))
    return [Ragged(values[int(own[0]) : int(own[-1])], own - own[0]) for own in of_rows]
