"""The ledger of an audit: the outcome of each sampled token, and the findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastcollate.common.arrays import offsets_of, ranges_of
from fastcollate.plan.audit_report import REASONS, Audit, AuditSpan, Where
from fastcollate.rows.lengths import Integers

if TYPE_CHECKING:
    from fastcollate._fastcollate import Merge
    from fastcollate.inspect.audit_tables import Turns


NONE, TRAINED, MASKED, UNPREDICTED, CUT, DRIFT, DROPPED = range(len(REASONS))

MOST_FINDINGS = 100
"""Number of findings of each kind that are kept."""


class Ledger:
    """The outcomes of sampled tokens so far."""

    def __init__(
        self, lengths: Integers, turns: Turns | None, merge: Merge | None, wheres: Sequence[Where]
    ) -> None:
        self.turns, self.merge, self.wheres = turns, merge, wheres
        self.lengths, self.offsets = lengths, offsets_of(lengths)
        total = int(self.offsets[-1])
        self.reasons = np.zeros(total, np.uint8)
        self.places = np.full(total, -1)
        """Position of each token, counted over the responses of all batches."""
        self.index = 0
        """Of the batch or shard that is read."""
        self.bases = [0]
        self.widths: list[int] = []
        self.findings: list[AuditSpan] = []
        self.problems: dict[str, int] = {}
        self.padding_tokens = 0
        self.compared: set[str] = set()
        if merge is not None:
            self.pieces = merge.to_dict()
            stands = np.zeros(total, np.bool_)
            turn, start, _, length, _ = self.pieces["pieces"].T
            stands[ranges_of(self.offsets[turn] + start, length)] = True
            self.reasons[~stands] = DRIFT
            self.turn_rows = merge.turn_rows
            is_dropped = np.repeat(self.turn_rows < 0, lengths)
            self.reasons[is_dropped] = DROPPED

    def _open(self, size: int, width: int) -> None:
        """Begin the next batch or shard, with `size` response positions."""
        self.bases.append(self.bases[-1] + size)
        self.widths.append(max(width, 1))

    def _note(
        self, tokens: Integers, reasons: NDArray[Any], places: Integers | None = None
    ) -> None:
        """Record the reasons of untrained tokens, unless they train elsewhere."""
        fresh = self.reasons[tokens] != TRAINED
        self.reasons[tokens[fresh]] = reasons[fresh]
        if places is not None:
            self.places[tokens[fresh]] = places[fresh]

    def _locate(self, tokens: Integers) -> tuple[Integers, Integers]:
        """Return the turns of sampled tokens, and the positions in their responses."""
        turns = np.searchsorted(self.offsets, tokens, side="right") - 1
        return turns, tokens - self.offsets[turns]

    def _find(self, kind: str, count: int = 1, **details: Any) -> None:
        """Add a finding, up to the limit of its kind."""
        before = self.problems.get(kind, 0)
        self.problems[kind] = before + count
        if sum(finding.reason == kind for finding in self.findings) < MOST_FINDINGS:
            where = self.wheres[self.index]
            self.findings.append(AuditSpan(kind, **where._asdict(), **details))

    def _find_places(
        self,
        kind: str,
        places: Integers,
        width: int,
        found: NDArray[Any] | None = None,
        expected: NDArray[Any] | None = None,
        of: tuple[Integers, Integers] | None = None,
    ) -> None:
        """Add findings at positions, consecutive ones joined; `of` has their places in turns."""
        if len(places) == 0:
            return
        width = max(width, 1)
        begins = np.diff(places, prepend=places[0] - 2) != 1
        begins |= places % width == 0
        if of is not None:
            begins |= (np.diff(of[0], prepend=-9) != 0) | (np.diff(of[1], prepend=-9) != 1)
        for at, length in _runs(begins):
            row, column = divmod(int(places[at]), width)
            self._find(
                kind,
                length,
                turn=None if of is None else int(of[0][at]),
                position=None if of is None else int(of[1][at]),
                length=length,
                row=row,
                column=column,
                found=None if found is None else found[at].item(),
                expected=None if expected is None else expected[at].item(),
            )

    def close(self) -> Audit:
        """Return the result."""
        missing = np.flatnonzero((self.reasons == NONE) & (self.places < 0))
        if len(missing) > 0:
            self.problems["missing"] = len(missing)
            turns, positions = self._locate(missing)
            runs = _runs((np.diff(missing, prepend=-2) != 1) | (np.diff(turns, prepend=-1) != 0))
            self.findings += [
                AuditSpan(
                    "missing", turn=int(turns[at]), position=int(positions[at]), length=length
                )
                for at, length in runs[:MOST_FINDINGS]
            ]
        counts = [int(np.count_nonzero(self.reasons == reason)) for reason in range(len(REASONS))]
        return Audit(
            num_turns=len(self.offsets) - 1,
            num_tokens=int(self.offsets[-1]),
            counts={name: n for name, n in zip(REASONS, counts, strict=True) if name and n},
            padding_tokens=self.padding_tokens,
            problems=self.problems,
            findings=self.findings,
            compared=sorted(self.compared),
            _offsets=self.offsets,
            _reasons=self.reasons,
            _places=self.places,
            _bases=np.array(self.bases),
            _widths=self.widths,
            _wheres=self.wheres,
        )


def _runs(begins: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the start and the length of each run, given where one begins."""
    starts = np.flatnonzero(begins)
    lengths = np.diff(np.append(starts, len(begins)))
    return list(zip(starts.tolist(), lengths.tolist(), strict=True))
