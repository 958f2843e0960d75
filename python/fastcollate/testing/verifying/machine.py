"""What a bug report needs to know of this machine."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

import fastcollate as fc
from fastcollate import _fastcollate
from fastcollate.memory import pinning

LIBRARIES = ("numpy", "torch", "pyarrow", "ray", "tokenizers", "transformers", "datasets")


def describe_machine() -> dict[str, str]:
    """Return versions, devices, cores and memory."""
    free = "" if getattr(sys, "_is_gil_enabled", lambda: True)() else ", free-threaded"
    found = {
        "fastcollate": f"{fc.__version__} ({Path(_fastcollate.__file__ or '').name})",
        "Python": f"{platform.python_version()}{free} on {platform.system()} {platform.machine()}",
        "libraries": ", ".join(filter(None, map(_version, LIBRARIES))),
        "devices": _devices(),
        "cores": _cores(),
        "memory": _memory(),
    }
    if (threads := os.environ.get("OMP_NUM_THREADS")) is not None:
        found["OMP_NUM_THREADS"] = threads
    return found


def _version(name: str) -> str:
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return ""


def _devices() -> str:
    try:
        import torch
    except ModuleNotFoundError:
        return "torch is not installed: batches are NumPy arrays"
    except (ImportError, OSError) as error:
        return f"torch cannot be imported: {error}"
    if not torch.cuda.is_available():
        return "no CUDA device"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    pinned = pinning.obstacle() or "memory can be pinned"
    return f"CUDA {torch.version.cuda}: {kinds}; {pinned}"


def _cores() -> str:
    count = os.cpu_count() or 1
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else count
    text = f"{own} of {count} for this process"
    try:
        most, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return text
    return text if most == "max" else f"{text}, with a quota of {int(most) / int(period):g}"


def _memory() -> str:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return "of unknown size"
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{size / 2**30:,.0f} GiB"
