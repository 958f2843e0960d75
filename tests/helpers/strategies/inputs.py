"""Kinds of input for whole batches."""

from __future__ import annotations

from collections import UserList, deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from hypothesis import strategies as st

from fastcollate.rows.fields import Field
from fastcollate.testing.drawing import Rollouts
from strategies.columns import COLUMN_KINDS, as_column
from strategies.kinds import FIELD_KINDS, LAYOUTS, TOKEN_KINDS, Array, as_kind


def _object_array(rows: Sequence[Any]) -> Array:
    outer = np.empty(len(rows), object)
    # Assigned one by one: NumPy would make a 2-D array of rows of one length.
    for index, row in enumerate(rows):
        outer[index] = row
    return outer


OUTERS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "deque": deque,
    "UserList": UserList,
    "object array": _object_array,
}
"""Containers of rows; besides these, there are 2-D arrays of NumPy and torch for rows of one
length, and `COLUMN_KINDS`."""


@st.composite
def as_inputs(draw: st.DrawFn, data: Rollouts) -> dict[str, Any]:
    """Draw kinds of input for rollouts: one for each row, and one for the container of rows.

    Or one for a whole column: see `COLUMN_KINDS`.

    Parameters
    ----------
    data
        The rollouts; see `rollouts`.

    Returns
    -------
    SearchStrategy[dict[str, object]]
        Keyword arguments for `fastcollate.build_batch`, without ``pad_token_id``. They must give
        the same batch as the lists of `data` do.
    """
    columns = {name: rows for name, rows in data._asdict().items() if rows is not None}
    ids = ("prompts", "responses")
    return {name: draw(_as_rows(rows, ids=name in ids)) for name, rows in columns.items()}


@st.composite
def as_sequences(draw: st.DrawFn, data: Rollouts, *, as_lists: bool = False) -> dict[str, Any]:
    """Draw kinds of input for rollouts as whole sequences.

    Parameters
    ----------
    data
        The rollouts; see `rollouts`.
    as_lists
        If True, all sequences and fields are lists.

    Returns
    -------
    SearchStrategy[dict[str, object]]
        Keyword arguments for `fastcollate.build_batch`, without ``pad_token_id``, that must give
        the same batch as `data`: ``sequences``, ``prompt_lens`` unless all prompts are empty and
        may be left out, and fields along the responses or along the sequences.
    """

    def kinds(rows: list[Any], *, ids: bool) -> st.SearchStrategy[Any]:
        return st.just(rows) if as_lists else _as_rows(rows, ids=ids)

    pairs = list(zip(data.prompts, data.responses, strict=True))
    sequences = [prompt + response for prompt, response in pairs]
    inputs: dict[str, Any] = {"sequences": draw(kinds(sequences, ids=True))}
    lens = [len(prompt) for prompt in data.prompts]
    values = data.rewards, data.logprobs, data.advantages
    is_known = data.loss_mask is not None or values == (None, None, None)
    if any(lens) or not is_known or draw(st.booleans()):
        inputs["prompt_lens"] = draw(st.sampled_from([lens, tuple(lens), np.array(lens)]))
    for name in ("rewards", "loss_mask", "logprobs", "advantages"):
        rows = getattr(data, name)
        if rows is None:
            continue
        aligns: list[Literal["response", "sequence"] | None] = [None, "response", "sequence"]
        align = draw(st.sampled_from(aligns))
        if align == "sequence" and isinstance(rows[0], list):
            rows = [[1] * count + row for count, row in zip(lens, rows, strict=True)]
        column = draw(kinds(rows, ids=False))
        inputs[name] = column if align is None else Field(column, align=align)
    return inputs


@st.composite
def _as_rows(draw: st.DrawFn, rows: Sequence[Any], *, ids: bool) -> Any:
    """Draw kinds of input for one column."""

    def convert(values: Sequence[Any]) -> Any:
        kind = draw(st.sampled_from(TOKEN_KINDS if ids and len(values) else FIELD_KINDS))
        return as_kind(values, kind, ids=ids, layout=draw(st.sampled_from(list(LAYOUTS))))

    one_number_a_row = not isinstance(rows[0], list)
    one_length = not one_number_a_row and len({len(row) for row in rows}) == 1
    if not one_number_a_row and draw(st.integers(0, 3)) == 0:
        return as_column(rows, draw(st.sampled_from(COLUMN_KINDS)), ids=ids)
    if one_number_a_row or (one_length and draw(st.booleans())):
        return convert(rows)
    outer = OUTERS[draw(st.sampled_from(list(OUTERS)))]
    return outer([convert(row) for row in rows])
