"""Interleaved timing of candidates."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    seconds: float,
    slow: Collection[str] = (),
    prepare: Mapping[str, Callable[[], object]] = MappingProxyType({}),
) -> dict[str, float]:
    """Measure calls against each other.

    Every round runs each call once, in a random order: a temporary slowdown affects all calls, and
    none always follows the same other one. A result is freed before the next call, outside the
    time.

    Parameters
    ----------
    calls
        The calls to measure, by name.
    rounds, seconds
        Least number of rounds, and least time of all rounds.
    slow
        Calls that run only in three further rounds, at the end: they take long, and leave memory
        that slows the others for a while.
    prepare
        Preparation of some of the calls, outside the time.

    Returns
    -------
    dict[str, float]
        The median seconds of each call.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    shuffle = random.Random(0).shuffle

    def run_round(names: list[str]) -> None:
        shuffle(names)
        for name in names:
            call = calls[name]
            if name in prepare:
                prepare[name]()
            start = time.perf_counter()
            result = call()
            times[name].append(time.perf_counter() - start)
            del result

    fast = [name for name in calls if name not in slow]
    for name in fast:
        if name in prepare:
            prepare[name]()
        calls[name]()  # to warm up
    gc.collect()
    gc.disable()
    try:
        end = time.perf_counter() + seconds
        while rounds > 0 or time.perf_counter() < end:
            run_round(fast)
            rounds -= 1
        if slow:
            for _ in range(3):
                run_round(list(calls))
    finally:
        gc.enable()
    return {name: statistics.median(samples) for name, samples in times.items()}
