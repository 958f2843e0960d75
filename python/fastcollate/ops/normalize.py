"""Normalization of a step's advantages and losses, without padding rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import numpy as np

from fastcollate.common.arguments import check_choice, tally
from fastcollate.common.arrays import (
    as_floats,
    check_array,
    convert,
    dtype_like,
    is_tensor,
    like_of,
    take,
    to_numpy,
    where_or_zero,
    zeros,
)
from fastcollate.ops.loss_positions import trained
from fastcollate.plan.grouping import group_numbers
from fastcollate.plan.tables import check_step_plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastcollate.ops.batch_state import BatchState
    from fastcollate.plan.step_plan import StepPlan

_LEAST_VARIANCE = 1e-8
"""Least variance in the divisor."""


class LossNormalizers(NamedTuple):
    """Divisors for the losses of each mini-batch, never 0.

    Attributes
    ----------
    tokens : float64 (mini-batches,)
        Sum of the loss mask over each mini-batch's real rows; 1 instead of 0.
    rows : int64 (mini-batches,)
        Number of each mini-batch's real rows, masked ones included; 1 instead of 0.
    """

    tokens: NDArray[np.float64]
    rows: NDArray[np.int64]

    def __rtruediv__(self, loss: Any) -> NoReturn:
        raise TypeError(
            "LossNormalizers are no number; divide by .tokens[mini_batch] or .rows[mini_batch]"
        )


class _Tokens(NamedTuple):
    """The trained response positions, and their rows."""

    mask: Any
    """Nonzero where a response token trains, of the batch's kind."""
    rows: NDArray[np.int64] | None
    """The row of every position, flat, arbitrary for padding; None if each row is an output row."""
    num_rows: int
    """Number of rows."""


def normalize(
    state: BatchState,
    advantages: Any,
    plan: StepPlan,
    per: Literal["mini_batch", "batch", "prompt"],
) -> Any:
    """See :meth:`fastcollate.Batch.normalize`."""
    if isinstance(advantages, (list, tuple)):
        raise TypeError(
            "advantages is a list; pass an array in the shape of batch.loss_mask, for one number "
            "per row batch.broadcast(array)"
        )
    x = as_floats(check_array("advantages", advantages))
    slots = _slots_of_rows(state, state.plan.num_rows, plan)
    tokens = _tokens_of(state)
    groups, count = _groups(plan, slots, per)
    if per == "prompt" and state.uids is not None:
        found = len(np.unique(group_numbers("uids", state.uids)[~plan.is_padding[slots]]))
        if found < count:
            raise ValueError(
                f"the plan has {tally(count, 'prompt')}, but the batch has {tally(found, 'uid')}, "
                "so rows would not be compared with all rows of their prompt; pass uids to "
                "plan_step"
            )
    mask, rows_of_tokens = tokens.mask != 0, tokens.rows  # nonzero weights select
    if tuple(x.shape) != tuple(mask.shape):
        is_per_row = tuple(x.shape) == (state.plan.num_rows,)
        raise ValueError(
            f"advantages has shape {tuple(x.shape)}; pass the shape of the batch's response "
            f"outputs, {tuple(mask.shape)}"
            + (", as batch.broadcast(advantages) has" if is_per_row else "")
        )
    shape, mask = x.shape, like_of(mask, x)
    if rows_of_tokens is not None:
        x, mask = x.reshape(-1), mask.reshape(-1)

    def spread(per_row: Any) -> Any:
        """Broadcast one number per row to all positions."""
        return per_row[:, None] if rows_of_tokens is None else take(per_row, rows_of_tokens)

    def sum_rows(per_token: Any) -> Any:
        """Sum the positions of each group: rows first."""
        if rows_of_tokens is None:
            return _group(per_token.sum(1), groups, count)
        return _group(per_token, groups[rows_of_tokens], count)

    # NaN and inf among the advantages are the caller's; they stay within their group.
    with np.errstate(invalid="ignore", over="ignore"):
        mask = mask & spread(like_of(~plan.is_padding[slots], x))
        wide = convert(x, dtype_like(x, "float64"))
        # Sums of squares lose all digits if a mean is large. Values are taken relative to one value
        # of their group, which is no farther from the mean than the root of the group's size times
        # the deviation: one pass is enough, and constant groups become exactly 0.
        origins = _origins(wide, mask, rows_of_tokens, groups, count)
        relative = where_or_zero(mask, wide - spread(take(origins, groups)), wide)
        counts = sum_rows(convert(mask, wide.dtype)).clip(1)
        mean = sum_rows(relative) / counts
        variance = sum_rows(relative * relative) / counts - mean * mean
        scale = variance.clip(_LEAST_VARIANCE) ** -0.5
        centred = relative - spread(take(mean, groups))
        result = convert(where_or_zero(mask, centred * spread(take(scale, groups)), wide), x.dtype)
    return result.reshape(shape)


