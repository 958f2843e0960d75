"""Advantages of a step, and what its losses are divided by: padding rows count nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fastcollate.arguments import counted, id_list, suggests_names
from fastcollate.arrays import (
    NUMBERS,
    checked_array,
    convert,
    describe,
    dtype_like,
    dtype_name,
    is_array,
    is_tensor,
    like_of,
    offsets_of,
    to_numpy,
)
from fastcollate.ingest.columns import Ragged
from fastcollate.plan.trajectories import checked_flags

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from fastcollate._fastcollate import Plan
    from fastcollate.batch import Batch
    from fastcollate.plan.step_plan import StepPlan

_LEAST_VARIANCE = 1e-8
"""What a variance is at least, before its root is divided by."""


class LossNormalizers(NamedTuple):
    """What the losses of each mini-batch are divided by. Nothing in it is 0.

    Attributes
    ----------
    tokens : float64 (mini-batches,)
        Sum of the loss mask over each mini-batch's real rows; 1 instead of 0.
    rows : int64 (mini-batches,)
        Number of each mini-batch's real rows, also of those that are masked; 1 instead of 0.
    """

    tokens: NDArray[np.float64]
    rows: NDArray[np.int64]


@suggests_names
def broadcast_last_step(
    values: Any,
    is_last_step: Sequence[bool],
    response_mask: Any = None,
    *,
    is_padding: Sequence[bool] | None = None,
    response_offsets: Any = None,
) -> Any:
    """Put the number of each trajectory's last step on the response tokens of all of its steps.

    Rows stand in the order of the step: a trajectory's steps follow each other, and the last one is
    flagged. (In the order of a plan's slots they may not; bring values back by
    :func:`drop_padding` first.)

    Parameters
    ----------
    values
        An array or tensor on any device (gradients flow through), or a list of numbers: one number
        per trajectory, (trajectories,); or one per row, (rows,), or per token, (rows, R), of which
        those of last steps are taken. Per token, they have to be the same number over all of a last
        step's response; what lies beside it is not looked at. In the jagged layout values per token
        are a :class:`Ragged`.
    is_last_step
        One flag per row. Each padding row is a trajectory of its own, and flagged.
    response_mask
        0 and 1, (rows, R), of any dtype: where each row's own response lies.
    is_padding
        One flag per row. What is said to be padding has no number among those per trajectory, and
        comes out 0, whatever `values` holds there. Without it all rows are real.
    response_offsets
        In the jagged layout, instead of a mask: where responses begin, integers (rows + 1,).

    Returns
    -------
    array or tensor
        In `response_mask`'s shape, jagged (response tokens,), and 0 beside responses; in `values`'
        dtype, on its device. Lists come in the kind of the mask or offsets; what is not floats
        becomes float32.

    Raises
    ------
    ValueError
        Values that vary over the response of a last step, as those of temporal estimators (GAE) do:
        one number cannot stand for them. Values per token of a last step without a response, if
        other steps of its trajectory have one. Shapes that do not fit; a last row that is no last
        step; a padding row that is part of a trajectory; another number than 0 and 1 in the mask.
    TypeError
        What is no array, tensor, list of numbers or flags; both mask and offsets, or neither.

    Notes
    -----
    This is what SkyRL's ``RayPPOTrainer.compute_advantages_and_returns`` gives for step-wise
    training since its pull request 1507: the last step's scalar times each step's own response
    mask. (Before, each step got the last step's masked tensor, with values at that one's places.)
    Beside responses there is 0.0, also where the number is infinite, NaN or negative.

    Examples
    --------
    >>> mask = np.array([[0, 1, 1], [0, 0, 1], [1, 1, 1]])
    >>> fc.planning.broadcast_last_step([0.5, -1.0], [False, True, True], mask)
    array([[ 0. ,  0.5,  0.5],
           [ 0. ,  0. ,  0.5],
           [-1. , -1. , -1. ]], dtype=float32)
    """
    is_last = checked_flags("is_last_step", is_last_step)
    rows = len(is_last)
    if is_padding is None:
        padding = np.zeros(rows, np.bool_)
    else:
        padding = checked_flags("is_padding", is_padding)
        _check_rows("is_padding", len(padding), rows)
    _check_steps(is_last, padding)
    responses = _checked_responses(response_mask, response_offsets, rows)

    # Trajectories are numbered in their order. Padding takes any number, and is made 0 then.
    ends = is_last & ~padding
    last_rows = np.flatnonzero(ends)
    trajectories: NDArray[np.int64] = np.cumsum(ends, dtype=np.int64) - ends
    trajectories[padding] = 0
    x, is_per_token = _checked_values(values, responses, len(last_rows))
    if is_per_token:
        x = _constants(x, responses, last_rows, trajectories, padding)
    elif len(x) == rows:  # if there are as many trajectories, each row is one
        x = _taken(x, last_rows)
    if len(last_rows) == 0:
        return _zeros(responses.shape, x)
    per_row = _where(~padding, _taken(x, trajectories), x)
    if responses.lens is not None:
        return _taken(per_row, np.repeat(np.arange(rows), responses.lens))
    return _where(responses.mask, per_row[:, None], x)


def normalized(
    batch: Batch,
    advantages: Any,
    plan: StepPlan,
    per: Literal["mini_batch", "batch", "prompt"],
) -> Any:
    """See :meth:`fastcollate.Batch.normalize`."""
    x = _as_floats(checked_array("advantages", advantages))
    slots = _slots_of_rows(batch, plan)
    groups, count = _groups(plan, slots, per)
    mask, rows_of_tokens = _trained(batch)
    if tuple(x.shape) != tuple(mask.shape):
        raise ValueError(
            f"advantages has shape {tuple(x.shape)}, but what belongs to this batch's response "
            f"tokens has {tuple(mask.shape)}"
        )
    shape, mask = x.shape, like_of(mask, x)
    if rows_of_tokens is not None:
        x, mask = x.reshape(-1), mask.reshape(-1)

    def spread(per_row: Any) -> Any:
        """Put one number per row beside all positions."""
        return per_row[:, None] if rows_of_tokens is None else _taken(per_row, rows_of_tokens)

    def summed(per_token: Any) -> Any:
        """Add up all positions of each group: rows first."""
        if rows_of_tokens is None:
            return _grouped(per_token.sum(1), groups, count)
        return _grouped(per_token, groups[rows_of_tokens], count)

    # NaN and inf among the advantages are the caller's; they stay within their group.
    with np.errstate(invalid="ignore", over="ignore"):
        mask = mask & spread(like_of(~plan.is_padding[slots], x))
        wide = convert(x, dtype_like(x, "float64"))
        # Sums of squares lose all digits if a mean is large. Values are taken relative to one of
        # their own group, which is never farther from the mean than the root of their number times
        # the deviation: so one pass is enough, and what is constant becomes 0 exactly.
        origins = _origins(wide, mask, rows_of_tokens, groups, count)
        relative = _where(mask, wide - spread(_taken(origins, groups)), wide)
        tokens = summed(convert(mask, wide.dtype)).clip(1)
        mean = summed(relative) / tokens
        variance = summed(relative * relative) / tokens - mean * mean
        scale = variance.clip(_LEAST_VARIANCE) ** -0.5
        centred = relative - spread(_taken(mean, groups))
        result = convert(_where(mask, centred * spread(_taken(scale, groups)), wide), x.dtype)
    return result.reshape(shape)


def loss_normalizers(batch: Batch, plan: StepPlan) -> LossNormalizers:
    """See :meth:`fastcollate.Batch.loss_normalizers`."""
    slots = _slots_of_rows(batch, plan)
    return normalizers_of(loss_weights(batch), slots, plan)


def normalizers_of(
    weights: NDArray[np.float64], slots: NDArray[np.int64], plan: StepPlan
) -> LossNormalizers:
    """Add up the loss weights of each mini-batch's real rows, given which slot each row is in."""
    mini_batches, count = _groups(plan, slots, "mini_batch")
    is_real = ~plan.is_padding[slots]
    tokens = np.bincount(mini_batches[is_real], weights[is_real], count)
    rows = np.bincount(mini_batches[is_real], minlength=count).astype(np.int64)
    return LossNormalizers(np.where(tokens == 0, 1.0, tokens), np.maximum(rows, 1))


