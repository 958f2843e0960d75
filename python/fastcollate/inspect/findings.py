"""Findings: probable mistakes in a batch, and warnings, by kind."""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np

from fastcollate.common.arguments import tally
from fastcollate.inspect import markup

if TYPE_CHECKING:
    from fastcollate.rows.lengths import Integers

Severity: TypeAlias = Literal["error", "warning"]

ERRORS = (
    *("padded_column", "padded_row", "repeated_prompt", "all_masked", "labels_as_mask"),
    *("unmerged_turns", "equal_rewards", "negative_mask", "trains_padding", "trains_first_token"),
    *("short_logprobs", "missing_logprobs", "nan"),
    *("positive_logprob", "infinite_logprob", "zero_logprobs", "outside_vocabulary"),
    *("untrained_reward", "repeated_end"),
)
"""Kinds of findings that are probable mistakes, those that do the most harm first."""

WARNINGS = (
    *("turns_without_ids", "prompts_of_uid", "uids_of_prompt", "unread_column"),
    *("shifted_logprobs", "weighted_labels", "trains_nothing", "cut_off", "duplicate", "padding"),
)
"""Kinds of findings that can be right."""

KINDS = (*ERRORS, *WARNINGS)
"""All kinds of findings, the worst first."""

SHOWN = 3
"""Number of rows with a finding that are described."""


@dataclass(frozen=True, eq=False)
class Finding:
    """A probable mistake in one or several rows of a batch.

    Attributes
    ----------
    kind : str
        The kind of mistake.
    rows : int64 (rows,)
        All rows with the mistake, in order; none if it concerns the whole batch.
    positions : int64 (rows,) or None
        The token's index in each row, prompt included; the first one if there are several. None for
        whole rows.
    reasons : list of str
        Descriptions of the mistake, of the first three rows only.
    advice : str
        A suggested change.
    """

    kind: str
    rows: Integers
    positions: Integers | None
    reasons: list[str]
    advice: str

    @property
    def shown(self) -> list[str]:
        """The descriptions, with their rows and positions."""
        if len(self.rows) == 0:
            return [f"batch: {reason}" for reason in self.reasons]
        places = [f"row {row}" for row in self.rows[:SHOWN]]
        if self.positions is not None:
            tokens = self.positions[:SHOWN]
            places = [
                f"{place}, token {token}" for place, token in zip(places, tokens, strict=True)
            ]
        return [f"{place}: {reason}" for place, reason in zip(places, self.reasons, strict=True)]

    @property
    def severity(self) -> Severity:
        """``"error"`` for a probable mistake, ``"warning"`` for what can be right."""
        return severity_of(self.kind)

    @property
    def number(self) -> int:
        """Number of rows, or 1 for the whole batch."""
        return max(len(self.rows), 1)

    def __str__(self) -> str:
        width = max(shutil.get_terminal_size().columns, 30)
        lines = [title_of(self.kind, len(self.rows))]
        for shown in self.shown:
            lines += _wrap(shown, width, "  ", "      ")
        if self.number > len(self.reasons):
            lines.append(f"  and {self.number - len(self.reasons):,} more")
        return "\n".join([*lines, *_wrap(self.advice, width, "  -> ", "     ")])


def severity_of(kind: str) -> Severity:
    """Return the severity of a kind of finding."""
    return "warning" if kind in WARNINGS else "error"


def title_of(kind: str, num_rows: int) -> str:
    """Return the title of a finding: its severity and kind, and the number of its rows."""
    rows = f" in {tally(num_rows, 'row')}" if num_rows > 0 else ""
    return f"{severity_of(kind)}: {kind}{rows}"


def counted(severities: Iterable[Severity]) -> str:
    """Return the number of kinds of findings by severity, as "1 error, 2 warnings"."""
    numbers = Counter(severities)
    known = [tally(numbers[one], one) for one in get_args(Severity) if numbers[one] > 0]
    return ", ".join(known) or "no findings"


def whole_rows(
    kind: str, rows: Integers, reason: Callable[[int], str], advice: str
) -> Iterator[Finding]:
    """Yield the finding of whole rows."""
    if len(rows) > 0:
        yield Finding(kind, rows, None, [reason(row) for row in rows[:SHOWN].tolist()], advice)


def whole_batch(kind: str, reason: str, advice: str) -> Finding:
    """Return the finding of a batch."""
    return Finding(kind, np.zeros(0, np.int64), None, [reason], advice)


class Findings(list[Finding]):
    """A list of findings that prints as a table."""

    def __repr__(self) -> str:
        return "\n\n".join([counted(one.severity for one in self), *map(str, self)])

    def _repr_html_(self) -> str:
        """Return the table as HTML for a notebook."""
        return markup.page(markup.text("div", repr(self), "tokens"))


def _wrap(text: str, width: int, first: str, later: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=later)