def loss_normalizers(state: BatchState, plan: StepPlan) -> LossNormalizers:
    """See :meth:`fastcollate.Batch.loss_normalizers`."""
    slots = _slots_of_rows(state, state.plan.num_rows, plan)
    tokens = _tokens_of(state)
    return normalizers_of(_weights(tokens), slots, plan)


def normalizers_of(
    weights: NDArray[np.float64], slots: NDArray[np.int64], plan: StepPlan
) -> LossNormalizers:
    """Sum the loss weights of each mini-batch's real rows, given the slot of each row."""
    mini_batches, count = _groups(plan, slots, "mini_batch")
    is_real = ~plan.is_padding[slots]
    tokens = np.bincount(mini_batches[is_real], weights[is_real], count)
    rows = np.bincount(mini_batches[is_real], minlength=count).astype(np.int64)
    return LossNormalizers(np.where(tokens == 0, 1.0, tokens), np.maximum(rows, 1))


def loss_weights(state: BatchState) -> NDArray[np.float64]:
    """Sum the mask of each row token by token, so that sums round the same in all layouts."""
    return _weights(_tokens_of(state))


def _weights(tokens: _Tokens) -> NDArray[np.float64]:
    """See :func:`loss_weights`."""
    mask, rows, count = tokens
    values = to_numpy(convert(mask, dtype_like(mask, "float64")))
    if rows is not None:
        return np.bincount(rows, values.reshape(-1), count).astype(np.float64)
    if values.shape[1] == 0:
        return np.zeros(count)
    sums: NDArray[np.float64] = values.cumsum(1)[:, -1]
    return sums


def _slots_of_rows(state: BatchState, rows: int, plan: StepPlan) -> NDArray[np.int64]:
    """Return the plan's slot of each row of a batch, which is in step order or slot order."""
    check_step_plan(plan)
    inverse: NDArray[np.int64] = plan.inverse
    slots = len(plan.rows)
    flags = np.zeros(rows, np.bool_) if state.is_padding is None else np.array(state.is_padding)
    if rows == slots and (rows != len(inverse) or state.is_padding is not None):
        if state.is_padding is not None and not np.array_equal(flags, plan.is_padding):
            row = int((flags != plan.is_padding).argmax())
            raise ValueError(
                f"is_padding[{row}] is {flags[row]} in the batch, but {plan.is_padding[row]} in "
                "the plan; pass the plan of this batch"
            )
        # Rows of a shard that were selected before the plan was made are in step order.
        orders = [np.arange(slots)]
        if rows == len(inverse):
            orders.append(inverse)
    elif rows == len(inverse) and not flags.any():
        orders = [inverse]
    else:
        raise ValueError(
            f"the batch has {tally(rows, 'row')}, but the plan has "
            f"{tally(len(inverse), 'row')} in {tally(slots, 'slot')}; pass a batch of all rows "
            "of the step, in their order and without padding, or of all slots"
        )
    found = [_other_length(state, plan, order) for order in orders]
    fitting = [order for order, message in zip(orders, found, strict=True) if message is None]
    if not fitting:
        raise ValueError(found[-1])
    if len(fitting) == 1 or state.uids is None:
        return fitting[0]
    ids = group_numbers("uids", state.uids)  # they tell rows of equal lengths apart
    return max(fitting, key=lambda slots: _are_prompts(ids, plan, slots))


