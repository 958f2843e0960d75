"""The comparison of all functions, as a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from fastcollate.common.arguments import check_int, check_seconds, suggests_names
from fastcollate.testing.verifying import FRAMEWORKS, subject_of
from fastcollate.testing.verifying.machine import describe_machine
from fastcollate.testing.verifying.running import Outcome, compare
from fastcollate.testing.verifying.subjects import Peer, Subject, find_installed, note_on

Find = Callable[[str], Peer | None]
"""Returns the version of a framework to compare with, by its name, or None."""


class Line(NamedTuple):
    """The comparison of one function."""

    subject: str
    """``"plain references"``, or a framework and its version."""
    function: str
    outcome: Outcome

    def __str__(self) -> str:
        cases, difference, speed, missing = self.outcome
        if missing is not None:
            return f"  {self.function:<36} needs {missing}"
        found = "" if speed is None else f"  {speed:>7,.1f} times as fast"
        verdict = "same" if difference is None else "DIFFERS"
        return f"  {self.function:<36} {cases:>5,} cases  {verdict}{found}"


@dataclass(frozen=True, repr=False)
class Verification:
    """The result of :func:`fastcollate.testing.verify`; its repr is a table.

    Parameters
    ----------
    machine
        Versions, devices, cores and memory.
    lines
        One for each compared function.
    """

    machine: dict[str, str]
    lines: list[Line]

    @property
    def differences(self) -> list[Line]:
        """The functions whose results differ."""
        return [line for line in self.lines if line.outcome.difference is not None]

    def __repr__(self) -> str:
        return "\n".join(text_of(self.machine, self.lines))


def text_of(machine: dict[str, str], lines: Iterable[Line]) -> Iterator[str]:
    """Yield the lines of the table, as the comparisons end."""
    width = max(map(len, machine))
    yield from (f"{name:<{width}}  {value}" for name, value in machine.items())
    subject, differences = None, []
    for line in lines:
        if line.subject != subject:
            subject = line.subject
            yield f"\n{subject}"
        yield str(line)
        if line.outcome.difference is not None:
            differences.append(f"\n{line.subject}, {line.function}, {line.outcome.difference}")
    yield from differences


_print = partial(print, flush=True)


def print_lines(
    machine: dict[str, str],
    lines: Iterable[Line],
    write: Callable[[str], None] = _print,
) -> bool:
    """Print the table as the comparisons end; return True if a function differs."""
    outcomes = []

    def note(lines: Iterable[Line]) -> Iterator[Line]:
        for line in lines:
            outcomes.append(line.outcome)
            yield line

    for text in text_of(machine, note(lines)):
        write(text)
    return any(outcome.difference is not None for outcome in outcomes)


@suggests_names
def verify(
    seconds: float = 20, *, frameworks: Sequence[str] | None = None, seed: int = 0
) -> Verification:
    """Compare fastcollate's functions with plain loops and with installed frameworks.

    Random batches, merges, packings, steps and trees are built by fastcollate and by the plain
    references, and arguments of frameworks' functions are passed to them and to those of
    ``fastcollate.compat``. Values, dtypes and shapes have to be the same. Needs Hypothesis:
    ``pip install hypothesis``.

    Parameters
    ----------
    seconds
        Time for all comparisons. Each function gets 40 cases or more.
    frameworks
        Compare with these alone: ``"nemo_rl"``, ``"skyrl"``, ``"transformers"``, ``"trl"``,
        ``"verl"``. By default with the references, and with all that are installed.
    seed
        Of the first cases; a difference names the seed that finds it again.

    Returns
    -------
    Verification
        One line per function: its cases, the first difference in the smallest case found, and the
        time of the other function over ours, on hundreds of rows.

    Raises
    ------
    ValueError
        `seconds` is not a finite number above 0, or a framework is unknown.
    ImportError
        Hypothesis, or a framework that is named, is not installed.
    RuntimeError
        A framework is patched.
    MemoryError
        There is too little memory to compare.
    """
    machine, lines = comparisons(frameworks, seconds, seed)
    return Verification(machine, list(lines))


def comparisons(
    frameworks: Sequence[str] | None, seconds: Any, seed: Any, find: Find = find_installed
) -> tuple[dict[str, str], Iterator[Line]]:
    """Return the description of the machine, and the comparisons, each made as it is read."""
    seconds = check_seconds("seconds", seconds)
    seed = check_int("seed", seed, "a number")
    if unknown := sorted({*(frameworks or ())} - {*FRAMEWORKS}):
        raise ValueError(
            f"frameworks has {unknown[0]!r}; pass some of {', '.join(map(repr, FRAMEWORKS))}"
        )
    machine = describe_machine()
    subjects = [] if frameworks else [(subject_of("references"), Peer(""))]
    absent = []
    for name in frameworks or FRAMEWORKS:
        subject = subject_of(name)
        if (peer := find(name)) is not None:
            title = f"{subject.title} {peer.version}{note_on(name, peer.version)}"
            machine[subject.title] = title.removeprefix(f"{subject.title} ")
            subjects.append((subject, peer))
        elif frameworks:
            raise ImportError(
                f"{subject.title} is not installed; install it in this environment, or name another"
            )
        else:
            absent.append(subject.title)
    if absent:
        machine["not installed"] = ", ".join(absent)
    return machine, _compare_all(subjects, seconds, seed)


def _compare_all(
    subjects: Sequence[tuple[Subject, Peer]], seconds: float, seed: int
) -> Iterator[Line]:
    """Yield the comparison of each function."""
    total = sum(len(subject.comparisons) for subject, _ in subjects)
    for subject, peer in subjects:
        title = f"{subject.title} {peer.version}".strip()
        for name, comparison in subject.comparisons.items():
            yield Line(title, name, compare(comparison, peer, seconds / total, seed))
