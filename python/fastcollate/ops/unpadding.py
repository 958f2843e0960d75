"""Rows without their padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastcollate._fastcollate import first_no_length, mask_offsets, mask_spans
from fastcollate.common.arguments import check_choice, suggests_names, tally
from fastcollate.common.arrays import (
    check_array,
    describe,
    flatten,
    is_array,
    is_tensor,
    offsets_of,
    read_array,
    row_and_token,
    take,
    to_numpy,
    to_tensor,
)
from fastcollate.ops.padding import Side
from fastcollate.ops.writing import SIDES, is_small, join, small_on_host
from fastcollate.rows.column_input import EXPECTED, check_dense, ragged
from fastcollate.rows.columns import Ragged
from fastcollate.rows.lengths import Integers, check_lengths

SHORT_ROW = 1 << 8
"""Tokens of a padded row, of 8 bytes each, of which looking at each takes as long as planning a
copy."""


@suggests_names
def unpad(x: Any, lengths: Any = None, *, mask: Any = None, side: Side | None = None) -> Ragged:
    r"""Remove the padding of rows, by their lengths or a mask.

    Parameters
    ----------
    x
        Padded rows: an array or tensor, (rows, width, \*trailing), also on another device; or a
        sequence of rows, which may be of different widths. Gradients flow through tensors.
    lengths
        Length of each row without its padding: (rows,).
    mask
        Instead of `lengths`: (rows, width), True or 1 on each token to keep, such as an
        ``attention_mask`` or a ``loss_mask``. The kept tokens of a row need not be adjacent, as in
        ``x[mask]`` and flash-attn's ``unpad_input``.
    side
        The side of the padding: ``"left"`` or ``"right"``. Required with `lengths`, unless each is
        the whole width; a mask says where padding is.

    Returns
    -------
    Ragged
        Over a tensor if `x` is one or has tensors as rows, else over a NumPy array, of the same
        dtype. Its ``offsets`` are the ``cu_seqlens`` of attention.

    Raises
    ------
    TypeError, ValueError
        Neither `lengths` nor `mask`, or both; `lengths` of padded rows without `side`; a number of
        rows that differs from that of `x`; lengths beyond its width; a mask of another shape, or of
        other numbers than 0 and 1.

    Notes
    -----
    Values are copied, unless `lengths` keep all of them.

    Examples
    --------
    >>> x = np.array([[0, 5, 6], [0, 0, 7]])
    >>> fc.unpad(x, [2, 1], side="left").to_list()
    [[5, 6], [7]]
    >>> fc.unpad(x, mask=[[1, 0, 1], [0, 0, 0]]).to_list()
    [[0, 6], []]
    """
    if side is not None:
        check_choice("side", side, SIDES)
    if (lengths is None) == (mask is None):
        found = "None" if mask is None else "given"
        raise TypeError(f"lengths and mask are both {found}; pass one of them")
    if mask is not None:
        if side is not None:
            raise ValueError(f"side is {side!r}, but mask says where padding is; leave side out")
        return _mask(x, mask)
    if isinstance(x, (list, tuple)):
        return ragged(_trim(x, lengths, side))
    x = check_dense(x)
    rows, width = x.shape[:2]
    if is_array(lengths) and lengths.ndim == 2:
        raise TypeError(f"lengths has shape {tuple(lengths.shape)}; pass a mask by name: mask=...")
    lengths = _lengths_of(rows, lengths)
    if (row := first_no_length(lengths, width)) is not None:
        raise _other_length(row, int(lengths[row]), width)
    offsets = offsets_of(lengths)
    if offsets[-1] == rows * width:
        return ragged(x)
    if side is None:
        row = int((lengths < width).argmax())
        _check_side(side, row, int(lengths[row]), width)
    if _are_short(x):
        places, ends = np.arange(width), lengths[:, None]
        return _take(x, places >= width - ends if side == "left" else places < ends, offsets)
    columns = width - lengths if side == "left" else np.zeros(rows, np.int64)
    return Ragged._of(join(x, columns, lengths), offsets)


def _mask(x: Any, mask: Any) -> Ragged:
    """Take the tokens of padded rows where a mask is true."""
    if isinstance(x, (list, tuple, Ragged)):
        return _mask_rows(ragged(x), mask)
    x = check_dense(x)
    try:
        mask = mask if is_array(mask) else read_array(mask)
    except ValueError as error:
        shape = tuple(x.shape[:2])
        raise ValueError(f"mask has rows of different lengths; pass shape {shape}") from error
    flags = _check_mask(mask, tuple(x.shape[:2]))
    if not is_small(x) and not _are_short(x):
        bytes_ = flags.view(np.uint8) if flags.dtype.kind == "b" else flags
        if (spans := mask_spans(bytes_)) is not None:
            return Ragged._of(join(x, *spans), offsets_of(spans[1]))
    flags = _booleans(flags)
    return _take(x, flags, mask_offsets(flags.view(np.uint8)))


def _are_short(x: Any) -> bool:
    """Return True if rows are so short that taking tokens one by one is faster."""
    rows, width = x.shape[:2]
    return bool(width <= SHORT_ROW and x.nbytes <= SHORT_ROW * rows * 8)


def _take(x: Any, flags: np.ndarray, offsets: Integers) -> Ragged:
    """Take tokens one by one."""
    if (small := small_on_host(x)) is not None:
        # Of tokens of several values, a mask of all dimensions takes three times as long.
        taken = (
            small[flags] if small.ndim == 2 else flatten(small, 2).compress(flags.reshape(-1), 0)
        )
        values = taken if small is x else to_tensor(taken)
    else:
        values = take(flatten(x, 2), np.flatnonzero(flags)) if is_tensor(x) else x[flags]
    return Ragged._of(values, offsets)


def _mask_rows(column: Ragged, mask: Any) -> Ragged:
    """Take the tokens of rows of different widths where a mask is true."""
    masks = ragged(mask)
    if len(masks) != len(column):
        raise ValueError(
            f"mask has {len(masks)} rows, but x has {len(column)}; pass one row for each"
        )
    if (differ := masks.lengths != column.lengths).any():
        row = int(differ.argmax())
        raise ValueError(
            f"mask[{row}] has {masks.lengths[row]} items, but x[{row}] has "
            f"{column.lengths[row]} tokens; pass one item for each"
        )
    flags = _booleans(_check_mask(masks.values, (len(column.values),)), masks.offsets)
    values = take(column.values, np.flatnonzero(flags))
    return Ragged._of(values, offsets_of(flags)[column.offsets])


def _check_mask(mask: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return a mask on the host, checked to have a shape."""
    flags: np.ndarray = to_numpy(check_array("mask", mask), "mask")
    if flags.shape != shape:
        advice = ", such as its attention_mask"
        if flags.shape[:1] == shape[:1] and flags.ndim == len(shape) == 2:
            advice += (
                f"; a mask of responses goes with their part of x, as x[:, -{flags.shape[1]}:]"
            )
        raise ValueError(
            f"mask has shape {flags.shape}; pass one of the shape of x's tokens, {shape}{advice}"
        )
    return flags


