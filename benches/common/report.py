"""Options of every benchmark, and the output of its results."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from common.timing import interleaved

Calls = Mapping[str, Callable[[], object]]
Figures = dict[str, float]
UNITS = [(1e3, "ms"), (1e6, "µs"), (1e9, "ns")]


@dataclass(frozen=True)
class Effort:
    """The amount of work of a benchmark.

    Parameters
    ----------
    is_smoke
        True to run once on little data, as a test.
    rounds
        Least number of rounds.
    """

    is_smoke: bool
    rounds: int

    def run(
        self, calls: Calls, *, slow: Collection[str] = (), prepare: Calls | None = None
    ) -> Figures:
        """Measure calls against each other, for half a second at least (see `interleaved`)."""
        seconds = 0.0 if self.is_smoke else 0.5
        return interleaved(
            calls, rounds=self.rounds, seconds=seconds, slow=slow, prepare=prepare or {}
        )


def main(
    doc: str | None,
    measure: Callable[[Effort], Iterator[tuple[str, Figures]]],
    cell: Callable[[Figures, str], str],
) -> None:
    """Measure all cases, and print a table or JSON.

    Parameters
    ----------
    doc
        The benchmark's docstring.
    measure
        Yields each case and its figures by name.
    cell
        Formats one of a case's figures for the table.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=11, help="at least (default: %(default)s)")
    parser.add_argument("--smoke", action="store_true", help="one round on little data")
    parser.add_argument("--json", action="store_true", help="print the bare figures as JSON")
    args = parser.parse_args()
    results = dict(measure(Effort(args.smoke, 1 if args.smoke else args.rounds)))
    if args.json:
        print(json.dumps(results, indent=2))
    else:
        for each in tables(results, cell):
            Console(width=132).print(each)


def tables(results: dict[str, Figures], cell: Callable[[Figures, str], str]) -> list[Table]:
    """Lay out the results, in a table for cases that share most figures."""
    groups: list[list[str]] = []
    names: dict[str, None] = {}
    for case, figures in results.items():
        if 2 * len(names.keys() & figures) < len(figures) or not groups:
            names = {}
            groups.append([])
        names |= dict.fromkeys(figures)
        groups[-1].append(case)
    return [table({case: results[case] for case in group}, cell) for group in groups]


def table(results: dict[str, Figures], cell: Callable[[Figures, str], str]) -> Table:
    """Lay out the results: a line for each case, a column for each name."""
    names = list(dict.fromkeys(name for figures in results.values() for name in figures))
    out = Table("", *names, box=SIMPLE)
    for column in out.columns[1:]:
        column.justify = "right"
    for case, figures in results.items():
        out.add_row(case, *(cell(figures, name) if name in figures else "" for name in names))
    return out


def time_cell(times: Figures, name: str, *, ours: Collection[str], peer: str = "NumPy") -> str:
    """Format a time, for fastcollate with the ratio of the peer."""
    text = time_text(times[name])
    return f"{text} ({times[peer] / times[name]:.1f}x)" if name in ours else text


def time_text(seconds: float) -> str:
    """Format a time."""
    scale, unit = next(
        (scale, unit) for scale, unit in UNITS if seconds * scale >= 1 or unit == "ns"
    )
    return f"{seconds * scale:.1f} {unit}"
