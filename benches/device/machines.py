"""The measured GPU, and its stand-in."""

from __future__ import annotations

import platform
import shutil
import subprocess
from datetime import date
from typing import Any, Protocol

import torch

from common.clocks import Clock, GpuClock, HostClock


class Machine(Clock, Protocol):
    """A device and its host."""

    def pinned(self, size: int) -> Any:
        """Allocate pinned memory, uint8 (size,), and touch it."""

    def unpin(self) -> None:
        """Return unused pinned memory to the system."""

    def about(self) -> dict[str, str]:
        """Describe it."""


class Gpu(GpuClock):
    """The current GPU, by torch."""

    def pinned(self, size: int) -> Any:
        """Allocate it by torch."""
        return torch.ones(size, dtype=torch.uint8).pin_memory()

    def unpin(self) -> None:
        """Empty the cache of torch's allocator."""
        accelerator = getattr(torch, "accelerator", None)
        if hasattr(accelerator, "empty_host_cache"):
            accelerator.empty_host_cache()
        else:
            torch._C._host_emptyCache()  # its only name before torch 2.10

    def about(self) -> dict[str, str]:
        """Name the device and its software."""
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        return {
            "GPU": f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB",
            "driver": _driver(),
            "CUDA": str(torch.version.cuda),
            **_about_host(),
        }


class StandIn(HostClock):
    """Tensors without values, and ordinary memory treated as pinned, also by fastcollate.

    With it, benchmarks run without a GPU. Their figures mean nothing.
    """

    def __init__(self) -> None:
        super().__init__("meta")
        from fastcollate.memory import pinning

        pinning.obstacle = lambda: None
        pinning.allocate = lambda size: torch.empty(size, dtype=torch.uint8)

    def pinned(self, size: int) -> Any:
        """Allocate ordinary memory."""
        return torch.ones(size, dtype=torch.uint8)

    def unpin(self) -> None:
        """Do nothing."""

    def about(self) -> dict[str, str]:
        """Describe it as no GPU."""
        return {"GPU": "none: a stand-in, whose figures mean nothing", **_about_host()}


def _about_host() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "date": date.today().isoformat(),
    }


def _driver() -> str:
    """Return the driver's version by its own tool: torch has only the CUDA version."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return "unknown"
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.partition("\n")[0].strip() or "unknown"
