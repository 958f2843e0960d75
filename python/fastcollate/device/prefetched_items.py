"""Items copied to a device by one thread and used by another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastcollate.common.arrays import is_tensor
from fastcollate.device.staging import Staging
from fastcollate.device.streams import Lane
from fastcollate.device.to_device import (
    Moves,
    Transfer,
    check_tensors,
    is_batch,
    is_on_host,
    map_each,
    over_copy,
    pack_into,
)
from fastcollate.memory.in_flight import Event, InFlight, is_watched
from fastcollate.memory.slabs import (
    as_bytes,
    common_slab,
    is_plain,
    offsets_of_packed,
    over,
    size_of,
)

SLABS = 2
"""Number of staging slabs: one is written while another is copied."""

HandOver = Callable[[], Any]
"""Returns an item to the calling thread."""


class Same:
    """Leaves items on their device."""

    doing = "it is handed over"
    transfer = Transfer()

    def begin(self) -> None:
        """Do nothing."""

    def __call__(self, item: Any) -> HandOver:
        """Return the item unchanged."""
        return lambda: item

    def check(self) -> None:
        """Do nothing."""


class Blocking(Same):
    """Moves items to a device that has no streams."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self.doing = f"it is copied to {device}"
        self.transfer = Transfer()

    def __call__(self, item: Any) -> HandOver:
        """Move all tensors at once."""
        if is_batch(item):
            batch = item.to(self._device)
            if batch is not item and batch._state.transfer is not None:
                self.transfer.add(batch._state.transfer)
            return lambda: batch
        moved = map_each(item, lambda value: _to(value, self._device, self.transfer))
        return lambda: moved


class OnLane(Same):
    """Moves items to a device by a lane; tensors it cannot carry are moved at the hand-over.

    Pinned memory is copied in place; torch's allocator tracks the copy, so that the memory may be
    freed meanwhile. Other tensors are packed into a slab first, which takes one copy.
    """

    def __init__(self, device: Any, lane: Lane, is_stopped: Callable[[], bool]) -> None:
        self._device, self._lane = device, lane
        self._staging = Staging(lane, SLABS, is_stopped)
        self._in_flight, self._count = InFlight(), 0
        self.doing = f"it is copied to {device}"
        self.transfer = Transfer()

    def begin(self) -> None:
        """Prepare the thread that copies the items."""
        self._lane.begin()

    def __call__(self, item: Any) -> HandOver:
        """Begin to copy all tensors."""
        self.check()
        if is_batch(item):
            check_tensors(item._state)  # or refuse it
        found: dict[int, Any] = {}
        map_each(item, lambda value: found.setdefault(id(value), value))
        tensors = [value for value in found.values() if is_tensor(value) and is_plain(value)]
        tensors = [tensor for tensor in tensors if is_on_host(tensor) and tensor.numel() > 0]
        before = self.transfer.bytes, self.transfer.copies
        moves: Moves = {}
        slabs: list[Any] = []
        done: Event | None = None
        pageable: list[Any] = []
        for source, group in _pin_groups(tensors, pageable):
            slab, done = self._copy(source)
            slabs.append(slab)
            if is_watched():
                self._in_flight.add(source, done, f"item {self._count}")
            moves |= {id(tensor): over(slab, offset, tensor) for tensor, offset in group}
        if pageable:
            slab, done, packed = self._stage(pageable)
            slabs.append(slab)
            moves |= packed
        # The item's host memory is not needed any more.
        moved = map_each(item, lambda value: moves.get(id(value), value))
        if is_batch(moved):
            own = Transfer(self.transfer.bytes - before[0], self.transfer.copies - before[1])
            moved = moved._replace(transfer=own.metrics)
        self._count += 1

        def hand_over() -> Any:
            if done is not None:
                self._lane.hand_over(done, slabs)  # of the last copy: they are in order
            return map_each(moved, lambda value: _to(value, self._device, self.transfer))

        return hand_over

    def check(self) -> None:
        """In debug mode, raise if memory was changed during its copy."""
        self._in_flight.check()

    def _stage(self, tensors: Sequence[Any]) -> tuple[Any, Event, Moves]:
        offsets, size = offsets_of_packed(tensors)
        slab = self._staging.take(size)
        packed = pack_into(slab.memory, tensors, offsets)
        on_device, slab.done = self._copy(slab.memory[:size])
        return on_device, slab.done, over_copy(on_device, packed, offsets)

    def _copy(self, source: Any) -> tuple[Any, Event]:
        self.transfer.bytes += len(source)
        self.transfer.copies += 1
        return self._lane.copy(source)


def _pin_groups(
    tensors: Sequence[Any], pageable: list[Any]
) -> list[tuple[Any, list[tuple[Any, int]]]]:
    """Return the pinned slabs of tensors with their offsets; add the others to `pageable`."""
    by_storage: dict[int, list[Any]] = {}
    for tensor in tensors:
        if tensor.is_pinned():
            by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
        else:
            pageable.append(tensor)
    groups = []
    for group in by_storage.values():
        slab = common_slab(group)
        if slab is None and len(group) == 1 and group[0].is_contiguous():
            slab = as_bytes(group[0])
        if slab is None:
            pageable += group
        else:
            start = slab.data_ptr()
            groups.append((slab, [(tensor, tensor.data_ptr() - start) for tensor in group]))
    return groups


def _to(value: Any, device: Any, transfer: Transfer) -> Any:
    """Move a value that is not on the device yet, and wait for the copy."""
    if isinstance(value, np.ndarray):
        return value
    if not is_tensor(value):
        return value.to(device)
    if value.device != device and (size := size_of(value)):
        transfer.bytes += size
        transfer.copies += 1
    return value.to(device)
