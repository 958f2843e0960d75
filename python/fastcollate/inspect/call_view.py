"""Readable views of calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fastcollate.inspect.batch_view import BatchView
from fastcollate.ops.collating import Request, collate
from fastcollate.plan.layouts import JAGGED
from fastcollate.rows.columns import Ragged
from fastcollate.rows.fields import ADVANTAGES, LOGPROBS, LOSS_MASK, REWARDS, check_fields
from fastcollate.rows.per_row import PerRow
from fastcollate.rows.tokens import Parts

FIELDS = {
    "loss_mask": LOSS_MASK,
    "logprobs": LOGPROBS,
    "rewards": REWARDS,
    "advantages": ADVANTAGES,
}

FIRST = 3
"""Calls that are shown if none are chosen."""


def view_calls(
    calls: Any,
    chosen: Any = None,
    tokenizer: Any = None,
    fields: Any = (),
    fold: Any = 16,
    names: Mapping[int, str] | None = None,
) -> BatchView:
    """Return a view of `Calls`, in the order of `chosen`; `names` are the calls' names."""
    known = np.arange(len(calls))
    index = (known[:FIRST] if chosen is None else known[np.asarray(chosen)]).tolist()
    rows = calls.select(index)
    responses, mask = rows.responses, rows.loss_mask
    if mask is None:
        mask = Ragged(np.ones(len(responses.values), np.int32), responses.offsets)
    given = rows._arguments("logprobs", "rewards", "advantages") | {"loss_mask": mask}
    of_rows = {
        name: PerRow(column)
        for name, column in given.items()
        if len(column) > 0 and np.ndim(column[0]) == 0
    }
    specs = check_fields(of_rows, "numpy")
    specs += [(given[name], FIELDS[name]) for name in FIELDS if name in given.keys() - of_rows]
    tokens = Parts(rows.prompts, responses)
    state = collate(Request(tokens, 0, specs, "numpy", JAGGED.spec))
    named = {row: names[call] if names else f"call {call:,}" for row, call in enumerate(index)}
    return BatchView(state, range(len(index)), tokenizer, fields, fold, named)
