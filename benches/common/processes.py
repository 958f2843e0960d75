"""Measuring in separate processes: on fewer cores, or the peak memory of a call."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def in_process(call: Callable[..., T], *args: object, cores: int | None = None) -> T:
    """Call a module's function in a new process, on `cores` cores if the system allows it."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        return executor.submit(_call, call, args, cores).result()


def _call(call: Callable[..., T], args: tuple[object, ...], cores: int | None) -> T:
    if cores is not None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    return call(*args)


def peak_bytes(call: Callable[[], T]) -> tuple[int, T]:
    """Return the peak increase of this process's memory in a call (Linux), and its result."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    result = call()
    return _status("VmHWM") - before, result


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith(name))
    return int(line.split()[1]) * 1024
