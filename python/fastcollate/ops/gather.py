"""Between per-token outputs and the values of rows or turns: gather, and broadcast."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate.common.arguments import check_bool, check_choice, tally, warn_user
from fastcollate.common.arrays import (
    check_array,
    describe,
    dtype_name,
    fits,
    flatten,
    is_array,
    is_tensor,
    like_of,
    make_signed,
    of_bits,
    offsets_of,
    on_host,
    ranges_of,
    take,
    to_tensor,
)
from fastcollate.common.text import show
from fastcollate.rows.columns import Ragged

if TYPE_CHECKING:
    from fastcollate._fastcollate import Plan
    from fastcollate.ops.batch_state import BatchState


def gather(
    state: BatchState,
    x: Any,
    align: str | None,
    shift: str | None,
    missing: float | None,
    per: str,
    gaps: bool,
) -> Ragged | tuple[Ragged, Ragged]:
    """See :meth:`fastcollate.Batch.gather`."""
    plan = state.plan
    check_bool("gaps", gaps)
    check_choice("per", per, ("row", "turn"))
    check_choice("align", align, ("response", "sequence", None))
    check_choice("shift", shift, ("none", "next_token", None))
    if shift is None and align == "sequence":
        raise TypeError(
            "align is 'sequence', but shift is None; pass shift='next_token' if position p of x "
            "holds the value of token p + 1, as log-probabilities of a model do, or shift='none' "
            "if it holds the value of token p"
        )
    is_shifted = shift == "next_token"
    if is_shifted and align != "sequence":
        raise ValueError(
            f"shift is 'next_token', but align is {align!r}; pass align='sequence', or leave shift "
            "out"
        )
    shape: tuple[int, ...]
    if isinstance(x, Ragged):
        shape = _shape_of(plan, x, align)
    else:
        x = check_array("x", x)
        shape = tuple(x.shape)
    missing = _check_missing(missing, x)
    if align is None:
        _check_one_reading(plan, shape, shift)
    align, shift = align or "response", shift or "none"
    leading = plan.leading_shape(of_sequence=align == "sequence")
    found = shape[: len(leading)]
    expected = [leading]
    if is_shifted and not isinstance(x, Ragged):
        expected.append(_without_last(leading))
    if found not in expected:
        shapes = " or ".join(str(shape) for shape in expected)
        whole = plan.leading_shape(of_sequence=True)
        advice = ""
        if align == "response" and shape[: len(whole)] in (whole, _without_last(whole)):
            advice = "; if x lies along input_ids, pass align='sequence'"
            advice += (
                " for entropies and values, and take log-probabilities by batch.loss_positions() "
                "and batch.targets: a position of a tree can predict several tokens"
                if plan.is_tree
                else ", and for log-probabilities of a model shift='next_token'"
            )
        elif align == "sequence" and shape[: len(whole)] == _without_last(whole):
            advice = (
                "; if x is one position shorter, as log-probabilities of a model are, pass "
                "shift='next_token'"
            )
        if isinstance(x, Ragged):
            raise ValueError(
                f"x has {tally(len(x), 'list')}, but align is {align!r}, and the batch has "
                f"{math.prod(leading)} such positions; pass a list for each, or read ragged fields "
                "of any alignment row by row with batch.rows()"
            )
        raise ValueError(
            f"x has shape {shape}, but align is {align!r} and shift {shift!r}; pass x of shape "
            f"{shapes}, with or without trailing dimensions{advice}"
        )
    # Padding rows have no positions in bins, and so no values.
    which = {"per_turn": per == "turn", "gaps": gaps, "padding": not plan.has_bins}
    places, lens = plan.gather_positions(
        of_sequence=align == "sequence",
        next_token=is_shifted,
        width=found[-1],
        may_miss=missing is not None or isinstance(x, Ragged),
        **which,
    )
    if is_shifted and (count := _count_forks(state, places, which)) > 0:
        warn_user(
            f"at {tally(count, 'fork')} of the tree, several tokens get the one value of the "
            "position before them: right for entropies and values, but wrong for "
            "log-probabilities; take those by batch.loss_positions() and batch.targets"
        )
    rows = offsets_of(lens)
    if isinstance(x, Ragged):
        counts = np.where(places < 0, 0, x.lengths[places]) if len(x) else np.zeros_like(places)
        values = take(x.values, ranges_of(x.offsets[np.maximum(places, 0)], counts))
        return Ragged(values, offsets_of(counts)[rows]), Ragged(counts, rows)
    return Ragged(_at(flatten(x, len(leading)), places, missing), rows)


def _shape_of(plan: Plan, x: Ragged, align: str | None) -> tuple[int, ...]:
    """Return the shape of the positions that lists belong to: of `align`, if they fit."""
    kinds = (True, False) if align == "sequence" else (False, True)
    shapes = [plan.leading_shape(of_sequence=of_sequence) for of_sequence in kinds]
    return next((shape for shape in shapes if math.prod(shape) == len(x)), (len(x),))


def _count_forks(state: BatchState, places: np.ndarray, which: dict[str, bool]) -> int:
    """Count the positions that predict several of the tokens that are gathered: forks of a tree."""
    plan, options = state.plan, state.options
    if not plan.is_tree or (options is not None and options.forks_early):
        return 0
    tokens, _ = plan.gather_positions(of_sequence=True, may_miss=True, **which)
    places, tokens = places[places >= 0], tokens[places >= 0]
    one_of = np.zeros(int(places.max(initial=-1)) + 1, np.int64)
    one_of[places] = tokens
    return len(np.unique(places[one_of[places] != tokens]))


def _without_last(leading: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape with one position less, as for the predictions of next tokens."""
    return (*leading[:-1], max(leading[-1] - 1, 0))


