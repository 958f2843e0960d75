"""A live Python console: the environment in which the rollouts happen."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import signal
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple, NoReturn

SECONDS_PER_STATEMENT = 5
LONGEST_OBSERVATION = 1000  # characters

FORBIDDEN_EVENTS = ("os.", "shutil.", "socket.", "subprocess.", "ctypes.", "urllib.", "webbrowser.")
"""Audit events (https://docs.python.org/3/library/audit_events.html) no statement may raise."""

_OF_THE_MACHINE = re.compile(rf"(?<=0x)[0-9a-f]{{6,}}|{re.escape(sysconfig.get_path('stdlib'))}")
"""Addresses and paths, which would differ in the next recording."""


class Observation(NamedTuple):
    """The output of the console after one statement."""

    text: str
    exception: str | None
    """The last line of the traceback, such as ``NameError: name 'd' is not defined``."""


class Console:
    """A namespace in which statements run as if typed after ``>>>``.

    Statements may compute, but not wait for input, write files, start processes or open sockets.
    Audit hooks cannot be removed, so a console belongs in a process of its own.

    Parameters
    ----------
    namespace : dict
        The names in scope; statements change it.
    """

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._guarded = False
        sys.addaudithook(self._audit)
        signal.signal(signal.SIGALRM, _time_is_up)
        warnings.simplefilter("ignore")

    def run(self, statement: str) -> Observation:
        """Run one statement and return what it printed, its exception included."""
        printed = io.StringIO()
        exception = None
        with self._guard(printed):
            try:
                exec(compile(statement + "\n", "<console>", "single"), self._namespace)
            except BaseException as error:  # `exit()` and a time-out are observations, too
                exception = traceback.format_exception_only(error)[-1]
        text = printed.getvalue()
        if exception is not None:
            # Without stack frames, as in doctests.
            text += f"Traceback (most recent call last):\n    ...\n{exception}"
        text = _OF_THE_MACHINE.sub("...", text)
        if len(text) > LONGEST_OBSERVATION:
            text = text[:LONGEST_OBSERVATION] + "..."
        return Observation(text, exception)

    @contextlib.contextmanager
    def _guard(self, printed: io.StringIO) -> Iterator[None]:
        stdin, sys.stdin = sys.stdin, io.StringIO()
        self._guarded = True
        signal.alarm(SECONDS_PER_STATEMENT)
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                yield
        finally:
            signal.alarm(0)
            self._guarded = False
            sys.stdin = stdin

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._guarded:
            return
        writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event.startswith(FORBIDDEN_EVENTS):
            raise PermissionError(f"{event} is not allowed here")


def matches_documentation(example: doctest.Example, observation: Observation) -> bool:
    """Return True if an observation is the documented output of a doctest."""
    flags = sum(flag for flag, is_set in example.options.items() if is_set)
    check = doctest.OutputChecker().check_output
    if example.exc_msg is None:
        return observation.exception is None and check(example.want, observation.text, flags)
    return observation.exception is not None and check(
        example.exc_msg, observation.exception, flags
    )


def _time_is_up(signum: int, frame: FrameType | None) -> NoReturn:
    raise TimeoutError(f"the statement took more than {SECONDS_PER_STATEMENT} seconds")
