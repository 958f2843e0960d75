"""The arguments of a transformers model that is called with a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from fastcollate._fastcollate import IGNORE_INDEX
from fastcollate.arguments import check_choice
from fastcollate.arrays import convert, dtype_like, like_of, zeros

if TYPE_CHECKING:
    from fastcollate.batch import Batch

KEYS = {"input_ids", "attention_mask", "position_ids", "labels", "shift_labels", "use_cache"}
"""The keys of all inputs that are not fields."""

Mask: TypeAlias = Literal["dense", "block"]
"""Kinds of masks for layouts whose rows share output rows."""


def model_inputs(batch: Batch, mask: Mask | None, dtype: Any) -> dict[str, Any]:
    """See :meth:`fastcollate.Batch.model_inputs`."""
    plan, outputs = batch.plan, batch._data
    is_padded = not (plan.has_bins or plan.is_jagged)
    check_mask(mask, plan.layout, is_padded, isinstance(outputs["input_ids"], np.ndarray))

    def in_rows(value: Any) -> Any:
        """Return jagged values as one output row."""
        return value[None] if plan.is_jagged else value

    inputs = {"input_ids": in_rows(outputs["input_ids"])}
    is_ours = batch.spec.outputs.position_ids[0] != "omitted"
    if is_padded:
        inputs["attention_mask"] = outputs["attention_mask"]
    elif mask == "block":
        inputs["attention_mask"] = batch.block_mask()
    elif mask == "dense" or plan.is_tree or not is_ours:
        # Models find the sequences of packed rows by positions, which may be the caller's here.
        inputs["attention_mask"] = batch.dense_mask(dtype)
    if is_ours or "position_ids" in outputs:
        inputs["position_ids"] = in_rows(batch._position_ids)
    if "labels" in outputs:
        labels = in_rows(outputs["labels"])
        inputs |= {"labels": labels, "shift_labels": _moved(labels, -1)}
    elif "shift_labels" in outputs:
        labels = in_rows(outputs["shift_labels"])
        inputs |= {"labels": _moved(labels, 1), "shift_labels": labels}
    if not is_padded:
        inputs["use_cache"] = False
    joined = (output.key for output in batch.spec.table if output.align == "joined")
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


def positions(batch: Batch) -> Any:
    """Return the position of each token in its row, 0 on padding, in the shape of the ids."""
    plan, ids = batch.plan, batch._data["input_ids"]
    depths = plan.depths().reshape(plan.leading_shape(of_sequence=True))
    found = like_of(depths, ids)
    return convert(found, dtype_like(found, batch.spec.outputs.position_ids[1]))


def _moved(labels: Any, columns: int) -> Any:
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
