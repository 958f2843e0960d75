"""Positions of rows' tokens and response values in a batch's outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fastcollate.arrays import (
    dtype_name,
    is_only_torch,
    is_tensor,
    offsets_of,
    to_numpy,
)
from fastcollate.plan.plan_tables import PlanTables, Spans

if TYPE_CHECKING:
    from fastcollate._fastcollate import Plan
    from fastcollate.plan.lengths import Integers


class RowPlaces(NamedTuple):
    """Positions of a batch's rows in its outputs.

    Attributes
    ----------
    tokens : Spans
        Their tokens, in sequence-aligned outputs. In a tree they overlap.
    written : Spans
        The same, but each position belongs only to the row that it is written for. Rows without a
        position of their own have an empty span.
    responses : Spans
        The values of their response tokens, in response-aligned outputs.
    streams : Spans
        The values of their tokens, in outputs where each row has its own positions, as in trees.
    prompt_lens, response_lens : int64 (rows,)
        The lengths of the rows.
    width : int
        Width of sequence-aligned outputs; jagged ones count as one row.
    """

    tokens: Spans
    written: Spans
    responses: Spans
    streams: Spans
    prompt_lens: Integers
    response_lens: Integers
    width: int

    @classmethod
    def of(cls, plan: Plan) -> RowPlaces:
        """Return the positions of a plan's rows."""
        tables = PlanTables(plan)
        lens = tables.prompt_lens + tables.response_lens
        rows = np.arange(len(lens))
        return cls(
            tables.read.nonempty(),
            tables.written,
            tables.responses.nonempty(),
            Spans(rows, np.zeros_like(rows), lens, offsets_of(lens)[:-1]),
            tables.prompt_lens,
            tables.response_lens,
            plan.width,
        )


def on_host(value: Any) -> np.ndarray:
    """Return an output as an array on the host; floats that NumPy lacks as float32."""
    if is_tensor(value) and is_only_torch(value.dtype):
        value = value.float()
    array: np.ndarray = to_numpy(value)
    return array


def is_float(value: Any) -> bool:
    """Return True for an output of floats."""
    return "float" in dtype_name(value.dtype)
