"""Comparisons on drawn cases, for a given time."""

from __future__ import annotations

import gc
import logging
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import hypothesis
from hypothesis import strategies as st

from fastcollate.testing.reference.comparing import first_difference
from fastcollate.testing.verifying.subjects import Case, Comparison, Peer

CASES_PER_SEED = 20

LARGE = 20
"""The scale of the cases of every second seed, which are timed."""

SHOWN = 2_000
"""Characters of a case's arguments."""


class Outcome(NamedTuple):
    """The result of a comparison."""

    cases: int
    """The number of cases without a difference."""
    difference: str | None = None
    """The first difference, with the seed and the arguments."""
    times_as_fast: float | None = None
    """The seconds of their calls over ours on large cases, if all results are the same."""
    missing: str | None = None
    """The package that the comparison needs, if it is not installed."""


class DifferenceError(AssertionError):
    """A function of ours does not do what theirs does."""


def compare(comparison: Comparison, peer: Peer, seconds: float, seed: int) -> Outcome:
    """Compare on the cases of two seeds or more, `seed`, `seed` + 1, ..., until `seconds` are over.

    They count from the first case, which imports the framework.

    Returns
    -------
    Outcome
        The number of cases, and the difference in the smallest case found.
    """
    deadline = 0.0
    cases = 0
    spent = [0.0, 0.0]
    first = seed

    def check(data: st.DataObject) -> None:
        nonlocal cases, deadline
        is_large = (seed - first) % 2 == 1
        case = comparison(data.draw, peer._replace(scale=LARGE if is_large else 1))
        if (found := _difference(case, peer, spent if is_large else [0.0, 0.0])) is not None:
            raise DifferenceError(f"{found}\n  {_show(case)}")
        cases += 1
        deadline = deadline or time.monotonic() + seconds

    while seed < first + 2 or time.monotonic() < deadline:
        drawn = hypothesis.given(st.data())(check)
        settings = hypothesis.settings(
            max_examples=CASES_PER_SEED,
            database=None,
            deadline=None,
            derandomize=False,
            phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
            report_multiple_bugs=False,
            suppress_health_check=list(hypothesis.HealthCheck),
            verbosity=hypothesis.Verbosity.quiet,
        )
        try:
            with _quiet():
                hypothesis.seed(seed)(settings(drawn))()
        except DifferenceError as difference:
            return Outcome(cases, f"--seed {seed}: {difference}")
        except MemoryError:
            raise
        except Exception as error:  # upstream may have moved or renamed anything
            if isinstance(error, ModuleNotFoundError) and error.name in ("torch", "pyarrow"):
                return Outcome(0, missing=error.name)
            return Outcome(cases, f"--seed {seed}: no comparison: {_describe(error)}")
        seed += 1
    theirs, ours = spent
    return Outcome(cases, times_as_fast=theirs / ours if ours else None)


def _difference(case: Case, peer: Peer, spent: list[float]) -> str | None:
    theirs, their_error = _call(case.theirs, spent, 0)
    with peer.as_installed():
        ours, our_error = _call(case.ours, spent, 1)
    if their_error is None and our_error is None:
        return first_difference(theirs, ours)
    if their_error is None:
        return f"ours raises {_describe(our_error)}"
    if our_error is None:
        return f"theirs raises {_describe(their_error)}, ours does not"
    if not isinstance(our_error, type(their_error)):
        return f"theirs raises {_describe(their_error)}, ours {_describe(our_error)}"
    return None


def _call(function: Any, spent: list[float], side: int) -> tuple[Any, Exception | None]:
    start = time.perf_counter()
    try:
        return function(), None
    except MemoryError:
        raise
    except Exception as error:
        return None, error
    finally:
        spent[side] += time.perf_counter() - start


@contextmanager
def _quiet() -> Iterator[None]:
    """Let warnings pass, and collect no garbage while calls are timed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        gc.disable()
        try:
            yield
        finally:
            gc.enable()
            logging.disable(logging.NOTSET)


def _describe(error: Exception | None) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _show(case: Case) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in case.given.items())
    return arguments if len(arguments) <= SHOWN else f"{arguments[:SHOWN]}..."