def _check_one_reading(plan: Plan, shape: tuple[int, ...], shift: str | None) -> None:
    """Refuse values of responses that could be values of sequences, by their shape."""
    responses = plan.leading_shape(of_sequence=False)
    sequences = plan.leading_shape(of_sequence=True)
    found = shape[: len(sequences)]
    is_shorter = found == _without_last(sequences) and shift != "none"
    if shape[: len(responses)] != responses or not (found == sequences or is_shorter):
        return
    widths = f"{sequences} or {_without_last(sequences)}"
    raise ValueError(
        f"align is None, but the shape of x, {shape}, fits fields along responses, {responses}, "
        f"and values along input_ids, {widths}; pass align='response' if x is aligned like "
        "batch.response_mask or batch.loss_mask, or align='sequence' with shift='next_token' if x "
        "comes from a model, such as its log-probabilities"
    )


def _check_missing(missing: Any, x: Any) -> float | None:
    """Return the number for missing values, in the dtype of `x`."""
    if missing is None:
        return None
    if isinstance(x, Ragged):
        raise ValueError(
            f"missing is {show(missing)}, but x has a list per position, and tokens without a "
            "position get an empty one; leave missing out"
        )
    if not isinstance(missing, (int, float, np.number, np.bool_)):
        raise TypeError(f"missing is {describe(missing)}; pass a number or None")
    number: float = missing.item() if isinstance(missing, np.generic) else missing
    if not fits(number, x):
        raise ValueError(
            f"missing is {show(missing)}, but x is of {dtype_name(x.dtype)}, which cannot hold it; "
            "pass another number, or x as floats"
        )
    return number if "float" in dtype_name(x.dtype) else int(number)


def _at(flat: Any, places: np.ndarray, missing: float | None) -> Any:
    """Take items by index; where the index is -1, return the number."""
    if len(flat) == 0:  # all are missing, and there is no item to take in their place
        shape = (len(places), *flat.shape[1:])
        fill = 0 if missing is None else missing
        if isinstance(flat, np.ndarray):
            return np.full(shape, fill, flat.dtype)
        return flat.new_full(shape, fill)
    if missing is None:
        return take(flat, places)
    found = take(flat, np.maximum(places, 0))
    is_missing = like_of(places < 0, found)
    if isinstance(found, np.ndarray):
        found[is_missing] = missing
        return found
    import torch

    bits = make_signed(found)
    if bits.dtype != found.dtype:
        missing = make_signed(torch.tensor(missing, dtype=found.dtype)).item()
    is_missing = is_missing.reshape(-1, *[1] * (found.dim() - 1))
    return of_bits(bits.masked_fill(is_missing, missing), found.dtype)


def broadcast(plan: Plan, loss_mask: Any, per_row: Any, on: str) -> Any:
    """See :meth:`fastcollate.Batch.broadcast`."""
    check_choice("on", on, ("trained", "response"))
    if not is_array(per_row):
        raise TypeError(f"per_row is {describe(per_row)}; pass one number per row")
    per_row = check_array("per_row", per_row)
    if tuple(per_row.shape) != (plan.num_rows,):
        raise ValueError(
            f"per_row has shape {tuple(per_row.shape)}, but the batch has {plan.num_rows} rows; "
            f"pass shape ({plan.num_rows},), one number per row"
        )
    places, lens = plan.gather_positions(of_sequence=False, gaps=on == "response")
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
