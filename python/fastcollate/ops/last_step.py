"""Broadcast of the number of each trajectory's last step to the tokens of all its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fastcollate.common.arguments import suggests_names, tally
from fastcollate.common.arrays import (
    NUMBERS,
    as_floats,
    check_array,
    describe,
    is_tensor,
    read_array,
    take,
    to_numpy,
    where_or_zero,
    zeros,
)
from fastcollate.plan.trajectories import check_flags
from fastcollate.rows.columns import Ragged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@suggests_names
def broadcast_last_step(
    values: Any,
    is_last_step: Sequence[bool],
    response_mask: Any = None,
    *,
    is_padding: Sequence[bool] | None = None,
    response_offsets: Any = None,
) -> Any:
    """Broadcast the number of each trajectory's last step to the response tokens of all its steps.

    Rows are in the order of the step: the steps of a trajectory are consecutive, and the last one
    is flagged. (Slots of a plan may be in another order: use :func:`drop_padding` first.)

    Parameters
    ----------
    values
        An array or tensor on any device (gradients flow through), or a list of numbers: one number
        per trajectory, (trajectories,); or one per row, (rows,), or per token, (rows, R), of which
        those of last steps are used. Values per token have to be constant over a last step's
        response; other positions are not read. In the jagged layout values per token are a
        :class:`Ragged`.
    is_last_step
        One flag per row. Each padding row is a trajectory of its own, and flagged.
    response_mask
        0 and 1, (rows, R), of any dtype: 1 on the tokens of each row's response.
    is_padding
        One flag per row. Padding rows have no number among those per trajectory, and become 0,
        whatever `values` holds there. None: all rows are real.
    response_offsets
        In the jagged layout, instead of a mask: offsets of responses, integers (rows + 1,).

    Returns
    -------
    array or tensor
        In the shape of `response_mask`, jagged (response tokens,), and 0 outside responses; in the
        dtype and on the device of `values`. Lists take the kind of the mask or offsets; other
        dtypes than floats become float32.

    Raises
    ------
    ValueError
        Values that vary over the response of a last step, as those of temporal estimators (GAE).
        Values per token of a last step without a response, if other steps of its trajectory have
        one. Shapes that do not fit; a last row that is no last step; a padding row that is part of
        a trajectory; a number other than 0 and 1 in the mask.
    TypeError
        An argument that is no array, tensor, list of numbers or flags; both mask and offsets, or
        neither.

    Notes
    -----
    The result is that of SkyRL's ``RayPPOTrainer.compute_advantages_and_returns`` for step-wise
    training since its pull request 1507: the last step's scalar times each step's own response
    mask. (Before, each step got the last step's masked tensor, at the last step's positions.)
    Outside responses the value is 0.0, even if the number is infinite, NaN or negative.

    Examples
    --------
    >>> mask = np.array([[0, 1, 1], [0, 0, 1], [1, 1, 1]])
    >>> fc.planning.broadcast_last_step([0.5, -1.0], [False, True, True], mask)
    array([[ 0. ,  0.5,  0.5],
           [ 0. ,  0. ,  0.5],
           [-1. , -1. , -1. ]], dtype=float32)
    """
    is_last = check_flags("is_last_step", is_last_step)
    rows = len(is_last)
    if is_padding is None:
        padding = np.zeros(rows, np.bool_)
    else:
        padding = check_flags("is_padding", is_padding)
        _check_rows("is_padding", len(padding), rows)
    _check_steps(is_last, padding)
    responses = _check_responses(response_mask, response_offsets, rows)

    # Trajectories are numbered in order. Padding takes any number, and is set to 0 afterwards.
    ends = is_last & ~padding
    last_rows = np.flatnonzero(ends)
    trajectories: NDArray[np.int64] = np.cumsum(ends, dtype=np.int64) - ends
    trajectories[padding] = 0
    x, is_per_token = _parse_values(values, responses, len(last_rows))
    if is_per_token:
        x = _constants(x, responses, last_rows, trajectories, padding)
    elif len(x) == rows:  # if equal to the number of trajectories, each row is one
        x = take(x, last_rows)
    if len(last_rows) == 0:
        return zeros(responses.shape, x)
    per_row = where_or_zero(~padding, take(x, trajectories), x)
    if responses.lens is not None:
        return take(per_row, np.repeat(np.arange(rows), responses.lens))
    return where_or_zero(responses.mask, per_row[:, None], x)


class _Responses(NamedTuple):
    """Positions of response tokens, as a mask or as counts per row."""

    given: Any
    """The given mask or offsets, whose kind lists take."""
    mask: NDArray[np.bool_] | Any
    lens: NDArray[np.int64] | None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.mask.shape) if self.lens is None else (int(self.lens.sum()),)


def _check_rows(name: str, found: int, rows: int) -> None:
    if found != rows:
        raise ValueError(
            f"{name} has {tally(found, 'row')}, but is_last_step has {rows}; "
            "pass one of each per row"
        )


def _check_steps(is_last: NDArray[np.bool_], padding: NDArray[np.bool_]) -> None:
    """Check that every trajectory ends, and that none contains padding."""
    open_padding = np.flatnonzero(padding & ~is_last)
    if len(open_padding) > 0:
        row = int(open_padding[0])
        raise ValueError(
            f"is_last_step[{row}] is False, but row {row} is padding; "
            "pass True for every padding row"
        )
    cut = np.flatnonzero(padding[1:] & ~is_last[:-1])
    if len(cut) > 0:
        row = int(cut[0])
        raise ValueError(
            f"is_last_step[{row}] is False, but row {row + 1} is padding; pass the steps of a "
            "trajectory as adjacent rows, up to its last step"
        )
    if len(is_last) > 0 and not is_last[-1]:
        raise ValueError(
            f"is_last_step[{len(is_last) - 1}] is False, but it is the last row; pass True for the "
            "last step of every trajectory"
        )


def _check_responses(mask: Any, offsets: Any, rows: int) -> _Responses:
    if (mask is None) == (offsets is None):
        raise TypeError(
            f"response_mask and response_offsets are both {'None' if mask is None else 'given'}; "
            "pass response_offsets for the jagged layout, response_mask for others"
        )
    if mask is None:
        given = check_array("response_offsets", offsets)
        total = int(given[-1]) if given.ndim == 1 and len(given) > 0 else 0
        # A Ragged of the same number of zeros raises the errors of invalid offsets.
        lens = Ragged(np.broadcast_to(np.int8(0), max(total, 0)), given).lengths
        _check_rows("response_offsets", len(lens), rows)
        return _Responses(given, None, lens)
    given = check_array("response_mask", mask)
    if given.ndim != 2:
        raise ValueError(f"response_mask has shape {tuple(given.shape)}; pass shape (rows, R)")
    _check_rows("response_mask", len(given), rows)
    is_response = given != 0
    strange = is_response & (given != 1)
    if strange.any():
        row, position = divmod(int(to_numpy(strange).argmax()), given.shape[1])
        raise ValueError(
            f"response_mask[{row}, {position}] is {given[row, position].item()}; pass 0 and 1"
        )
    return _Responses(given, is_response, None)


def _parse_values(values: Any, responses: _Responses, trajectories: int) -> tuple[Any, bool]:
    """Return the values, flat if given per token, and True in that case."""
    rows = len(responses.mask) if responses.lens is None else len(responses.lens)
    if isinstance(values, Ragged) and responses.lens is not None:
        _check_like_responses(values, responses.lens)
        return as_floats(values.values), True
    if isinstance(values, (list, tuple)):
        numbers: Any = _list(values)
        given = responses.given
        if is_tensor(given):
            import torch

            numbers = torch.from_numpy(numbers).to(given.device)
    else:
        numbers = check_array("values", values)
    shape = tuple(numbers.shape)
    if shape == responses.shape and responses.lens is None:
        return as_floats(numbers).reshape(-1), True
    if shape not in ((rows,), (trajectories,)):
        per_token = "a Ragged" if responses.lens is not None else str(responses.shape)
        raise ValueError(
            f"values has shape {shape}; pass ({trajectories},), one per trajectory that is not "
            f"padding, ({rows},), one per row, or {per_token}, one per token"
        )
    return as_floats(numbers), False


def _check_like_responses(values: Ragged, lens: NDArray[np.int64]) -> None:
    """Check for one number per token of each response."""
    if values.trailing:
        raise ValueError(
            f"values has tokens of shape {values.trailing}; pass one number per response token"
        )
    _check_rows("values", len(values), len(lens))
    differ = values.lengths != lens
    if differ.any():
        row = int(differ.argmax())
        raise ValueError(
            f"values[{row}] has {values.lengths[row]} items, but response_offsets give the "
            f"response {lens[row]} tokens; pass one number per response token"
        )


def _list(values: Sequence[Any]) -> NDArray[Any]:
    """Return a list of numbers as float32."""
    try:
        numbers = read_array(values)
    except ValueError as error:
        raise ValueError(
            f"values cannot be read as an array ({error}); pass rows of one length"
        ) from error
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
    """Return the number of each last step; varying values are errors."""
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
            f"values has one number per token, but row {last_rows[unknown[0]]}, the last step of a "
            "trajectory, has no response token to read it from; pass one value per trajectory"
        )
    places = starts[last_rows][owners] + columns
    firsts = np.cumsum(lens[last_rows]) - lens[last_rows]
    if len(places) == 0:
        return zeros((len(last_rows),), flat)
    # For trajectories without any response, an arbitrary number that is not used.
    constants = take(flat, places[np.minimum(firsts, len(places) - 1)])
    found, expected = take(flat, places), take(constants, owners)
    differ = (found != expected) & ((found == found) | (expected == expected))
    if differ.any():
        token = int(to_numpy(differ).argmax())
        row, first = last_rows[owners[token]], columns[firsts[owners[token]]]
        raise ValueError(
            f"values[{row}] is {expected[token].item()} at position {first}, but "
            f"{found[token].item()} at position {columns[token]}; pass values that are constant "
            "over the response of a last step (advantages of GAE are not)"
        )
    return constants
