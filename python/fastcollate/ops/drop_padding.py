"""Results of a plan's slots in the order of the step's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate.common.arguments import id_list, suggests_names, tally
from fastcollate.common.arrays import (
    is_array,
    is_tensor,
    take,
)
from fastcollate.plan.tables import check_step_plan
from fastcollate.rows.columns import Ragged, pick

if TYPE_CHECKING:
    from fastcollate.plan.step_plan import StepPlan


@suggests_names
def drop_padding(values: Any, plan: StepPlan) -> Any:
    """Reorder results of a plan's slots to the step's rows, without padding.

    Parameters
    ----------
    values
        One item per slot, in slot order: the results of the shards, by mini-batch, then by rank. An
        array or tensor, (slots, ...), on any device (gradients flow through); a :class:`Ragged`; or
        a sequence of any objects. For a packed step also one item per real slot, as returned by
        ``gather``, which leaves padding rows out.
    plan
        A plan of :func:`plan_step`.

    Returns
    -------
    array, tensor, Ragged or list
        One item per row of the step; a list if `values` is a sequence. Always a copy.

    Raises
    ------
    ValueError
        If the number of items differs from the number of slots.
    TypeError
        If `values` has another type, or `plan` is not a step plan.

    Examples
    --------
    >>> plan = fc.plan_step([5, 6, 7], dp_size=2)
    >>> [plan.shard(0, rank).rows.tolist() for rank in range(2)]
    [[0, 1], [2, -1]]
    >>> fc.planning.drop_padding(["loss of 0", "loss of 1", "loss of 2", "of padding"], plan)
    ['loss of 0', 'loss of 1', 'loss of 2']
    """
    check_step_plan(plan)
    has_items = is_array(values)
    if is_tensor(values) and values.is_nested:
        raise TypeError("values is a nested tensor; pass fastcollate.ragged(values)")
    if has_items and values.ndim == 0:
        raise ValueError("values has shape (); pass one item per slot of the plan")
    items = values if has_items or isinstance(values, Ragged) else id_list("values", values)
    slots, inverse = len(plan.rows), plan.inverse
    if plan.bin_offsets is not None and len(items) == plan.num_real_rows:
        inverse = np.argsort(plan.rows[~plan.is_padding])
    elif len(items) != slots:
        raise ValueError(
            f"values has {tally(len(items), 'item')}, but the plan has {tally(slots, 'slot')}; "
            "pass one item per slot, padding included"
        )
    if has_items:
        return take(items, inverse)
    if isinstance(items, Ragged):
        return pick(items, inverse)
    return [items[slot] for slot in inverse.tolist()]