@suggests_names
def drop_padding(values: Any, plan: StepPlan) -> Any:
    """Bring results of a plan's slots back in the order of the step's rows, without padding.

    Parameters
    ----------
    values
        One item per slot, in the order of slots: what the shards gave, by mini-batch, then by rank.
        An array or tensor, (slots, ...), on any device (gradients flow through); a :class:`Ragged`;
        or a sequence of any objects. Of a packed step also one item per real slot, as ``gather``
        gives them: it leaves padding rows out.
    plan
        What :func:`plan_step` returned.

    Returns
    -------
    array, tensor, Ragged or list
        One item per row of the step. Of a sequence, a list. Always a copy.

    Raises
    ------
    ValueError
        If there are not as many items as slots.
    TypeError
        If `values` is nothing of these, or `plan` is no step plan.

    Examples
    --------
    >>> plan = fc.plan_step([5, 6, 7], dp_size=2)
    >>> [plan.shard(0, rank).rows.tolist() for rank in range(2)]
    [[0, 1], [2, -1]]
    >>> fc.planning.drop_padding(["loss of 0", "loss of 1", "loss of 2", "of padding"], plan)
    ['loss of 0', 'loss of 1', 'loss of 2']
    """
    _check_plan(plan)
    has_items = is_array(values)
    if is_tensor(values) and values.is_nested:
        raise TypeError("values is a nested tensor; pass it through fastcollate.ragged")
    if has_items and values.ndim == 0:
        raise ValueError("values has shape (); pass one item per slot of the plan")
    items = values if has_items or isinstance(values, Ragged) else id_list("values", values)
    slots, inverse = len(plan.rows), plan.inverse
    if plan.bin_offsets is not None and len(items) == plan.num_real_rows:
        inverse = np.argsort(plan.rows[~plan.is_padding])
    elif len(items) != slots:
        raise ValueError(
            f"values has {counted(len(items), 'item')}, but the plan has {counted(slots, 'slot')}; "
            "pass one item per slot, padding included"
        )
    if has_items:
        return _taken(items, inverse)
    if not isinstance(items, Ragged):
        return [items[slot] for slot in inverse.tolist()]
    offsets = offsets_of(items.lengths[inverse])
    shifts = items.offsets[inverse] - offsets[:-1]
    places = np.repeat(shifts, np.diff(offsets)) + np.arange(offsets[-1])
    return Ragged(_taken(items.values, places), offsets)


