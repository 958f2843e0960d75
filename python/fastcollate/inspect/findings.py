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
        parts = [markup.text("p", self._head, "title")]
        for kind, advice, findings in self._kinds():
            parts.append(markup.text("p", f"{kind} ({len(findings):,})", "title"))
            shown = (f"{finding.place}: {finding.reason}" for finding in findings[:SHOWN])
            parts += [markup.text("div", line, "part") for line in shown]
            if len(findings) > SHOWN:
                parts.append(markup.text("div", f"and {len(findings) - SHOWN:,} more", "part"))
            parts.append(markup.text("div", f"→ {advice}", "part note"))
        return markup.page(*parts)

    @property
    def _head(self) -> str:
        return tally(len(self), "finding") if self else "no findings"

    def _kinds(self) -> Iterable[tuple[str, str, list[Finding]]]:
        """Yield the findings of each kind, with the advice."""
        for kind, found in groupby(self, attrgetter("kind")):
            findings = list(found)
            yield kind, findings[0].advice, findings


def _wrap(text: str, width: int, first: str, later: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=later)