def _booleans(flags: np.ndarray, offsets: Any = None) -> np.ndarray:
    """Return a mask of 0 and 1 as booleans."""
    kind = flags.dtype.kind
    # Other integers set other bits.
    if kind == "b" or (kind != "f" and np.bitwise_or.reduce(flags, None) in (0, 1)):
        return flags.astype(np.bool_, copy=False)
    is_set: np.ndarray = flags == 1
    if (wrong := ~is_set & (flags != 0)).any():
        index = int(wrong.argmax())
        if offsets is None:
            row, token = divmod(index, flags.shape[1])
        else:
            row, token = row_and_token(offsets, index)
        found = flags.reshape(-1)[index]
        raise ValueError(
            f"mask[{row}][{token}] is {found}; pass True or 1 on tokens to keep, else 0"
        )
    return is_set


def _lengths_of(rows: int, lengths: Any) -> Integers:
    """Return the length of each row."""
    found = check_lengths("lengths", lengths)
    if len(found) != rows:
        raise ValueError(
            f"lengths has {tally(len(found), 'item')}, but x has {tally(rows, 'row')}; pass "
            "one length per row"
        )
    return found


def _other_length(row: int, length: int, width: int) -> ValueError:
    return ValueError(
        f"lengths[{row}] is {length}, but x[{row}] has {width} tokens; "
        f"pass a length from 0 to {width}"
    )


def _check_side(side: str | None, row: int, length: int, width: int) -> None:
    """Check that the side of a padded row is given: its tokens do not tell."""
    if side is None:
        raise ValueError(
            f"side is None, but lengths[{row}] is {length} and x[{row}] has "
            f"{tally(width, 'token')}; pass side='left' if padding comes before a row's tokens, "
            "as in prompts of generation, or side='right' if it comes after them"
        )


def _trim(rows: Sequence[Any], lengths: Any, side: str | None) -> list[Any]:
    """Remove the padding of rows that are sequences, arrays or tensors."""
    checked = _lengths_of(len(rows), lengths).tolist()
    trimmed = []
    widths = []
    for index, (row, length) in enumerate(zip(rows, checked, strict=True)):
        try:
            width = len(row)
        except TypeError as error:
            raise TypeError(f"x[{index}] is {describe(row)}; {EXPECTED}") from error
        if length > width:
            raise _other_length(index, length, width)
        widths.append(width)
        trimmed.append(row[width - length :] if side == "left" else row[:length])
    for index, (length, width) in enumerate(zip(checked, widths, strict=True)):
        if length < width:
            _check_side(side, index, length, width)
    return trimmed