# The last step's number


class _Responses(NamedTuple):
    """Where response tokens lie: by a mask, or by their numbers in each row."""

    given: Any
    """Mask or offsets as they were handed in: of the kind that lists become."""
    mask: NDArray[np.bool_] | Any
    lens: NDArray[np.int64] | None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.mask.shape) if self.lens is None else (int(self.lens.sum()),)


def _check_rows(name: str, found: int, rows: int) -> None:
    if found != rows:
        raise ValueError(
            f"{name} has {counted(found, 'row')}, but is_last_step has {rows}; "
            "pass one of each per row"
        )


def _check_steps(is_last: NDArray[np.bool_], padding: NDArray[np.bool_]) -> None:
    """Check that every trajectory ends, and that padding is in none."""
    open_padding = np.flatnonzero(padding & ~is_last)
    if len(open_padding) > 0:
        row = int(open_padding[0])
        raise ValueError(
            f"is_last_step[{row}] is False, but row {row} is padding; "
            "a padding row is a trajectory of its own"
        )
    cut = np.flatnonzero(padding[1:] & ~is_last[:-1])
    if len(cut) > 0:
        row = int(cut[0])
        raise ValueError(
            f"is_last_step[{row}] is False, but row {row + 1} is padding; the steps of a "
            "trajectory have to follow each other up to the last"
        )
    if len(is_last) > 0 and not is_last[-1]:
        raise ValueError(
            f"is_last_step[{len(is_last) - 1}] is False, but there is no later row: the last "
            "trajectory has no last step"
        )


