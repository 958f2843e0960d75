"""The arguments of a transformers model that is called with a batch."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate._fastcollate import IGNORE_INDEX
from fastcollate.common.arguments import warn_user
from fastcollate.common.arrays import (
    convert,
    dtype_like,
    like_of,
    offsets_of,
    on_host,
    ranges_of,
    row_and_token,
    take,
    was_written,
    zeros,
)
from fastcollate.ops.masks import MASK_KEYS, Kernel, ModelCall, mask_inputs
from fastcollate.ops.model_kinds import TOKEN_TYPES
from fastcollate.ops.tree_labels import tree_label_keys, tree_labels
from fastcollate.plan.plan_tables import PlanTables
from fastcollate.rows.fields import LABELS
from fastcollate.rows.per_row import GRIDS, IMAGES, SOUNDS

if TYPE_CHECKING:
    from fastcollate.ops.batch_state import BatchState

KEYS = {"input_ids", "position_ids", *LABELS, "use_cache", *MASK_KEYS}
"""The keys of all inputs that are not fields."""


def model_inputs(
    state: BatchState,
    position_ids: Any | None,
    kernel: Kernel | None = None,
    model: Any = None,
    dtype: Any = None,
) -> dict[str, Any]:
    """See :meth:`fastcollate.Batch.model_inputs`; without positions if they are None."""
    check_own_positions(state)
    if (message := left_out_message(state)) is not None:
        warn_user(message)
    inputs = inputs_without_masks(state, position_ids)
    masks = masks_of(state, ModelCall.of(kernel, model, dtype))
    return {"input_ids": inputs["input_ids"], **masks, **inputs}


def masks_of(state: BatchState, call: ModelCall) -> dict[str, Any]:
    """Return the inputs that say which positions attend to each other."""
    plan, ids = state.plan, state.data["input_ids"]
    if state.spec.outputs.labels is not None:
        call.check_labels()
    has_positions = state.spec.outputs.position_ids[0] != "omitted"  # else they are the caller's
    kernel = call.kernel_for(plan.layout, isinstance(ids, np.ndarray), has_positions)
    if plan.is_tree and not has_positions:  # even if no row here has images
        for key in ("position_ids", *GRIDS):
            if key in state.spec.table:
                raise ValueError(
                    f"the batch has {key}, but models would count its positions across the rows "
                    "of a tree; pass another layout"
                )
    types = _token_types(state)
    is_padded = not (plan.has_bins or plan.is_jagged) and kernel in (None, "flash")
    if (types_key := call.types_of_images) and not (types_key in types and is_padded):
        for key in _joined_inputs(state):
            if key in IMAGES:
                raise ValueError(
                    f"the batch has {key}, but this model finds the tokens that belong to images "
                    f"by {types_key}; pass what its processor returns, as "
                    f"fields={{{types_key!r}: fc.Field(..., align='sequence', dtype='int64'), "
                    "...}, in a padded layout, such as layout='left', without kernel"
                )
    if is_padded:
        return {"attention_mask": state.data["attention_mask"]}
    if types and (plan.is_tree or joined_keys(state)):
        raise ValueError(
            f"the batch has {types[0]}, with which models let tokens attend to images, also of "
            "other rows in the same output row; pass a padded layout, such as layout='left', "
            "without kernel (models that count positions in three dimensions take a field "
            f"position_ids with three values per token in place of {types[0]})"
        )
    if kernel is None:
        return {}
    dtype = "float32" if call.dtype is None else call.dtype
    return mask_inputs(plan, ids, kernel, call.config, dtype)


def inputs_without_masks(state: BatchState, position_ids: Any | None) -> dict[str, Any]:
    """Return the other inputs, which do not depend on the kernel."""
    plan, outputs = state.plan, state.data

    def in_rows(value: Any) -> Any:
        """Return jagged values as one output row."""
        return value[None] if plan.is_jagged else value

    inputs = {"input_ids": in_rows(outputs["input_ids"])}
    if position_ids is not None:
        inputs["position_ids"] = _as_counted(in_rows(position_ids))
    if "labels" in outputs:
        inputs["labels"] = in_rows(outputs["labels"])  # alone: a copy would miss later changes
    elif "shift_labels" in outputs:
        labels = in_rows(outputs["shift_labels"])
        inputs |= {"labels": _aligned(labels), "shift_labels": labels}
    inputs |= {key: tree_labels(state, key) for key in tree_label_keys(state)}
    if plan.has_bins or plan.is_jagged:
        inputs["use_cache"] = False
    if not plan.is_tree:  # its fields are by row
        inputs |= {key: in_rows(outputs[key]) for key in _token_types(state)}
    return inputs | {key: _in_bins(state, key) for key in _joined_inputs(state) if key not in KEYS}


def _as_counted(position_ids: Any) -> Any:
    """Return positions as models take them, of several dimensions with these first."""
    if position_ids.ndim < 3:
        return position_ids
    is_array = isinstance(position_ids, np.ndarray)
    return np.moveaxis(position_ids, -1, 0) if is_array else position_ids.movedim(-1, 0)


def left_out_message(state: BatchState, keys: Collection[str] | None = None) -> str | None:
    """Return a warning if a model would lack images, or the positions of these.

    Images that are not joined are not among the inputs of the model, of which `keys` are passed.
    """
    table = state.spec.table
    for key in (*IMAGES, *SOUNDS) if keys is None else ():
        if key in table and table[key].align in ("row", "array", "object"):
            return (
                f"{key} is not joined, so it is not among the model's inputs; pass "
                "fc.PerRow(..., concat=True)"
            )
    if not any(key in table for key in GRIDS):
        return None
    inputs = {"position_ids", *_joined_inputs(state), *_token_types(state)}
    passed = inputs if keys is None else inputs.intersection(keys)
    grids = [key for key in GRIDS if key in passed]
    if grids and state.spec.outputs.position_ids[0] != "omitted" and "position_ids" in passed:
        return (
            f"the batch has {grids[0]}, but position_ids count tokens of images like text; leave "
            "the option position_ids out"
        )
    has_positions = "position_ids" in table and "position_ids" in passed
    if grids and not has_positions and "mm_token_type_ids" not in passed:
        return (
            f"the batch has {grids[0]} without mm_token_type_ids, so models may count tokens of "
            "images like text; pass the field "
            "'mm_token_type_ids': fc.Field(..., align='sequence', dtype='int64'), or position_ids "
            f"with three values per token{'' if keys is None else ', and name it in outputs'}"
        )
    return None


def check_own_positions(state: BatchState) -> None:
    """Check that positions that were passed do not begin again within a row, as in packed samples.

    Raises
    ------
    ValueError
        They do, so sequences of the row would attend to each other.
    """
    table = state.spec.table
    if "position_ids" not in table or table["position_ids"].field is None:
        return
    values = state.data["position_ids"]
    if values.ndim != state.data["input_ids"].ndim or state.plan.is_tree:
        return
    flat, spans = on_host(values).reshape(-1), PlanTables(state.plan).tokens
    places = np.flatnonzero(flat[1:] < flat[:-1]) + 1
    rows, tokens, places = spans.located(places[~np.isin(places, spans.places)])
    if len(rows) > 0:
        raise ValueError(
            f"position_ids[{rows[0]}] goes back from {flat[places[0] - 1]} to {flat[places[0]]} at "
            f"token {tokens[0]}, as in packed samples, but a row is one sequence; pass each "
            "sequence as its own row (to a Collator, pass the lengths of a sample's sequences as "
            "'seq_lengths', in place of position_ids)"
        )


def is_input(state: BatchState, key: Any) -> bool:
    """Return True for an item of a collator's batch that the model gets in a form of its own."""
    if key in KEYS or key in _joined_inputs(state):
        return True
    return key in TOKEN_TYPES and not state.plan.is_tree and key in _token_types(state)


