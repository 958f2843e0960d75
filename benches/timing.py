"""Timing that is fair to every candidate."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Collection, Mapping


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    seconds: float,
    slow: Collection[str] = (),
) -> dict[str, float]:
    """Measure calls against each other.

    Every round runs each call once, in a random order: whatever slows the machine for a while
    slows them all, and none always follows the same other one. A result is freed before the next
    call, outside the time.

    Parameters
    ----------
    calls
        What to measure, by name. Each is run once more beforehand, to warm up.
    rounds, seconds
        Rounds are run until there were so many, and so many seconds have passed.
    slow
        The calls that take part in the first three rounds only.

    Returns
    -------
    dict[str, float]
        The median seconds of each call.
    """
    shuffle = random.Random(0).shuffle
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    gc.collect()
    gc.disable()
    try:
        order = list(calls)
        end = time.perf_counter() + seconds
        while rounds > 0 or time.perf_counter() < end:
            rounds -= 1
            shuffle(order)
            for name in order:
                if name in slow and len(times[name]) == 3:
                    continue
                call = calls[name]
                start = time.perf_counter()
                result = call()
                times[name].append(time.perf_counter() - start)
                del result
    finally:
        gc.enable()
    return {name: statistics.median(samples) for name, samples in times.items()}
