"""The ledger of an audit: the outcome of each sampled token, and the findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastcollate.common.arrays import offsets_of, ranges_of
from fastcollate.plan.audit_report import REASONS, Audit, AuditSpan, Where

if TYPE_CHECKING:
    from fastcollate._fastcollate import Merge
    from fastcollate.inspect.audit_tables import Turns

Integers = NDArray[np.int64]

NONE, TRAINED, MASKED, UNPREDICTED, CUT, DRIFT, DROPPED = range(len(REASONS))

MOST_FINDINGS = 100
"""Number of findings of each kind that are kept."""


class Ledger:
    """The outcomes of sampled tokens so far."""

    def __init__(
        self,
        lengths: Integers,
        turns: Turns | None,
        merge: Merge | None,
        wheres: Sequence[Where],
    ) -> None:
        self.turns, self.merge, self.wheres = turns, merge, wheres
        self.offsets = offsets_of(lengths)
        total = int(self.offsets[-1])
        self.reasons = np.zeros(total, np.uint8)
        self.places = np.full(total, -1)
        """Position of each token, counted over the responses of all batches."""
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
            is_dropped = np.repeat(merge.turn_rows < 0, lengths)
            self.reasons[is_dropped] = DROPPED

    # Findings

    def _open(self, size: int, width: int) -> None:
        """Begin the next batch, with `size` response positions."""
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

    def _find(self, kind: str, index: int, count: int = 1, **details: Any) -> None:
        """Add a finding in a batch, up to the limit of its kind."""
        before = self.problems.get(kind, 0)
        self.problems[kind] = before + count
        if sum(finding.reason == kind for finding in self.findings) < MOST_FINDINGS:
            where = self.wheres[index]
            self.findings.append(AuditSpan(kind, **where._asdict(), **details))

    def _find_tokens(
        self,
        kind: str,
        index: int,
        tokens: Integers,
        places: Integers,
        width: int,
        found: NDArray[Any] | None = None,
        expected: NDArray[Any] | None = None,
    ) -> None:
        """Add findings of sampled tokens at response positions."""
        turns = np.searchsorted(self.offsets, tokens, side="right") - 1
        positions = tokens - self.offsets[turns]
        self._find_places(kind, index, places, width, found, expected, turns, positions)

    def _find_places(
        self,
        kind: str,
        index: int,
        places: Integers,
        width: int,
        found: NDArray[Any] | None = None,
        expected: NDArray[Any] | None = None,
        turns: Integers | None = None,
        positions: Integers | None = None,
    ) -> None:
        """Add findings at positions, consecutive ones joined; of tokens, if they have turns."""
        if len(places) == 0:
            return
        width = max(width, 1)
        begins = np.diff(places, prepend=places[0] - 2) != 1
        begins |= places % width == 0
        for ids in (turns, positions):
            if ids is not None:
                begins |= np.diff(ids, prepend=-9) != (1 if ids is positions else 0)
        first = np.flatnonzero(begins)
        lengths = np.diff(np.append(first, len(places)))
        for at, length in zip(first.tolist(), lengths.tolist(), strict=True):
            row, column = divmod(int(places[at]), width)
            self._find(
                kind,
                index,
                length,
                turn=None if turns is None else int(turns[at]),
                position=None if positions is None else int(positions[at]),
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
            turns = np.searchsorted(self.offsets, missing, side="right") - 1
            positions = missing - self.offsets[turns]
            first = np.flatnonzero(
                (np.diff(missing, prepend=-2) != 1) | (np.diff(turns, prepend=-1) != 0)
            )
            lengths = np.diff(np.append(first, len(missing)))
            self.problems["missing"] = len(missing)
            self.findings += [
                AuditSpan(
                    "missing", turn=int(turns[at]), position=int(positions[at]), length=length
                )
                for at, length in zip(first[:MOST_FINDINGS], lengths.tolist(), strict=False)
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