def _are_prompts(ids: NDArray[np.int64], plan: StepPlan, slots: NDArray[np.int64]) -> bool:
    """Return True if rows have the same id where they are of the same prompt of the plan."""
    prompts = np.searchsorted(plan.prompt_offsets, plan.rows[slots], "right")
    pairs = np.unique([prompts, ids], axis=1)
    return all(len(np.unique(numbers)) == pairs.shape[1] for numbers in pairs)


def _other_length(state: BatchState, plan: StepPlan, slots: NDArray[np.int64]) -> str | None:
    """Describe the first real row that has another length than planned, if any."""
    found = state.plan.prompt_lens + state.plan.response_lens
    expected = plan.row_lengths.sum(1)[plan.rows[slots]]
    wrong = np.flatnonzero((found != expected) & ~plan.is_padding[slots])
    if len(wrong) == 0:
        return None
    row = int(wrong[0])
    return (
        f"row {row} of the batch has {tally(int(found[row]), 'token')}, but the plan has "
        f"{int(expected[row])}; pass the plan of these rows in this order"
    )


def _groups(plan: StepPlan, slots: NDArray[np.int64], per: str) -> tuple[NDArray[np.int64], int]:
    """Return the boundary of each row, arbitrary for padding, and the number of boundaries."""
    check_choice("per", per, ("mini_batch", "batch", "prompt"))
    if per == "batch":
        return np.zeros(len(slots), np.int64), 1
    if per == "mini_batch":
        sizes = np.diff(plan.mini_batch_offsets)
        return np.repeat(np.arange(len(sizes)), sizes)[slots], len(sizes)
    sizes = np.diff(plan.prompt_offsets)
    rows = np.where(plan.is_padding[slots], 0, plan.rows[slots])
    return np.repeat(np.arange(len(sizes)), sizes)[rows], len(sizes)


def _tokens_of(state: BatchState) -> _Tokens:
    """Return the trained response positions, by the plan: keys may be names of fields.

    Raises
    ------
    ValueError
        As :func:`trained`.
    """
    trained(state)
    plan, rows = state.plan, None
    if len(plan.leading_shape(of_sequence=False)) == 1:  # they lie end to end
        rows = np.repeat(np.arange(plan.num_rows), plan.response_lens)
    elif plan.has_bins:  # arbitrary rows for padding
        rows = np.maximum(to_numpy(state.data["sequence_ids"]).reshape(-1).astype(np.int64), 0)
    return _Tokens(state.data["loss_mask"], rows, plan.num_rows)


def _origins(
    wide: Any,
    mask: Any,
    rows_of_tokens: NDArray[np.int64] | None,
    groups: NDArray[np.int64],
    count: int,
) -> Any:
    """Return the first value of each group; for an empty group, a value that is in no sum."""
    if rows_of_tokens is None:
        filled = np.flatnonzero(to_numpy(mask.any(1)))
        flags = mask if isinstance(mask, np.ndarray) else convert(mask, dtype_like(mask, "uint8"))
        columns = to_numpy(flags.argmax(1))[filled] if len(filled) > 0 else filled
        places, groups_of = filled * mask.shape[1] + columns, groups[filled]
    else:
        places = np.flatnonzero(to_numpy(mask))
        groups_of = groups[rows_of_tokens[places]]
    if len(places) == 0:
        return zeros((count,), wide)
    firsts = np.full(count, places[0])
    firsts[groups_of[::-1]] = places[::-1]  # of several assignments, the last one stays
    origins = take(wide.reshape(-1), firsts)
    return origins.detach() if is_tensor(origins) else origins


def _group(x: Any, groups: NDArray[np.int64], count: int) -> Any:
    """Sum the items of each group, float64."""
    if not is_tensor(x):
        return np.bincount(groups, x, count)
    return x.new_zeros(count).index_add(0, like_of(groups, x), x)
