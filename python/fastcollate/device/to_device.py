"""Moving batches to a device: one copy per slab."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate.common.arrays import is_tensor
from fastcollate.common.text import show
from fastcollate.memory.in_flight import is_watched, watched
from fastcollate.memory.pinning import pinned
from fastcollate.memory.slabs import (
    as_bytes,
    common_slab,
    is_plain,
    offset_in,
    offsets_of_packed,
    over,
    pack_like,
    size_of,
)
from fastcollate.ops.parts import Parts

if TYPE_CHECKING:
    from fastcollate.ops.batch_state import BatchState

SMALL = 1 << 16
"""Most bytes of a tensor outside the slab that is packed with others before the copy."""


@dataclass
class Transfer:
    """Bytes and copies over the bus."""

    bytes: int = 0
    copies: int = 0

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics, flat and ready to be logged."""
        return {"handover/bytes": float(self.bytes), "handover/copies": float(self.copies)}

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add another transfer's metrics."""
        self.bytes += int(metrics["handover/bytes"])
        self.copies += int(metrics["handover/copies"])


Moves = dict[int, Any]
"""Maps the id of a tensor to its replacement."""


def move(state: BatchState, device: Any, non_blocking: bool) -> BatchState:
    """See :meth:`fastcollate.Batch.to`."""
    tensors = check_tensors(state)
    target = resolve_device(device)
    tensors = [tensor for tensor in tensors if tensor.device != target]
    if not tensors:
        return state
    if is_watched():
        watched.check()
    transfer = Transfer()
    moves = copy_tensors(tensors, slab_of(state, tensors), target, non_blocking, transfer)
    return rebuild(state, moves, transfer)


def pin(state: BatchState) -> BatchState:
    """See :meth:`fastcollate.Batch.pin_memory`."""
    tensors = [tensor for tensor in check_tensors(state) if is_on_host(tensor)]
    tensors = [tensor for tensor in tensors if tensor.numel() and not tensor.is_pinned()]
    plain = [tensor for tensor in tensors if is_plain(tensor)]
    if not tensors:
        return state
    offsets, size = offsets_of_packed(plain)
    slab = pinned(max(size, 1))
    if slab is None:
        return state
    moves = pack_into(slab, plain, offsets)
    moves |= {id(tensor): tensor.pin_memory() for tensor in tensors if id(tensor) not in moves}
    return rebuild(state, moves, None)


def copy_tensors(
    tensors: Sequence[Any], slab: Any | None, target: Any, non_blocking: bool, transfer: Transfer
) -> Moves:
    """Copy tensors to a device: those in the slab by one copy, and small others by another.

    The copy of a slab in pageable memory blocks, regardless of `non_blocking`: on machines whose
    device reads pageable memory itself, it could be in flight when the memory is recycled.
    """
    moves: Moves = {}
    rest: list[Any] = []
    in_slab: list[tuple[Any, int]] = []
    for tensor in tensors:
        if slab is not None and (offset := offset_in(slab, tensor)) is not None:
            in_slab.append((tensor, offset))
        else:
            rest.append(tensor)
    if slab is not None and in_slab:
        on_device = _to(slab, target, non_blocking, transfer)
        moves |= {id(tensor): over(on_device, offset, tensor) for tensor, offset in in_slab}
    small = [tensor for tensor in rest if is_plain(tensor) and is_on_host(tensor)]
    small = [tensor for tensor in small if 0 < tensor.nbytes <= SMALL]
    if len(small) > 1:
        moves |= _copy_together(small, target, non_blocking, transfer)
    for tensor in rest:
        if id(tensor) not in moves:
            moves[id(tensor)] = _to(tensor, target, non_blocking, transfer)
    return moves


def _copy_together(
    tensors: Sequence[Any], target: Any, non_blocking: bool, transfer: Transfer
) -> Moves:
    import torch

    offsets, size = offsets_of_packed(tensors)
    slab = pinned(size) if non_blocking and has_bus(target) else None
    if slab is None:
        slab = torch.empty(size, dtype=torch.uint8, device="cpu")
    packed = pack_into(slab, tensors, offsets)
    on_device = _to(slab, target, non_blocking, transfer)
    return over_copy(on_device, packed, offsets)


def _to(tensor: Any, target: Any, non_blocking: bool, transfer: Transfer) -> Any:
    transfer.bytes += size_of(tensor)
    transfer.copies += 1
    # On the host, the values could be read before they have arrived.
    may_return = non_blocking and target.type != "cpu"
    may_return = may_return and (not is_on_host(tensor) or tensor.is_pinned())
    # A copy even if it is on the device already, which only tests do.
    on_device = tensor.to(target, non_blocking=may_return, copy=True)
    if may_return and is_watched() and is_on_host(tensor) and tensor.is_contiguous():
        _watch(tensor, target)
    return on_device


def _watch(tensor: Any, target: Any) -> None:
    import torch

    module = torch.get_device_module(target)
    done = module.Event()
    done.record(module.current_stream(target))  # the current device may be another one
    watched.add(as_bytes(tensor), done, f"a batch of {tensor.nbytes} bytes")