def _checked_responses(mask: Any, offsets: Any, rows: int) -> _Responses:
    if (mask is None) == (offsets is None):
        raise TypeError("pass response_mask, or in the jagged layout response_offsets instead")
    if mask is None:
        given = checked_array("response_offsets", offsets)
        total = int(given[-1]) if given.ndim == 1 and len(given) > 0 else 0
        # A Ragged of as many zeros knows what is wrong with offsets.
        lens = Ragged(np.broadcast_to(np.int8(0), max(total, 0)), given).lengths
        _check_rows("response_offsets", len(lens), rows)
        return _Responses(given, None, lens)
    given = checked_array("response_mask", mask)
    if given.ndim != 2:
        raise ValueError(f"response_mask has shape {tuple(given.shape)}; pass (rows, R)")
    _check_rows("response_mask", len(given), rows)
    is_response = given != 0
    strange = is_response & (given != 1)
    if strange.any():
        row, position = divmod(int(to_numpy(strange).argmax()), given.shape[1])
        raise ValueError(
            f"response_mask[{row}, {position}] is {_number(given[row, position])}; pass 0 and 1"
        )
    return _Responses(given, is_response, None)


def _checked_values(values: Any, responses: _Responses, trajectories: int) -> tuple[Any, bool]:
    """Return the values, flat if there is one per token, and whether there is."""
    rows = len(responses.mask) if responses.lens is None else len(responses.lens)
    if isinstance(values, Ragged) and responses.lens is not None:
        if values.trailing or not np.array_equal(values.lengths, responses.lens):
            raise ValueError("values has other rows than response_offsets; pass one number a token")
        return _as_floats(values.values), True
    if isinstance(values, (list, tuple)):
        numbers: Any = _listed(values)
        given = responses.given
        if is_tensor(given):
            import torch

            numbers = torch.from_numpy(numbers).to(given.device)
    else:
        numbers = checked_array("values", values)
    shape = tuple(numbers.shape)
    if shape == responses.shape and responses.lens is None:
        return _as_floats(numbers).reshape(-1), True
    if shape not in ((rows,), (trajectories,)):
        per_token = "a Ragged" if responses.lens is not None else str(responses.shape)
        raise ValueError(
            f"values has shape {shape}; pass ({trajectories},) for the "
            f"{counted(trajectories, 'trajectory', 'trajectories')} that are not padding, "
            f"({rows},) for the rows, or {per_token} for tokens"
        )
    return _as_floats(numbers), False


def _listed(values: Sequence[Any]) -> NDArray[Any]:
    """Return a list of numbers as float32."""
    try:
        numbers = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"values has items of different lengths: {error}") from error
    if numbers.size > 0 and numbers.dtype.kind not in NUMBERS:
        raise TypeError(f"values is {describe(values)}; pass numbers")
    return numbers.astype(np.float32)


def _constants(
    flat: Any,
    responses: _Responses,
    last_rows: NDArray[np.int64],
    trajectories: NDArray[np.int64],
    padding: NDArray[np.bool_],
) -> Any:
    """Return the number of each last step; refuse what varies."""
    if responses.lens is None:
        mask = to_numpy(responses.mask)
        lens = mask.sum(1)
        starts = np.arange(len(mask)) * mask.shape[1]
        owners, columns = np.nonzero(mask[last_rows])
    else:
        lens = responses.lens
        starts = np.cumsum(lens) - lens
        of_last = lens[last_rows]
        owners = np.repeat(np.arange(len(last_rows)), of_last)
        columns = np.arange(len(owners)) - np.repeat(np.cumsum(of_last) - of_last, of_last)
    tokens = np.bincount(trajectories[~padding], lens[~padding], len(last_rows))
    unknown = np.flatnonzero((tokens > 0) & (lens[last_rows] == 0))
    if len(unknown) > 0:
        raise ValueError(
            f"row {last_rows[unknown[0]]} is a last step without a response, but other steps of "
            "its trajectory have one, so values per token do not say their number; "
            "pass one per trajectory"
        )
    places = starts[last_rows][owners] + columns
    firsts = np.cumsum(lens[last_rows]) - lens[last_rows]
    if len(places) == 0:
        return _zeros((len(last_rows),), flat)
    # Of trajectories without any response, some number: it goes nowhere.
    constants = _taken(flat, places[np.minimum(firsts, len(places) - 1)])
    found, expected = _taken(flat, places), _taken(constants, owners)
    differ = (found != expected) & ((found == found) | (expected == expected))
    if differ.any():
        token = int(to_numpy(differ).argmax())
        row, first = last_rows[owners[token]], columns[firsts[owners[token]]]
        raise ValueError(
            f"values[{row}] varies over the response of a last step: position {first} holds "
            f"{_number(expected[token])}, but position {columns[token]} {_number(found[token])}; "
            "one number cannot stand for advantages that differ by token, such as those of GAE"
        )
    return constants


