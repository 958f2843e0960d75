"""Context parallelism: each rank computes a part of each packed sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate.common.arguments import check_count, check_int, tally
from fastcollate.common.arrays import (
    check_array,
    concatenate,
    describe,
    flatten,
    is_tensor,
    ranges_of,
    take,
)
from fastcollate.ops.ragged_outputs import ragged_outputs, taken_values

if TYPE_CHECKING:
    from fastcollate._fastcollate import OutputSpec, Plan
    from fastcollate.ops.batch_state import BatchState


def check_rank(size: Any, rank: Any, of: str, form: str) -> tuple[int, int]:
    """Return ``(cp_size, cp_rank)``, checked; `of` and `form` name in errors what they are of."""
    size = check_count(f"cp_size{of}", size, f"a number of ranks, as in {form}")
    rank = check_int(f"cp_rank{of}", rank, "a rank")
    if not 0 <= rank < size:
        raise ValueError(f"cp_rank{of} is {rank}; pass a rank from 0 to {size - 1}, as in {form}")
    return size, rank


def cp_split(state: BatchState, cp_size: Any, cp_rank: Any) -> BatchState:
    """See :meth:`fastcollate.Batch.cp_split`."""
    plan = state.plan
    _check_packed(plan)
    cp_size, cp_rank = check_rank(cp_size, cp_rank, "", "cp_split(cp_size, cp_rank)")
    spec = state.spec
    per_token = {output.key for output in spec.table if output.align in ("sequence", "response")}
    if cp_size == 1:
        return state._replace(data=dict(state.data), owner=None)
    check_no_shift(spec.outputs)
    positions = _positions_of(plan, cp_size, cp_rank)
    ragged: dict[str, Any] = {}
    for output in ragged_outputs(spec.table):
        ragged |= taken_values(state, output, positions.ravel())
    return state._replace(
        data={
            key: _at(value, positions) if key in per_token else ragged.get(key, value)
            for key, value in state.data.items()
        },
        owner=None,
        options=spec._replace(cp=(cp_size, cp_rank)),
        call=None,  # models take whole rows
    )


def cp_merge(plan: Plan, parts: Sequence[Any]) -> Any:
    """See :meth:`fastcollate.Batch.cp_merge`."""
    _check_packed(plan)
    if is_tensor(parts) or isinstance(parts, np.ndarray) or not isinstance(parts, Sequence):
        raise TypeError(f"parts is {describe(parts)}; pass a sequence of one array per rank")
    if len(parts) == 0:
        raise ValueError("parts is empty; pass one array per rank")
    parts = [check_array(f"parts[{rank}]", part) for rank, part in enumerate(parts)]
    size = len(parts)
    per_rank = [_positions_of(plan, size, rank) for rank in range(size)]
    leading = per_rank[0].shape
    for rank, part in enumerate(parts):
        if is_tensor(part) != is_tensor(parts[0]) or part.dtype != parts[0].dtype:
            raise TypeError(
                f"parts[{rank}] is {describe(part)}, but parts[0] is {describe(parts[0])}; "
                "pass parts of one kind and dtype"
            )
        if tuple(part.shape[:2]) != leading or part.shape != parts[0].shape:
            raise ValueError(
                f"parts[{rank}] has shape {tuple(part.shape)}; pass {leading} with the same "
                f"trailing dimensions for each of {tally(len(parts), 'rank')}"
            )
    positions = np.concatenate([of_rank.ravel() for of_rank in per_rank])
    sources = np.empty_like(positions)
    sources[positions] = np.arange(len(positions))
    flat = [flatten(part, 2) for part in parts]
    return _at(concatenate(flat), sources.reshape(leading[0], -1), 1)


def check_no_shift(outputs: OutputSpec) -> None:
    """Check that labels do not have to be shifted, which chunks would lose and mix."""
    if outputs.labels is not None and not outputs.labels[0]:
        raise ValueError(
            "labels are 'aligned', so a model would shift them across the ends of a rank's chunks; "
            "pass labels='shifted' to split the batch by context parallelism"
        )


def _check_packed(plan: Plan) -> None:
    if not plan.is_packed:
        raise ValueError(
            f"the batch has layout={plan.layout!r}, but context parallelism splits packed "
            "batches; build it with layout=fc.Packed(...)"
        )


def _positions_of(plan: Plan, cp_size: int, cp_rank: int) -> np.ndarray:
    """Return the flat positions in (N, W) of a rank's chunks: int64 (N, W / cp_size)."""
    positions = ranges_of(*plan.chunks(cp_size, cp_rank))
    return positions.reshape(plan.num_output_rows, plan.width // cp_size)


def _at(values: Any, positions: np.ndarray, leading: int = 2) -> Any:
    """Take values by flat positions over the leading dimensions."""
    flat = flatten(values, leading)
    return take(flat, positions.ravel()).reshape(*positions.shape, *flat.shape[1:])