def pack_into(slab: Any, tensors: Sequence[Any], offsets: Sequence[int]) -> Moves:
    """Copy tensors into a slab on the host, each to its offset."""
    moves: Moves = {}
    for tensor, offset in zip(tensors, offsets, strict=True):
        place = moves[id(tensor)] = over(slab, offset, pack_like(tensor))
        place.copy_(tensor)
    return moves


def over_copy(slab: Any, packed: Moves, offsets: Sequence[int]) -> Moves:
    """Return the tensors packed into a slab as tensors over a copy of that slab."""
    return {
        key: over(slab, offset, tensor)
        for (key, tensor), offset in zip(packed.items(), offsets, strict=True)
    }


def is_on_host(tensor: Any) -> bool:
    """Return True if a tensor is in host memory."""
    return bool(tensor.device.type == "cpu")


def has_bus(device: Any) -> bool:
    """Return True if pinned memory speeds up copies to a device."""
    return device.type not in ("cpu", "meta", "mps")


def resolve_device(device: Any) -> Any:
    """Return a device with its index, which arguments may lack, as its tensors have it."""
    import torch

    # torch reads the length of any list, and crashes if it is not true.
    if not isinstance(device, (str, int, torch.device)):
        advice = "pass its name, such as 'cpu'"
        if isinstance(device, torch.dtype):
            advice = "dtypes are an option of build_batch, as dtypes={'rewards': 'bfloat16'}"
        raise TypeError(f"device is {show(device)}; {advice}")
    try:
        # Not every device's module reports its index. None as an argument would mean any device.
        return torch.empty(0, device=torch.device(device)).device
    except (AssertionError, RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0][:200]
        advice = "pass one that it can, such as 'cpu'"
        if str(device).startswith("gpu"):
            advice = "torch calls GPUs of NVIDIA and AMD 'cuda'"
        raise RuntimeError(
            f"device is {show(str(device))}, which torch cannot use here ({reason}); {advice}"
        ) from error


# Tensors of batches


def slab_of(state: BatchState, tensors: Sequence[Any]) -> Any | None:
    """Return the bytes of a batch's slab as a tensor that is not a view; None if it has none.

    Outputs may have left the slab: ``share_memory_()`` moves a tensor.
    """
    if state.owner is not None:
        import torch

        return torch.from_numpy(state.owner.bytes())
    return common_slab([tensor for tensor in tensors if is_plain(tensor)])


def check_tensors(state: BatchState) -> list[Any]:
    """Return all tensors of a batch, each once; TypeError for NumPy arrays."""
    found: dict[int, Any] = {}

    def see(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            raise TypeError(
                "the batch holds NumPy arrays, which cannot be on a device; "
                "build it with array_type='torch'"
            )
        if is_tensor(value):
            found[id(value)] = value
        return value

    _map_outputs(state, see)
    return list(found.values())


def rebuild(state: BatchState, moves: Moves, transfer: Transfer | None) -> BatchState:
    """Return a batch with its tensors replaced and all else unchanged."""
    data = _map_outputs(state, lambda tensor: moves.get(id(tensor), tensor))
    metrics = state.transfer if transfer is None else transfer.metrics
    return state._replace(data=data, owner=None, transfer=metrics)


def is_batch(value: Any) -> bool:
    """Return True for a :class:`fastcollate.Batch`, whose class this module does not know."""
    return hasattr(value, "_state") and hasattr(value, "_with_data")


def map_each(value: Any, function: Callable[[Any], Any]) -> Any:
    """Replace all arrays and tensors of an item by a function's results.

    They are searched for in batches, mappings, lists and tuples. Other objects with a ``to`` method
    are passed to the function too, such as a TensorDict, which has a device beside its values'.
    """
    if is_tensor(value) or isinstance(value, np.ndarray):
        return function(value)
    if isinstance(value, Parts):
        return value.map(function)
    if is_batch(value):
        return value._with_data(_map_outputs(value._state, function))
    # BatchEncoding.to would change the object in place.
    knows_how = hasattr(value, "to") and not isinstance(value, (dict, UserDict))
    if isinstance(value, Mapping) and not knows_how:
        return _rebuilt_mapping(value, {key: map_each(value[key], function) for key in value})
    if isinstance(value, (list, tuple)) and not hasattr(value, "to"):
        items = [map_each(item, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return function(value) if hasattr(value, "to") else value


def _map_outputs(state: BatchState, function: Callable[[Any], Any]) -> dict[str, Any]:
    """Replace the arrays and tensors of a batch's outputs by a function's results.

    The caller's objects (:class:`fastcollate.PerRow`) stay unchanged.
    """
    kept: set[str] = set()
    if state.options is not None:
        kept = {spec.key for spec in state.options.fields if spec.align == "object"}
    return {
        key: value if key in kept else map_each(value, function)
        for key, value in state.data.items()
    }


def _rebuilt_mapping(mapping: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if type(mapping) is dict:
        return items
    if isinstance(mapping, MutableMapping):
        again = copy(mapping)  # may have state beside its items
        for key, item in items.items():
            again[key] = item  # `update` of a Counter would add
        return again
    return type(mapping)(items)  # type: ignore[call-arg]
