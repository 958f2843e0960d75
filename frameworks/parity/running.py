"""Comparisons on drawn cases, for a given time."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import hypothesis
from hypothesis import strategies as st

from frameworks.parity.differences import first_difference
from frameworks.parity.framework import Case, Comparison, Peer

CASES_PER_SEED = 20

SHOWN = 2_000
"""Characters of a case's arguments."""


class Outcome(NamedTuple):
    """The result of a comparison."""

    cases: int
    """The number of cases without a difference."""
    difference: str | None = None
    """The first difference, with the seed and the arguments."""


class DifferenceError(AssertionError):
    """A function of ours does not do what the framework's does."""


def compare(comparison: Comparison, peer: Peer, seconds: float, seed: int) -> Outcome:
    """Compare on the cases of `seed`, `seed` + 1, ... until `seconds` are over after the first one.

    The first case imports the framework.

    Returns
    -------
    Outcome
        The number of cases, and the difference in the smallest case found.
    """
    deadline = 0.0
    cases = 0

    def check(data: st.DataObject) -> None:
        nonlocal cases, deadline
        case = comparison(data.draw, peer)
        if (found := _difference(case)) is not None:
            raise DifferenceError(f"{found}\n  {_shown(case)}")
        cases += 1
        deadline = deadline or time.monotonic() + seconds

    while not deadline or time.monotonic() < deadline:
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
            hypothesis.seed(seed)(settings(drawn))()
        except DifferenceError as difference:
            return Outcome(cases, f"--seed {seed}: {difference}")
        except Exception as error:  # upstream may have moved or renamed anything
            return Outcome(cases, f"--seed {seed}: no comparison: {_said(error)}")
        seed += 1
    return Outcome(cases)


def _difference(case: Case) -> str | None:
    theirs, their_error = _called(case.theirs)
    ours, our_error = _called(case.ours)
    if their_error is None and our_error is None:
        return first_difference(theirs, ours)
    if their_error is None:
        return f"ours raises {_said(our_error)}"
    if our_error is None:
        return f"theirs raises {_said(their_error)}, ours does not"
    if not isinstance(our_error, type(their_error)):
        return f"theirs raises {_said(their_error)}, ours {_said(our_error)}"
    return None


def _called(function: Any) -> tuple[Any, Exception | None]:
    try:
        return function(), None
    except Exception as error:
        return None, error


def _said(error: Exception | None) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _shown(case: Case) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in case.given.items())
    return arguments if len(arguments) <= SHOWN else f"{arguments[:SHOWN]}..."
