"""Functions that run an input of the fuzzer."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable

import fastcollate as fc
from batches import build, build_merged
from builders import add_rows
from choices import Choices
from merging import merge_turns
from planning import micro_batches, pack, partition, plan_step
from reading import (
    read_sglang,
    read_sglang_stream,
    read_vllm_chat,
    read_vllm_completions,
    read_vllm_generate,
    read_vllm_stream,
)
from restoring import restore_plan, restore_ragged, restore_tables

TARGETS: list[Callable[[Choices], None]] = [
    *[build] * 4,
    *[build_merged] * 4,
    *[merge_turns] * 2,
    *[add_rows] * 3,
    plan_step,
    pack,
    partition,
    micro_batches,
    restore_plan,
    restore_ragged,
    restore_tables,
]
"""The first byte chooses. A target that is added or moved changes the meaning of all inputs."""

READERS: list[Callable[[Choices], None]] = [
    read_vllm_generate,
    read_vllm_chat,
    read_vllm_completions,
    read_sglang,
    read_vllm_stream,
    read_sglang_stream,
]
"""Targets of first bytes that no input of the corpus had when they were added."""

READS = range(204, 222)
"""These bytes."""

ROUNDS = 10
"""Repetitions of an input between two counts of memory."""


gc.freeze()  # what is imported need not be looked at each time
fc.memory.set_default_pool(None)


def once(data: bytes) -> None:
    """Run an input."""
    _target(data)(Choices(data[1:]))


def name_of(data: bytes) -> str:
    """Name the target that an input chooses."""
    return _target(data).__name__


def _target(data: bytes) -> Callable[[Choices], None]:
    first = data[0] if data else 0
    return READERS[first % len(READERS)] if first in READS else TARGETS[first % len(TARGETS)]


def check_memory(data: bytes) -> None:
    """Repeat an input: the memory in use may not grow each time."""
    for _ in range(60):  # caches grow too, but ever slower
        before = used()
        for _ in range(ROUNDS):
            once(data)
        objects, size = (now - then for now, then in zip(used(), before, strict=True))
        if objects < ROUNDS and size < 8 * ROUNDS:
            return
    raise AssertionError(f"{ROUNDS} rounds left {objects} objects and {size} bytes behind")


def used() -> tuple[int, int]:
    """Count Python's blocks of memory, and the bytes that C and Rust have allocated."""
    gc.collect()
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        return sys.getallocatedblocks(), 0
    info = ctypes.CDLL(None).mallinfo2
    info.restype = _MallInfo
    now = info()
    return sys.getallocatedblocks(), now.uordblks + now.hblkhd


class _MallInfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]
