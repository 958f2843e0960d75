"""Kinds of input for whole batches."""

from __future__ import annotations

from collections import UserList, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fastcollate.testing.strategies.columns import COLUMN_KINDS, as_column
from fastcollate.testing.strategies.drawing import Rollouts
from fastcollate.testing.strategies.kinds import FIELD_KINDS, LAYOUTS, TOKEN_KINDS, Array, as_kind


def _object_array(rows: Sequence[Any]) -> Array:
    outer = np.empty(len(rows), object)
    # Assigned one by one: from rows of one length NumPy would make a table of numbers.
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
"""What the rows may be held in; besides, NumPy and torch hold rows of one length as 2-D arrays,
and there are `COLUMN_KINDS`."""


@st.composite
def as_inputs(draw: st.DrawFn, data: Rollouts) -> dict[str, Any]:
    """Draw kinds of input for rollouts: one for each row, and one for what holds the rows.

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

    def convert(values: Sequence[Any], *, ids: bool) -> Any:
        kind = draw(st.sampled_from(TOKEN_KINDS if ids and len(values) else FIELD_KINDS))
        return as_kind(values, kind, ids=ids, layout=draw(st.sampled_from(list(LAYOUTS))))

    inputs: dict[str, Any] = {}
    for name, rows in data._asdict().items():
        if rows is None:
            continue
        ids = name in ("prompts", "responses")
        one_number_a_row = not isinstance(rows[0], list)
        one_length = not one_number_a_row and len({len(row) for row in rows}) == 1
        if not one_number_a_row and draw(st.integers(0, 3)) == 0:
            inputs[name] = as_column(rows, draw(st.sampled_from(COLUMN_KINDS)), ids=ids)
        elif one_number_a_row or (one_length and draw(st.booleans())):
            inputs[name] = convert(rows, ids=ids)
        else:
            outer = OUTERS[draw(st.sampled_from(list(OUTERS)))]
            inputs[name] = outer([convert(row, ids=ids) for row in rows])
    return inputs
