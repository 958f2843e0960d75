"""Dtypes of outputs, and selection of the optional outputs.

Expert routes without a dtype get one from their values, in `rust/core/batch/places.rs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from fastcollate._fastcollate import FieldSpec, OutputSpec, OutputTable
from fastcollate.arrays import checked_dtype_name
from fastcollate.option_types import LABELS, PositionIds

DEFAULT = OutputSpec(loss_mask="float32")
"""The dtypes that current frameworks use."""

PADDINGS: tuple[str, ...] = get_args(PositionIds)

_DEFAULT = dict.fromkeys(
    (
        *("input_ids", "attention_mask", "response_mask", "position_ids", "sequence_ids"),
        *("labels", "shift_labels"),
    ),
    "int64",
) | {"loss_mask": "float32"}
_COMPACT = {
    "input_ids": "int32",
    "attention_mask": "bool",
    "response_mask": "bool",
    "position_ids": "int32",
    "sequence_ids": "int32",
    "labels": "int64",  # torch's losses take no other integers
    "shift_labels": "int64",
    "loss_mask": "float32",
}
_PRESETS = {"default": _DEFAULT, "compact": _COMPACT}

GRIDS = ("image_grid_thw", "video_grid_thw")
"""Fields of models that count positions in three dimensions, from these grids."""


def checked_outputs(
    dtypes: str | Mapping[str, Any],
    layout: str,
    position_ids: str | bool | None,
    labels: str | None,
    fields: list[tuple[Any, FieldSpec]],
    array_type: str,
) -> tuple[OutputSpec, list[tuple[Any, FieldSpec]]]:
    """Return the outputs and fields with their dtypes, from a preset's name or a mapping by key."""
    if isinstance(position_ids, bool):
        positions = "zero" if position_ids else "omitted"
    elif position_ids is None:
        # Models would take ours in place of their own.
        has_own = any(spec.key in ("position_ids", *GRIDS) for _, spec in fields)
        positions = "omitted" if has_own else "default"
    elif position_ids in PADDINGS:
        positions = position_ids
    else:
        raise ValueError(
            f"position_ids is {position_ids!r}; pass 'zero' (or True), 'one', 'repeat_last', "
            "False or None"
        )
    if labels is not None and labels not in LABELS:
        raise ValueError(f"labels is {labels!r}; pass 'aligned', 'shifted' or None")
    is_default = labels is None and positions == "default"
    if is_default and isinstance(dtypes, str) and dtypes == "default":
        outputs = DEFAULT
    else:
        preset, by_key = taken_apart(dtypes)
        # A batch keeps the dtypes of outputs that only other layouts have.
        names = dict(_PRESETS[preset])
        outputs = _outputs(names, positions, labels)
        if by_key:
            table = OutputTable.of_layout(layout, False, 0, [], outputs)
            own = {output.key for output in table if output.key in names}
            if positions == "default":
                own.add("position_ids")  # made on access
            known = own | {spec.key for _, spec in fields if spec.is_written}
            if unknown := [key for key in by_key if key not in known]:
                raise ValueError(
                    f"dtypes has the key {unknown[0]!r}, which is no output with a choice of "
                    f"dtypes; pass keys of {sorted(known)}"
                )
            names |= {key: dtype for key, dtype in by_key.items() if key in own}
            outputs = _outputs(names, positions, labels)
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


def labels_key(is_shifted: bool) -> str:
    """Return the key of labels: at their own tokens, or each at the token before."""
    return "shift_labels" if is_shifted else "labels"


def _outputs(names: Mapping[str, str], positions: str, labels: str | None) -> OutputSpec:
    """Return the outputs of the dtypes given by key."""
    is_shifted = labels == "shifted"
    return OutputSpec(
        names["input_ids"],
        names["attention_mask"],
        names["response_mask"],
        (positions, names["position_ids"]),
        None if labels is None else (is_shifted, names[labels_key(is_shifted)]),
        names["sequence_ids"],
        loss_mask=names["loss_mask"],
    )


def taken_apart(dtypes: Any) -> tuple[str, dict[str, str]]:
    """Return the preset, and the names of dtypes that differ from it."""
    if isinstance(dtypes, Mapping):
        return "default", {key: checked_dtype_name(dtype, key) for key, dtype in dtypes.items()}
    if isinstance(dtypes, str) and dtypes in _PRESETS:
        return dtypes, {}
    message = f"dtypes is {dtypes!r}; pass 'default', 'compact' or a mapping from output keys"
    raise ValueError(message) if isinstance(dtypes, str) else TypeError(message)
