"""Exceptions at any step of code, as signal handlers raise them."""

import sys
from contextlib import contextmanager


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
