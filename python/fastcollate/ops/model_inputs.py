"""The arguments of a transformers model that is called with a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from fastcollate._fastcollate import IGNORE_INDEX
from fastcollate.common.arguments import check_choice
from fastcollate.common.arrays import convert, dtype_like, like_of, zeros
from fastcollate.ops.attention import block_mask, dense_mask

if TYPE_CHECKING:
    from fastcollate.ops.batch_state import BatchState

KEYS = {"input_ids", "attention_mask", "position_ids", "labels", "shift_labels", "use_cache"}
"""The keys of all inputs that are not fields."""

Mask: TypeAlias = Literal["dense", "block"]
"""Kinds of masks for layouts whose rows share output rows."""


def model_inputs(
    state: BatchState, position_ids: Any | None, mask: Mask | None, dtype: Any = "float32"
) -> dict[str, Any]:
    """See :meth:`fastcollate.Batch.model_inputs`; without positions if they are None."""
    plan, outputs = state.plan, state.data
    is_padded = not (plan.has_bins or plan.is_jagged)
    check_mask(mask, plan.layout, is_padded, isinstance(outputs["input_ids"], np.ndarray))

    def in_rows(value: Any) -> Any:
        """Return jagged values as one output row."""
        return value[None] if plan.is_jagged else value

    inputs = {"input_ids": in_rows(outputs["input_ids"])}
    is_ours = state.spec.outputs.position_ids[0] != "omitted"
    if is_padded:
        inputs["attention_mask"] = outputs["attention_mask"]
    elif mask == "block":
        inputs["attention_mask"] = block_mask(plan, outputs["input_ids"])
    elif mask == "dense" or plan.is_tree or not is_ours:
        # Models find the sequences of packed rows by positions, which may be the caller's here.
        inputs["attention_mask"] = dense_mask(plan, outputs["input_ids"], dtype)
    if position_ids is not None:
        inputs["position_ids"] = in_rows(position_ids)
    if "labels" in outputs:
        labels = in_rows(outputs["labels"])
        inputs |= {"labels": labels, "shift_labels": _move(labels, -1)}
    elif "shift_labels" in outputs:
        labels = in_rows(outputs["shift_labels"])
        inputs |= {"labels": _move(labels, 1), "shift_labels": labels}
    if not is_padded:
        inputs["use_cache"] = False
    joined = (output.key for output in state.spec.table if output.align == "joined")
    return inputs | {key: outputs[key] for key in joined if key not in KEYS}


def check_mask(mask: Any, layout: str, is_padded: bool, is_numpy: bool) -> None:
    """Check that a mask fits a layout and the kind of arrays."""
    if mask is None:
        return
    check_choice("mask", mask, get_args(Mask))
    if is_padded:
        raise ValueError(
            f"mask is {mask!r}, but batches with layout={layout!r} have an attention_mask; leave "
            "mask out"
        )
    if mask == "block" and is_numpy:
        raise ValueError(
            "mask is 'block', but array_type is 'numpy', which FlexAttention does not take; pass "
            "mask='dense', or array_type='torch'"
        )


def positions(state: BatchState) -> Any | None:
    """Return the output of positions, or else make them; None if they were left out.

    Made ones are those of each token in its row, 0 on padding, in the shape of the ids.
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


def _move(labels: Any, columns: int) -> Any:
    """Return labels moved by one column to the left (-1) or right (1).

    No label is lost or comes into another sequence: first tokens have none.
    """
    found = zeros(tuple(labels.shape), labels)
    found[...] = IGNORE_INDEX
    if columns < 0:
        found[:, :-1] = labels[:, 1:]
    else:
        found[:, 1:] = labels[:, :-1]
    return found
