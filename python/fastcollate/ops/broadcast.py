"""One number per row on the tokens of a finished batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate.common.arrays import (
    check_array,
    describe,
    is_array,
    is_tensor,
    make_signed,
    of_bits,
    on_host,
    to_tensor,
)

if TYPE_CHECKING:
    from fastcollate._fastcollate import Plan


def broadcast(plan: Plan, loss_mask: Any, per_row: Any, on: str) -> Any:
    """See :meth:`fastcollate.Batch.broadcast`."""
    if not isinstance(on, str) or on not in ("trained", "response"):
        raise ValueError(f"on is {on!r}; pass 'trained' or 'response'")
    if not is_array(per_row):
        raise TypeError(f"per_row is {describe(per_row)}; pass one number per row")
    per_row = check_array("per_row", per_row)
    if tuple(per_row.shape) != (plan.num_rows,):
        raise ValueError(
            f"per_row has shape {tuple(per_row.shape)}, but the batch has {plan.num_rows} rows; "
            f"pass shape ({plan.num_rows},)"
        )
    places, lens = plan.gather_positions(
        of_sequence=False,
        next_token=False,
        width=plan.response_width,
        per_turn=False,
        gaps=on == "response",
        padding=True,
        may_miss=True,
    )
    rows = np.repeat(np.arange(plan.num_rows), lens)
    rows, places = rows[places >= 0], places[places >= 0]
    shape = plan.leading_shape(of_sequence=False)
    mask = loss_mask if on == "trained" else None
    if isinstance(per_row, np.ndarray):
        out = np.zeros(shape, per_row.dtype)
        out.reshape(-1)[places] = per_row[rows]
        if mask is not None:
            out[on_host(mask) == 0] = 0
        return out
    import torch

    values = per_row.index_select(0, torch.from_numpy(rows).to(per_row.device))
    index = torch.from_numpy(places).to(per_row.device)
    zeros = make_signed(per_row.new_zeros(int(np.prod(shape))))
    out = zeros.index_copy(0, index, make_signed(values))
    if mask is not None:
        mask = mask if is_tensor(mask) else to_tensor(mask)
        out = out.masked_fill((mask.to(out.device) == 0).reshape(-1), 0)
    return of_bits(out, per_row.dtype).reshape(shape)
