"""The result of an audit: the outcome of every sampled token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcollate.common.arguments import check_index, tally

REASONS = ("", "trained", "masked", "unpredicted", "cut", "drift", "dropped")
"""Outcomes of tokens by number; the first is unknown."""

SHOWN_FINDINGS = 8
"""Number of findings of each kind in a printed audit."""

_KINDS = {
    "missing": "in no batch",
    "untrained": "in a batch, with a loss mask of 0 that nothing accounts for",
    "repeated": "trained at two places",
    "unsampled": "trained, but not sampled",
    "padding trains": "trained in a padding row",
    "weight": "with another loss mask",
    "altered": "with another id",
    "altered prompt": "in a prompt, with another id",
    "label": "with another label",
    "target": "in a tree, with a target that differs from the turn's token",
    "predictor": "in a tree, with a predictor that does not follow the preceding tokens",
    "padding": "outside all rows, but not padding",
    "not attended": "in a row, with an attention mask of 0",
    "rows": "rows other than planned; batches go by mini-batch, then by rank",
}
"""Descriptions of findings, by kind."""


class Where(NamedTuple):
    """The position of a batch in an audit."""

    batch: int | None = None
    mini_batch: int | None = None
    rank: int | None = None
    micro_batch: int | None = None


class AuditSpan(NamedTuple):
    """Consecutive tokens with one outcome.

    Attributes
    ----------
    reason : str
        The outcome or the kind of finding (see :class:`Audit`).
    turn, position, length : int or None
        The turn, the position of the first token in its response (``"altered prompt"``: in its
        prompt), and the number of tokens. Turn and position are None outside of turns.
    batch, mini_batch, rank, micro_batch : int or None
        The index in ``batches`` and, with a step plan, the mini-batch, the rank and, if its batch
        is a list, the index there.
    row, column : int or None
        The output row (the bin if packed) and column of the first token: in sequence-aligned
        outputs for ids, labels and padding, otherwise in response-aligned ones. For shards, the row
        of the shard and the position in its response.
    found, expected : int or float or None
        The first found and expected values, if values are compared.
    """

    reason: str
    turn: int | None = None
    position: int | None = None
    length: int = 1
    batch: int | None = None
    mini_batch: int | None = None
    rank: int | None = None
    row: int | None = None
    column: int | None = None
    found: Any = None
    expected: Any = None
    micro_batch: int | None = None

    def __str__(self) -> str:
        parts = []
        if self.turn is not None and self.position is not None:
            end = self.position + self.length - 1
            many = f"positions {self.position} to {end}"
            where = f"position {self.position}" if self.length == 1 else many
            parts.append(f"turn {self.turn}, {where}")
        names = ("rank", "mini_batch", "micro_batch") if self.rank is not None else ("batch",)
        for name in (*names, "row", "column"):
            if (value := getattr(self, name)) is not None:
                parts.append(f"{name.replace('_', '-')} {value}")
        text = f"{self.reason}: {', '.join(parts)}"
        if self.found is not None or self.expected is not None:
            expected = "" if self.expected is None else f" instead of {self.expected}"
            text += f": {self.found}{expected}"
        return text


@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """The outcome of every sampled token. ``str(audit)`` is a table.

    Attributes
    ----------
    num_turns, num_tokens : int
        Number of turns, and of sampled tokens in all responses.
    counts : dict
        Number of tokens that are ``"trained"``, ``"masked"`` (by the given loss mask),
        ``"unpredicted"`` (the first token of a sequence, or of a part of a split one), ``"cut"``
        (in a row, but without a position), ``"drift"`` (masked by merging with ``"realign"``) and
        ``"dropped"`` (with its trajectory). Zero counts are left out. All other tokens are in
        `problems`.
    padding_tokens : int
        Tokens of copied padding rows, which do not train.
    problems : dict
        Number of tokens of each kind of finding: ``"missing"`` (in no batch), ``"untrained"``
        (their loss mask is 0, without a reason), ``"repeated"`` (trained again),
        ``"padding trains"``, ``"unsampled"`` (an observation or padding trains), ``"weight"``
        (differs from the given loss mask), ``"altered"`` and ``"altered prompt"`` (the id differs
        from the turn's), ``"label"``, ``"padding"`` (a non-padding value outside all rows),
        ``"not attended"``, ``"rows"`` (rows other than planned) and, in trees, ``"target"`` and
        ``"predictor"``.
    findings : list of AuditSpan
        The findings, consecutive tokens joined; the first 100 of each kind.
    compared : list of str
        The values compared with turns and outputs: ``"ids"``, ``"labels"``, ``"loss_mask"``.
    """

    num_turns: int
    num_tokens: int
    counts: Mapping[str, int]
    padding_tokens: int
    problems: Mapping[str, int]
    findings: Sequence[AuditSpan]
    compared: Sequence[str]
    _offsets: NDArray[np.int64] = field(repr=False)
    _reasons: NDArray[np.uint8] = field(repr=False)
    _places: NDArray[np.int64] = field(repr=False)
    _bases: NDArray[np.int64] = field(repr=False)
    _widths: Sequence[int] = field(repr=False)
    _wheres: Sequence[Where] = field(repr=False)

    @property
    def ok(self) -> bool:
        """True if there are no findings."""
        return not self.problems

    def raise_if_failed(self) -> None:
        """Raise an error if there are findings.

        Raises
        ------
        ValueError
            There are findings; the message has the first.
        """
        if not self.ok:
            raise ValueError(str(self))

    def spans(self, turn: int) -> list[AuditSpan]:
        """Return the outcomes of a turn's response, in order.

        Raises
        ------
        IndexError
            There is no such turn; turns are numbered from 0.
        """
        turn = check_index("turn", turn, self.num_turns)
        begin, end = self._offsets[turn : turn + 2].tolist()
        reasons, places = self._reasons[begin:end], self._places[begin:end]
        steps = np.diff(places) != np.where(places[1:] < 0, 0, 1)
        firsts = np.flatnonzero(np.append(True, steps | (np.diff(reasons) != 0)))[: end - begin]
        lengths = np.diff(np.append(firsts, end - begin)).tolist()
        return [
            AuditSpan(
                REASONS[reasons[at]] or ("missing" if places[at] < 0 else "untrained"),
                turn,
                at,
                length,
                **self._place(int(places[at])),
            )
            for at, length in zip(firsts.tolist(), lengths, strict=True)
        ]

    def _place(self, place: int) -> dict[str, Any]:
        """Return the batch, row and column of a position counted over all batches."""
        if place < 0:
            return {}
        batch = int(np.searchsorted(self._bases, place, side="right")) - 1
        row, column = divmod(place - int(self._bases[batch]), self._widths[batch])
        return {**self._wheres[batch]._asdict(), "row": row, "column": column}

    def __repr__(self) -> str:
        tokens = f"{tally(self.num_tokens, 'sampled token')} of {tally(self.num_turns, 'turn')}"
        known = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        if self.ok:
            return f"Audit passed: {tokens}: {known or 'none'}"
        wrong = ", ".join(f"{count:,} {name}" for name, count in self.problems.items())
        return f"Audit failed: {wrong}; {tokens}: {known or 'none'}"

    def __str__(self) -> str:
        lines = [repr(self)]
        compared = ", ".join(self.compared) or "nothing (pass the turns)"
        lines.append(f"  compared: {compared}")
        if self.padding_tokens:
            lines.append(f"  in copies that fill up ranks: {self.padding_tokens:,}")
        for kind, count in self.problems.items():
            lines.append(f"  {count:,} {_KINDS[kind]}")
            of_kind = [one for one in self.findings if one.reason == kind]
            lines += [f"    {one}" for one in of_kind[:SHOWN_FINDINGS]]
            if len(of_kind) > SHOWN_FINDINGS:
                lines.append(f"    and {len(of_kind) - SHOWN_FINDINGS:,} more in findings")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from fastcollate.inspect.markup import text_page

        return text_page(str(self))