# The rows of a batch in a plan


def _check_plan(plan: Any) -> None:
    if not hasattr(plan, "inverse") or not hasattr(plan, "mini_batch_offsets"):
        raise TypeError(
            f"plan is {describe(plan)}; pass what fastcollate.plan_step returned, or the step of "
            "what fastcollate.ray.plan_step did"
        )


def _slots_of_rows(batch: Batch, plan: StepPlan) -> NDArray[np.int64]:
    """Return the plan's slot of each row of a batch: in the order of the step, or of the slots."""
    _check_plan(plan)
    inverse: NDArray[np.int64] = plan.inverse
    slots = len(plan.rows)
    rows = _num_rows(batch)
    is_padding = batch.is_padding
    if rows == slots and (rows != len(inverse) or is_padding is not None):
        slots_of_rows = np.arange(slots)
        known = None if is_padding is None else np.asarray(is_padding, np.bool_)
        if known is not None and not np.array_equal(known, plan.is_padding):
            row = int((known != plan.is_padding).argmax())
            raise ValueError(
                f"is_padding[{row}] of the batch is {known[row]}, but of the plan it is "
                f"{plan.is_padding[row]}; the plan is of another batch"
            )
    elif rows == len(inverse) and is_padding is None:
        slots_of_rows = inverse
    else:
        raise ValueError(
            f"the batch has {counted(rows, 'row')}, but the plan is of "
            f"{counted(len(inverse), 'row')} in {counted(slots, 'slot')}; pass a batch of all rows "
            "of the step, without padding and in their order, or of all slots"
        )
    _check_lengths(batch, plan, slots_of_rows)
    return slots_of_rows


def _check_lengths(batch: Batch, plan: StepPlan, slots: NDArray[np.int64]) -> None:
    """Check that real rows are as long as planned, where the batch knows its lengths."""
    if (placed := batch._plan) is None:
        return
    found = placed.prompt_lens + placed.response_lens
    expected = plan.row_lengths.sum(1)[plan.rows[slots]]
    wrong = np.flatnonzero((found != expected) & ~plan.is_padding[slots])
    if len(wrong) > 0:
        row = int(wrong[0])
        raise ValueError(
            f"row {row} of the batch has {counted(int(found[row]), 'token')}, but "
            f"{int(expected[row])} in the plan; the plan is of another batch or order of rows"
        )


def _groups(plan: StepPlan, slots: NDArray[np.int64], per: str) -> tuple[NDArray[np.int64], int]:
    """Return which boundary each row is in, and how many there are. Of padding it says nothing."""
    if per == "batch":
        return np.zeros(len(slots), np.int64), 1
    if per == "mini_batch":
        sizes = np.diff(plan.mini_batch_offsets)
        return np.repeat(np.arange(len(sizes)), sizes)[slots], len(sizes)
    if per == "prompt":
        sizes = np.diff(plan.prompt_offsets)
        rows = np.where(plan.is_padding[slots], 0, plan.rows[slots])
        return np.repeat(np.arange(len(sizes)), sizes)[rows], len(sizes)
    raise ValueError(f"per is {per!r}; pass 'mini_batch', 'batch' or 'prompt'")


def _mask(batch: Mapping[str, Any]) -> Any:
    """Return what is not 0 where a response token trains, of the batch's kind."""
    if "loss_mask" in batch:
        return batch["loss_mask"]
    plan: Plan | None = getattr(batch, "_plan", None)
    if plan is not None and plan.num_unpredicted > 0:
        return like_of(plan.loss_mask(), batch["input_ids"])
    if "response_mask" in batch:
        return batch["response_mask"]
    if "response_offsets" in batch:
        return np.ones(int(batch["response_offsets"][-1]), np.bool_)
    raise ValueError("the batch has no loss_mask, response_mask or response_offsets")


