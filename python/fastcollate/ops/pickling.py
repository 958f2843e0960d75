"""Contents of a pickled batch."""

from __future__ import annotations

from typing import Any

from fastcollate.common.arrays import is_array, is_tensor
from fastcollate.ops.batch_state import BatchState
from fastcollate.ops.parts import Parts
from fastcollate.ops.ragged_outputs import ragged_outputs


def own_memory(data: dict[str, Any]) -> dict[str, Any]:
    """Copy tensors that cover only part of their storage: torch would pickle all of it.

    Lists of tensors are joined, as torch sends each tensor by its own file descriptor.
    """

    def own(value: Any) -> Any:
        if is_tensor(value) and value.untyped_storage().nbytes() > value.nbytes:
            return value.clone()
        if isinstance(value, Parts):
            return value.map(own)
        return _Joined.of(value) if isinstance(value, list) and _can_be_joined(value) else value

    return {key: own(value) for key, value in data.items()}


class _Joined(Parts):
    """A list of tensors, joined for its pickle."""

    @classmethod
    def of(cls, tensors: list[Any]) -> _Joined:
        import torch

        return cls(torch.cat(tensors), list(map(len, tensors)))


def _can_be_joined(values: list[Any]) -> bool:
    """Return True for dense tensors on the host that differ only in their number of items."""
    first: Any = values[0] if values else None
    if not is_tensor(first) or first.dim() == 0 or first.device.type != "cpu":
        return False

    def kind(value: Any) -> tuple[Any, ...]:
        if not is_tensor(value) or value.is_nested:
            return ()
        return type(value), value.dtype, value.shape[1:], value.device, value.layout

    is_dense = str(first.layout) == "torch.strided" and not first.is_nested
    return is_dense and all(
        kind(value) == kind(first) and value.dim() > 0 and not value.requires_grad
        for value in values
    )


def restore(kind: Any, data: dict[str, Any], *state: Any) -> Any:
    """Return the batch of a pickle: its class, its outputs, and the rest of its state.

    Raises
    ------
    ValueError
        If an output is not of its plan's shape.
    """
    data = {k: value.views if type(value) is _Joined else value for k, value in data.items()}
    restored = BatchState(data, *state)
    _check_shapes(restored)
    return kind._of(restored)


def _check_shapes(state: BatchState) -> None:
    """Check the leading dimensions of a whole batch's outputs of tokens."""
    if (plan := state.known_plan) is None or state.options is None or state.options.cp:
        return
    shapes = {name: plan.leading_shape(name == "sequence") for name in ("sequence", "response")}
    for output in state.options.table:
        shape, value = shapes.get(output.align), state.data.get(output.key)
        if shape is None or value is None or not is_array(value):
            continue
        if (found := tuple(value.shape))[: len(shape)] != shape:
            raise ValueError(
                f"{output.key} has shape {found}, but its plan lays out {shape}; pass the pickle "
                "unchanged"
            )
    for ragged in ragged_outputs(state.options.table):
        values: Any = state.data.get(ragged.values)
        offsets: Any = state.data.get(ragged.offsets)
        if not (is_array(values) and is_array(offsets)) or getattr(offsets, "is_meta", False):
            continue
        if len(offsets) == 0 or int(offsets[-1]) != len(values):
            raise ValueError(
                f"{ragged.values} has {len(values)} values, but {ragged.offsets} ends at another "
                "number; pass the pickle unchanged"
            )
