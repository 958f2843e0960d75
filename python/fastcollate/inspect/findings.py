"""Findings: probable mistakes in a batch, row by row."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from fastcollate.common.arguments import tally
from fastcollate.inspect import markup

SHOWN = 3
"""Number of findings of a kind that are printed."""


@dataclass(frozen=True)
class Finding:
    """A probable mistake in a batch.

    Attributes
    ----------
    kind : str
        The kind of mistake.
    row : int or None
        The row of the batch; None for the whole batch.
    position : int or None
        The token's index in the row, prompt included; the first one if there are several. None for
        the whole row.
    reason : str
        A description of the mistake.
    advice : str
        A suggested change.
    """

    kind: str
    row: int | None
    position: int | None
    reason: str
    advice: str

    @property
    def place(self) -> str:
        """The row and position as text."""
        if self.row is None:
            return "batch"
        return f"row {self.row}" + ("" if self.position is None else f", token {self.position}")

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}; {self.advice}"


class Findings(list[Finding]):
    """A list of findings, grouped by kind, that prints as a table."""

    def __repr__(self) -> str:
        width = max(shutil.get_terminal_size().columns, 30)
        lines = [self._head]
        for kind, advice, findings in self._kinds():
            lines += ["", f"{kind} ({len(findings):,})"]
            for finding in findings[:SHOWN]:
                lines += _wrap(f"{finding.place}: {finding.reason}", width, "  ", "      ")
            if len(findings) > SHOWN:
                lines.append(f"  and {len(findings) - SHOWN:,} more")
            lines += _wrap(advice, width, "  -> ", "     ")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the table as HTML for a notebook."""
        kinds = (
            (kind, advice, len(found), [f"{one.place}: {one.reason}" for one in found[:SHOWN]])
            for kind, advice, found in self._kinds()
        )
        return markup.page(markup.text("p", self._head, "title"), kinds_html(kinds))

    @property
    def _head(self) -> str:
        return tally(len(self), "finding") if self else "no findings"

    def _kinds(self) -> Iterable[tuple[str, str, list[Finding]]]:
        """Yield the findings of each kind, with the advice."""
        for kind, found in groupby(self, attrgetter("kind")):
            findings = list(found)
            yield kind, findings[0].advice, findings


def kinds_html(kinds: Iterable[tuple[str, str, int, list[str]]]) -> str:
    """Return findings as HTML: for each kind its advice, their number, and the first of them."""
    parts = []
    for kind, advice, number, lines in kinds:
        parts.append(markup.text("p", f"{kind} ({number:,})", "title"))
        parts += [markup.text("div", line, "part") for line in lines]
        if number > len(lines):
            parts.append(markup.text("div", f"and {number - len(lines):,} more", "part"))
        parts.append(markup.text("div", f"→ {advice}", "part note"))
    return "".join(parts)


def _wrap(text: str, width: int, first: str, later: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=later)