def _num_rows(batch: Mapping[str, Any]) -> int:
    if "response_offsets" in batch:
        return len(batch["response_offsets"]) - 1
    if "sequence_ids" in batch:
        num_rows: int = batch.plan.num_rows  # type: ignore[attr-defined]
        return num_rows
    return len(batch["response_mask"] if "response_mask" in batch else _mask(batch))


def _rows_of_tokens(batch: Mapping[str, Any]) -> NDArray[np.int64] | None:
    """Return the row of every position, all positions in one line, where output rows are no rows.

    None for layouts where they are. Of padding it says nothing.
    """
    if "sequence_ids" in batch:
        rows: NDArray[np.int64] = to_numpy(batch["sequence_ids"]).reshape(-1).astype(np.int64)
        return np.maximum(rows, 0)
    if "response_offsets" in batch:
        lens = np.diff(to_numpy(batch["response_offsets"]))
        return np.repeat(np.arange(len(lens)), lens)
    return None


def _trained(batch: Mapping[str, Any]) -> tuple[Any, NDArray[np.int64] | None]:
    """Return which response positions are trained on, as booleans, and their rows, in one line.

    Weights select what they do not make 0.
    """
    return _mask(batch) != 0, _rows_of_tokens(batch)


def loss_weights(batch: Mapping[str, Any]) -> NDArray[np.float64]:
    """Sum the mask of each row, one token after the other: in all layouts, sums round the same."""
    mask = _mask(batch)
    rows, count = _rows_of_tokens(batch), _num_rows(batch)
    values = to_numpy(convert(mask, dtype_like(mask, "float64")))
    if rows is not None:
        return np.bincount(rows, values.reshape(-1), count).astype(np.float64)
    if values.shape[1] == 0:
        return np.zeros(count)
    sums: NDArray[np.float64] = values.cumsum(1)[:, -1]
    return sums


def _origins(
    wide: Any,
    mask: Any,
    rows_of_tokens: NDArray[np.int64] | None,
    groups: NDArray[np.int64],
    count: int,
) -> Any:
    """Return the first value of each group; of a group without any, something that is in no sum."""
    if rows_of_tokens is None:
        filled = np.flatnonzero(to_numpy(mask.any(1)))
        flags = mask if isinstance(mask, np.ndarray) else convert(mask, dtype_like(mask, "uint8"))
        columns = to_numpy(flags.argmax(1))[filled] if len(filled) > 0 else filled
        places, groups_of = filled * mask.shape[1] + columns, groups[filled]
    else:
        places = np.flatnonzero(to_numpy(mask))
        groups_of = groups[rows_of_tokens[places]]
    if len(places) == 0:
        return _zeros((count,), wide)
    firsts = np.full(count, places[0])
    firsts[groups_of[::-1]] = places[::-1]  # where several are assigned, the last one stays
    origins = _taken(wide.reshape(-1), firsts)
    return origins.detach() if is_tensor(origins) else origins


# What is called differently in NumPy and torch


def _as_floats(x: Any) -> Any:
    """Return floats as they are, other numbers as float32."""
    return x if "float" in dtype_name(x.dtype) else convert(x, dtype_like(x, "float32"))


def _number(x: Any) -> float:
    """Return an array of one number as a Python number."""
    return x.item()  # type: ignore[no-any-return]


def _taken(x: Any, index: NDArray[np.int64]) -> Any:
    """Take items of the first dimension."""
    return x.index_select(0, like_of(index, x)) if is_tensor(x) else x[index]


def _zeros(shape: tuple[int, ...], like: Any) -> Any:
    return like.new_zeros(shape) if is_tensor(like) else np.zeros(shape, like.dtype)


def _where(mask: Any, x: Any, like: Any) -> Any:
    """Return values where a mask is true, and 0 elsewhere, whatever they are there."""
    mask, zero = like_of(mask, like), _zeros((), like)
    if not is_tensor(like):
        return np.where(mask, x, zero)
    import torch

    return torch.where(mask, x, zero)


def _grouped(x: Any, groups: NDArray[np.int64], count: int) -> Any:
    """Add up the items of each group, float64."""
    if not is_tensor(x):
        return np.bincount(groups, x, count)
    return x.new_zeros(count).index_add(0, like_of(groups, x), x)
