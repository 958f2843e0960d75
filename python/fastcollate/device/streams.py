"""A device's side stream, on which copies run while another stream trains."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from fastcollate.device.to_device import has_bus
from fastcollate.memory.in_flight import Event
from fastcollate.memory.pinning import pinned


class Lane:
    """Copies memory to a device on a side stream, with CUDA-like streams and events."""

    def __init__(self, device: Any) -> None:
        import torch

        self._device = device
        self._module: Any = torch.get_device_module(device)
        self._stream = _side_stream(device)

    def begin(self) -> None:
        """Make the device the current one of the calling thread, which will copy.

        If another one were current, entering and leaving a stream would initialize that one too.
        """
        self._module.set_device(self._device)

    def pinned(self, size: int) -> Any | None:
        """Allocate pinned memory from torch, uint8 (size,); None if there is none."""
        return pinned(size)

    def copy(self, source: Any) -> tuple[Any, Event]:
        """Begin to copy bytes from host to device; the event is done when the copy is.

        For pageable memory, wait until it is read.
        """
        import torch

        with self._module.stream(self._stream):
            slab = torch.empty(len(source), dtype=torch.uint8, device=self._device)
            slab.copy_(source, non_blocking=source.is_pinned())
            done = self._module.Event()
            done.record(self._stream)
        return slab, done

    def hand_over(self, done: Event, slabs: Sequence[Any]) -> None:
        """Order later work of the calling thread on the device after an event.

        The slabs' memory is reused only after that work.
        """
        current = self._module.current_stream(self._device)
        current.wait_event(done)
        for slab in slabs:
            slab.record_stream(current)  # it came from the side stream's memory


def lane_to(device: Any) -> Lane | None:
    """Return a lane to a device; None if it has no streams."""
    import torch

    if not has_bus(device):
        return None
    module = torch.get_device_module(device)
    needed = ("Stream", "Event", "stream", "set_device")
    return Lane(device) if all(hasattr(module, name) for name in needed) else None


@cache
def _side_stream(device: Any) -> Any:
    """Return the side stream of a device: one only, as streams do not share freed memory."""
    import torch

    return torch.get_device_module(device).Stream(device=device)
