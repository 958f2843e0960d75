"""Findings: what is wrong with a batch, row by row."""

from __future__ import annotations

import html
import shutil
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from fastcollate.arguments import counted

SHOWN = 3
"""How many findings of a kind are printed."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a batch.

    Attributes
    ----------
    kind : str
        The name of what was looked for.
    row : int or None
        The row of the batch; None if it is about the whole batch.
    position : int or None
        The token of the row, counted from the first of its prompt on; the first one if there are
        several. None if it is about the whole row.
    reason : str
        What was found.
    advice : str
        What to do.
    """

    kind: str
    row: int | None
    position: int | None
    reason: str
    advice: str

    @property
    def place(self) -> str:
        """Where it is, in words."""
        if self.row is None:
            return "batch"
        return f"row {self.row}" + ("" if self.position is None else f", token {self.position}")

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}; {self.advice}"


class Findings(list[Finding]):
    """A list of findings, those of a kind together, that prints as a table."""

    def __repr__(self) -> str:
        width = max(shutil.get_terminal_size().columns, 30)
        lines = [self._head]
        for kind, advice, findings in self._kinds():
            lines += ["", f"{kind} ({len(findings):,})"]
            for finding in findings[:SHOWN]:
                lines += _wrapped(f"{finding.place}: {finding.reason}", width, "  ", "      ")
            if len(findings) > SHOWN:
                lines.append(f"  and {len(findings) - SHOWN:,} more")
            lines += _wrapped(advice, width, "  -> ", "     ")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return a table for a notebook."""
        rows = "".join(
            f"<tr><td>{html.escape(kind)}</td><td>{len(findings):,}</td>"
            f"<td>{'<br>'.join(_shown(findings))}</td><td>{html.escape(advice)}</td></tr>"
            for kind, advice, findings in self._kinds()
        )
        head = "<tr><th>kind</th><th>number</th><th>found</th><th>what to do</th></tr>"
        return f"<p>{self._head}</p>" + (f"<table>{head}{rows}</table>" if rows else "")

    @property
    def _head(self) -> str:
        return counted(len(self), "finding") if self else "no findings"

    def _kinds(self) -> Iterable[tuple[str, str, list[Finding]]]:
        """Give the findings of each kind, and what to do."""
        for kind, found in groupby(self, attrgetter("kind")):
            findings = list(found)
            yield kind, findings[0].advice, findings


def _shown(findings: list[Finding]) -> list[str]:
    shown = [html.escape(f"{one.place}: {one.reason}") for one in findings[:SHOWN]]
    more = len(findings) - SHOWN
    return [*shown, f"and {more:,} more"] if more > 0 else shown


def _wrapped(text: str, width: int, first: str, later: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=later)
