"""Dtypes of outputs, and selection of the optional outputs.

Expert routes without a dtype get one from their values, in `rust/core/batch/places.rs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastcollate._fastcollate import POSITION_IDS, FieldSpec, LayoutSpec, OutputSpec, OutputTable
from fastcollate.arrays import checked_dtype_name
from fastcollate.option_types import LABELS

DEFAULT = OutputSpec()
"""The dtypes that current frameworks use."""

_TRAINED = OutputSpec(loss_mask="float32")
"""The same with a loss mask that marks trained tokens."""

_DEFAULT = dict.fromkeys(
    ("input_ids", "attention_mask", "response_mask", "position_ids", "labels", "sequence_ids"),
    "int64",
) | {"loss_mask": "float32"}
_COMPACT = {
    "input_ids": "int32",
    "attention_mask": "bool",
    "response_mask": "bool",
    "position_ids": "int32",
    "sequence_ids": "int32",
    "labels": "int64",  # torch's losses take no other integers
    "loss_mask": "float32",
}
_PRESETS = {"default": _DEFAULT, "compact": _COMPACT}


def needs_loss_mask(layout: LayoutSpec, is_merged_or_shard: bool) -> bool:
    """Return True if a batch has a ``loss_mask`` output even if the argument is None.

    Merged rows have observations, shards padding rows, and rows in bins tokens that no token
    predicts: the response mask does not mark which of them train.
    """
    return layout.has_bins or is_merged_or_shard


def checked_outputs(
    dtypes: str | Mapping[str, Any],
    layout: str,
    position_ids: str | bool | None,
    labels: str | None,
    fields: list[tuple[Any, FieldSpec]],
    array_type: str,
    has_loss_mask: bool = False,
) -> tuple[OutputSpec, list[tuple[Any, FieldSpec]]]:
    """Return the outputs and fields with their dtypes, from a preset's name or a mapping by key.

    `has_loss_mask` adds a loss mask that marks trained tokens even if no field is one.
    """
    if isinstance(position_ids, bool):
        position_ids = "zero" if position_ids else None
    if position_ids is not None and position_ids not in POSITION_IDS:
        message = (
            f"position_ids is {position_ids!r}; pass 'zero' (or True), 'one', 'repeat_last' or None"
        )
        raise ValueError(message)
    if labels is not None and labels not in LABELS:
        raise ValueError(f"labels is {labels!r}; pass 'aligned', 'shifted' or None")
    if position_ids is labels is None and isinstance(dtypes, str) and dtypes == "default":
        outputs = _TRAINED if has_loss_mask else DEFAULT
    else:
        preset, by_key = taken_apart(dtypes)
        # A batch keeps the dtypes of outputs that only other layouts have.
        names = dict(_PRESETS[preset])
        outputs = _outputs(names, position_ids, labels, has_loss_mask)
        if by_key:
            table = OutputTable.of_layout(layout, False, 0, [], outputs)
            own = {output.key for output in table if output.key in names}
            known = own | {spec.key for _, spec in fields if spec.is_written}
            if unknown := [key for key in by_key if key not in known]:
                raise ValueError(
                    f"dtypes has the key {unknown[0]!r}, which is no output with a choice of "
                    f"dtypes; pass keys of {sorted(known)}"
                )
            names |= {key: dtype for key, dtype in by_key.items() if key in own}
            outputs = _outputs(names, position_ids, labels, has_loss_mask)
            fields = [
                (rows, spec.with_dtype(by_key[spec.key]) if spec.key in by_key else spec)
                for rows, spec in fields
            ]
    if array_type == "numpy":
        for _, spec in fields:
            if spec.dtype == "bfloat16":
                raise ValueError(
                    f"dtype of {spec.key} is bfloat16, which NumPy does not have; pass "
                    "array_type='torch', or another dtype"
                )
    return outputs, fields


def _outputs(
    names: Mapping[str, str], position_ids: str | None, labels: str | None, has_loss_mask: bool
) -> OutputSpec:
    """Return the outputs of the dtypes given by key."""
    return OutputSpec(
        names["input_ids"],
        names["attention_mask"],
        names["response_mask"],
        (position_ids, names["position_ids"]),
        None if labels is None else (labels == "shifted", names["labels"]),
        names["sequence_ids"],
        loss_mask=names["loss_mask"] if has_loss_mask else None,
    )


def taken_apart(dtypes: Any) -> tuple[str, dict[str, str]]:
    """Return the preset, and the names of dtypes that differ from it."""
    if isinstance(dtypes, Mapping):
        return "default", {key: checked_dtype_name(dtype, key) for key, dtype in dtypes.items()}
    if isinstance(dtypes, str) and dtypes in _PRESETS:
        return dtypes, {}
    message = f"dtypes is {dtypes!r}; pass 'default', 'compact' or a mapping from output keys"
    raise ValueError(message) if isinstance(dtypes, str) else TypeError(message)