def _token_types(state: BatchState) -> list[str]:
    """Return the keys of token types that the batch has."""
    table = state.spec.table
    aligns = ("sequence", "stream")
    return [key for key in TOKEN_TYPES if key in table and table[key].align in aligns]


def joined_keys(state: BatchState) -> list[str]:
    """Return the keys of values per row that are joined."""
    return [output.key for output in state.spec.table if output.align == "joined"]


def _joined_inputs(state: BatchState) -> list[str]:
    """Return the keys of joined values, but those without any, which models do not take."""
    return [key for key in joined_keys(state) if len(state.data[key]) > 0]


def _in_bins(state: BatchState, key: str) -> Any:
    """Return joined values in the order of the rows' tokens, by which models assign them.

    Rows of a tree that share tokens have the same values, which count once.

    Raises
    ------
    ValueError
        A packer split a row that has values.
    """
    values, plan = state.data[key], state.plan
    if not plan.has_bins:
        return values
    ends = on_host(state.data[f"{key}_offsets"])
    counts, written = np.diff(ends), PlanTables(plan).written
    rows = written.rows[written.starts == 0] if plan.is_tree else written.rows
    rows = rows[counts[rows] > 0]
    is_next = np.diff(rows, prepend=-1) != 0  # not another part of the same row
    rows = rows[is_next]
    if len(np.unique(rows)) < len(rows):
        row = int(rows[np.bincount(rows)[rows] > 1][0])
        raise ValueError(
            f"row {row} of the batch has {key}, but it was split when it was packed, so a model "
            "would assign them to other rows; pass a layout that keeps rows whole"
        )
    if len(rows) == np.count_nonzero(counts) and (np.diff(rows) > 0).all():
        return values
    return take(values, ranges_of(ends[rows], counts[rows]))


def positions(state: BatchState) -> Any | None:
    """Return the output of positions, or else make them; None if they were left out.

    Made ones count the tokens of each row, 0 on padding, in the shape of the ids.
    """
    if "position_ids" in state.data:
        return state.data["position_ids"]
    options = state.options
    if options is None or options.outputs.position_ids[0] == "omitted":
        return None
    state.check_whole()
    plan, ids = state.plan, state.data["input_ids"]
    depths = plan.depths().reshape(plan.leading_shape(of_sequence=True))
    found = like_of(depths, ids)
    return convert(found, dtype_like(found, options.outputs.position_ids[1]))


def check_made_positions(state: BatchState, made: Any) -> None:
    """Check that positions that were made, if any, are as they were: copies make them again.

    Raises
    ------
    ValueError
        One of a token differs.
    """
    if "position_ids" in state.data or not was_written(made):
        return
    plan = state.plan
    starts, lens = plan.row_starts()[0], plan.prompt_lens + plan.response_lens
    lens = np.where(state.is_real, lens, 0)
    places = ranges_of(starts, lens)
    found, expected = on_host(made).reshape(-1)[places], places - np.repeat(starts, lens)
    if (found != expected).any():
        at = int((found != expected).argmax())
        row, token = row_and_token(offsets_of(lens), at)
        raise ValueError(
            f"position_ids is {found[at]} for token {token} of row {row}, but copies, selected "
            f"rows and other layouts would make positions again and have {expected[at]} there; "
            "change it last, or pass position_ids=True to build_batch: copies keep its positions"
        )


def _aligned(shifted: Any) -> Any:
    """Return shifted labels at their own tokens.

    None is lost or comes into another sequence: first tokens have none.
    """
    found = zeros(tuple(shifted.shape), shifted)
    found[:, :1] = IGNORE_INDEX
    found[:, 1:] = shifted[:, :-1]
    return found
