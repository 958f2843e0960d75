"""Signals, and exceptions at any step of code, as their handlers raise them."""

import signal
import sys
import time
from contextlib import contextmanager

import numpy as np
import pytest

NEEDS_TIMERS = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timer signals")


@contextmanager
def handling_alarms(handler):
    """Let a function handle the signals of the timer, which is off afterwards."""
    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def time_after_signal(call, after, exception=KeyboardInterrupt):
    """Raise an exception in a call by a signal; return the seconds until the call ends by it."""

    def interrupt(number, frame):
        raise exception

    with handling_alarms(interrupt):
        start = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, after)
        with pytest.raises(exception):
            call()
        return time.perf_counter() - start - after


def longest_wait(call):
    """Return the longest processor time of a call in which no signal is handled."""
    times = []

    def note(number, frame):
        times.append(time.process_time())

    before = signal.signal(signal.SIGPROF, note)
    try:
        signal.setitimer(signal.ITIMER_PROF, 0.01, 0.01)
        note(None, None)
        call()
        note(None, None)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    return max(np.diff(times))


@contextmanager
def raising_at(step, exception, is_traced):
    """Raise an exception before that opcode of all that run in frames of traced code objects.

    Opcodes without a line, by which the compiler ends generators, do not count: no signal is looked
    at there, and what is raised while a generator is closed goes nowhere.
    """
    left = [step]

    def trace(frame, event, _):
        if not is_traced(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lineno is not None:
            left[0] -= 1
            if left[0] < 0:
                sys.settrace(None)
                raise exception
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)
