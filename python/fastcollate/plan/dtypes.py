"""Dtypes of outputs, and selection of the optional outputs.

Expert routes without a dtype get one from their values, in `rust/core/batch/array_grids.rs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from fastcollate._fastcollate import FieldSpec, OutputSpec, OutputTable
from fastcollate.common.arguments import check_choice
from fastcollate.common.arrays import check_dtype_name
from fastcollate.common.text import show
from fastcollate.rows.per_row import GRIDS

PositionIds: TypeAlias = Literal["zero", "one", "repeat_last"]
Labels: TypeAlias = Literal["aligned", "shifted"]
Preset: TypeAlias = Literal["default", "compact"]
ArrayType: TypeAlias = Literal["torch", "numpy"]

# `get_args` takes longer than all other checks of a small batch.
ARRAY_TYPES: tuple[str, ...] = get_args(ArrayType)

LABELS: tuple[str, ...] = get_args(Labels)
_LABELS = (*LABELS, None)

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
_COMPACT = _DEFAULT | {  # torch's losses take no other labels
    **dict.fromkeys(("input_ids", "position_ids", "sequence_ids"), "int32"),
    **dict.fromkeys(("attention_mask", "response_mask"), "bool"),
}
_PRESETS = {"default": _DEFAULT, "compact": _COMPACT}

_POSITIONS = ("position_ids", *GRIDS)


class Outputs(NamedTuple):
    """Dtypes of outputs, and the choice of optional ones, checked."""

    spec: OutputSpec
    """The outputs of a batch, if its fields and `by_key` change nothing."""
    preset: Mapping[str, str]
    by_key: Mapping[str, str]
    """Dtypes that differ from the preset."""
    positions: str
    labels: Labels | None

    @classmethod
    def check(cls, dtypes: Any, position_ids: Any, labels: Any) -> Outputs:
        """Check the arguments ``dtypes``, ``position_ids`` and ``labels``."""
        if position_ids is None:
            positions = "default"
        elif isinstance(position_ids, bool):
            positions = "zero" if position_ids else "omitted"
        else:
            check_choice("position_ids", position_ids, PADDINGS, ", True, False or None")
            positions = position_ids
        is_default = labels is None and positions == "default"
        if is_default and isinstance(dtypes, str) and dtypes == "default":
            return _DEFAULT_OUTPUTS
        check_choice("labels", labels, _LABELS, "; labels are made from the ids and loss_mask")
        preset, by_key = _read_dtypes(dtypes)
        return cls(_spec_of(preset, positions, labels), preset, by_key, positions, labels)

    def of_batch(
        self, layout: str, fields: list[tuple[Any, FieldSpec]], array_type: str
    ) -> tuple[OutputSpec, list[tuple[Any, FieldSpec]]]:
        """Return the outputs and fields of a batch with their dtypes."""
        spec, positions = self.spec, self.positions
        if positions == "default":
            for _, field in fields:
                # Models would take ours in place of their own.
                if field.key in _POSITIONS:
                    positions = "omitted"
                    spec = _spec_of(self.preset, positions, self.labels)
        if self.by_key:
            spec, fields = self._by_key(spec, positions, layout, fields)
        if array_type == "numpy":
            for _, field in fields:
                if field.dtype == "bfloat16":
                    raise ValueError(
                        f"dtype of {field.key} is bfloat16, which NumPy does not have; pass "
                        "array_type='torch', or another dtype"
                    )
        return spec, fields

    def _by_key(
        self, spec: OutputSpec, positions: str, layout: str, fields: list[tuple[Any, FieldSpec]]
    ) -> tuple[OutputSpec, list[tuple[Any, FieldSpec]]]:
        """Return the outputs and fields with the dtypes that are given by key."""
        table = OutputTable.of_layout(layout, False, 0, [], spec)
        own = {output.key for output in table if output.key in self.preset}
        if positions == "default":
            own.add("position_ids")  # made on access
        known = own | {field.key for _, field in fields if field.is_written}
        if unknown := [key for key in self.by_key if key not in known]:
            raise ValueError(
                f"dtypes has the key {show(unknown[0])}, which has no choice of dtypes; pass keys "
                f"of {sorted(known)}"
            )
        # A batch keeps the dtypes of outputs that only other layouts have.
        chosen = {key: dtype for key, dtype in self.by_key.items() if key in own}
        spec = _spec_of({**self.preset, **chosen}, positions, self.labels)
        return spec, [
            (rows, field.with_dtype(self.by_key[field.key]) if field.key in self.by_key else field)
            for rows, field in fields
        ]


_DEFAULT_OUTPUTS = Outputs(DEFAULT, _DEFAULT, {}, "default", None)


def labels_key(is_shifted: bool) -> str:
    """Return the key of labels: at their own tokens, or each at the token before."""
    return "shift_labels" if is_shifted else "labels"


def _spec_of(names: Mapping[str, str], positions: str, labels: str | None) -> OutputSpec:
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


def _read_dtypes(dtypes: Any) -> tuple[Mapping[str, str], dict[str, str]]:
    """Return the dtypes of the preset, and those that differ, by key."""
    if isinstance(dtypes, Mapping):
        return _DEFAULT, {key: check_dtype_name(dtype, key) for key, dtype in dtypes.items()}
    if isinstance(dtypes, str) and dtypes in _PRESETS:
        return _PRESETS[dtypes], {}
    message = f"dtypes is {show(dtypes)}; pass 'default', 'compact' or a mapping from output keys"
    raise ValueError(message) if isinstance(dtypes, str) else TypeError(message)
