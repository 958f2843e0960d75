"""The report on merging: sizes before and after, and breaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import eq, itemgetter
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from fastcollate._fastcollate import Merge
from fastcollate.common.arguments import check_index, tally
from fastcollate.common.caching import cached_property
from fastcollate.common.text import show_id
from fastcollate.plan.breaks import Break, Tokenizer, make_break
from fastcollate.plan.merge_tree import TrajectoryTree

SHOWN_BREAKS = 8
"""Number of breaks in a printed report."""


@dataclass(frozen=True, eq=False, repr=False)
class MergeReport:
    """Sizes before and after merging, and all breaks. ``str(report)`` is a table.

    Attributes
    ----------
    num_trajectories, num_turns, num_rows : int
        Number of trajectories, turns and rows.
    tokens_before, tokens_after : int
        Tokens of all turns and of all rows, prompts and responses.
    padded_tokens_before, padded_tokens_after : int
        Number of turns and rows times the longest: tokens with the padding of one block.
    masked_tokens : int
        Response tokens masked by realigning.
    rows_per_trajectory : ndarray
        int64 (trajectories,); 0 for dropped ones.
    dropped : list of int
        Trajectories without a row, since none of their tokens trains.
    breaks : sequence of Break
        All turns that do not continue the tokens before them, in order. Each is made on access.
    trajectory_ids : list or None
        The ids of trajectories, if known.
    """

    num_trajectories: int
    num_turns: int
    num_rows: int
    tokens_before: int
    tokens_after: int
    padded_tokens_before: int
    padded_tokens_after: int
    masked_tokens: int
    rows_per_trajectory: NDArray[np.int64]
    dropped: list[int]
    breaks: Breaks
    trajectory_ids: Sequence[Any] | None = None

    @classmethod
    def of_merge(
        cls, merge: Merge, trajectory_ids: Sequence[Any] | None, tokenizer: Tokenizer | None
    ) -> MergeReport:
        """Return the report on a merge."""
        ends, response_lens = merge.ends, merge.turn_response_lens
        before = merge.turn_prompt_lens + response_lens
        after = merge.prompt_lens + merge.response_lens
        rows_per_trajectory = np.bincount(merge.trajectories, minlength=len(ends))
        kept_tokens = response_lens.sum(where=merge.turn_rows >= 0)
        return cls(
            num_trajectories=len(ends),
            num_turns=len(before),
            num_rows=len(after),
            tokens_before=int(before.sum()),
            tokens_after=int(after.sum()),
            padded_tokens_before=len(before) * int(before.max()),
            padded_tokens_after=len(after) * int(after.max()),
            masked_tokens=int(kept_tokens - merge.sampled_lens.sum()),
            rows_per_trajectory=rows_per_trajectory,
            dropped=np.flatnonzero(rows_per_trajectory == 0).tolist(),
            breaks=Breaks(merge, trajectory_ids, tokenizer),
            trajectory_ids=trajectory_ids,
        )

    @property
    def metrics(self) -> dict[str, float]:
        """The sizes as a flat dict for logging.

        Returns
        -------
        dict
            ``generate/num_seq_before_merge`` and ``..._after_merge`` (turns and rows; SkyRL's
            keys), ``generate/num_tokens_before_merge`` and ``..._after_merge``,
            ``generate/num_merge_breaks`` and ``generate/num_tokens_masked_by_merge``.
        """
        return {
            "generate/num_seq_before_merge": float(self.num_turns),
            "generate/num_seq_after_merge": float(self.num_rows),
            "generate/num_tokens_before_merge": float(self.tokens_before),
            "generate/num_tokens_after_merge": float(self.tokens_after),
            "generate/num_merge_breaks": float(len(self.breaks)),
            "generate/num_tokens_masked_by_merge": float(self.masked_tokens),
        }

    def tree(self, trajectory: int | None = None) -> TrajectoryTree:
        """Return the rows of a trajectory as a tree, with the breaks.

        Parameters
        ----------
        trajectory
            Numbered from 0; None for the one with the most breaks.

        Raises
        ------
        IndexError
            There is no such trajectory.

        Examples
        --------
        >>> prompts, responses = [[1, 2], [1, 2, 3, 9], [1, 2, 3, 8]], [[3], [4], [5]]
        >>> plan = fc.merge_turns(prompts, responses, trajectory_ids=["a"] * 3)
        >>> print(plan.report.tree(0))
        trajectory 'a': 3 turns in 2 rows
        └─ row 0: turns 0 to 1, 5 tokens
           └─ row 1: turn 2, 5 tokens
                   turn 2 leaves (diverged) at position 3 the prompt has 8 instead of 9
                     expected  1 2 3 [9] 4
                     found     1 2 3 [8]
        """
        return self.breaks.tree(trajectory)

    def __repr__(self) -> str:
        turns, rows = tally(self.num_turns, "turn"), tally(self.num_rows, "row")
        return f"MergeReport: {turns} in {rows}, {tally(len(self.breaks), 'break')}"

    def __str__(self) -> str:
        lines = [
            f"{tally(self.num_turns, 'turn')} in {tally(self.num_rows, 'row')}",
            f"{'':<16}{'before':>14}{'after':>14}",
        ]
        for name, before, after in (
            ("rows", self.num_turns, self.num_rows),
            ("tokens", self.tokens_before, self.tokens_after),
            ("with padding", self.padded_tokens_before, self.padded_tokens_after),
        ):
            fewer = f"   {before / after:.1f}x fewer" if after else ""
            lines.append(f"  {name:<14}{before:>14,}{after:>14,}{fewer}")
        counts = np.bincount(self.rows_per_trajectory)
        spread = (f"{n:,} have {rows}" for rows, n in enumerate(counts) if n)
        lines.append(f"  rows per trajectory: {', '.join(spread)}")
        if self.dropped:
            lines.append(f"  dropped, since nothing of them trains: {self._named(self.dropped)}")
        if self.masked_tokens:
            lines.append(f"  sampled tokens masked: {self.masked_tokens:,}")
        kinds = sorted(self.breaks.kinds, key=itemgetter(1), reverse=True)
        parts = ", ".join(f"{count:,} {kind}" for kind, count in kinds)
        lines.append(f"  breaks: {len(self.breaks):,}{f' ({parts})' if parts else ''}")
        for broken in self.breaks[:SHOWN_BREAKS]:
            lines += [f"    {line}" for line in str(broken).splitlines()]
        if (hidden := len(self.breaks) - SHOWN_BREAKS) > 0:
            lines.append(f"    and {hidden:,} more in report.breaks")
        if len(self.breaks) > 0:
            lines.append("  report.tree() draws the rows of a trajectory")
        return "\n".join(lines)

    def _named(self, trajectories: Sequence[int]) -> str:
        ids = self.trajectory_ids
        names = [str(one) if ids is None else show_id(ids[one]) for one in trajectories]
        more = len(names) - SHOWN_BREAKS
        return ", ".join(names[:SHOWN_BREAKS]) + (f" and {more:,} more" if more > 0 else "")


class Breaks(Sequence[Break]):
    """The breaks of a merge, each made on access.

    Parameters
    ----------
    merge
        The merge of the turns.
    trajectory_ids, tokenizer
        As in :func:`merge_turns`.
    """

    def __init__(
        self, merge: Merge, trajectory_ids: Sequence[Any] | None, tokenizer: Tokenizer | None
    ) -> None:
        self._merge = merge
        self._trajectory_ids = trajectory_ids
        self._tokenizer = tokenizer
        self._ends = merge.ends

    @property
    def kinds(self) -> list[tuple[str, int]]:
        """Number of breaks of each kind, in order of first occurrence."""
        return self._merge.break_kinds()

    def firsts(self, count: int) -> Iterator[Break]:
        """Yield at most `count` first breaks of each trajectory."""
        starts = np.searchsorted(self._trajectories, self._trajectories)
        for index in np.flatnonzero(np.arange(len(self)) - starts < count).tolist():
            yield self[index]

    def __len__(self) -> int:
        return self._merge.num_breaks

    @overload
    def __getitem__(self, index: int) -> Break: ...
    @overload
    def __getitem__(self, index: slice) -> list[Break]: ...
    def __getitem__(self, index: int | slice) -> Break | list[Break]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        place = range(len(self))[index]
        entry = self._merge.break_at(place)
        trajectory = int(self._trajectories[place])
        first_prompt_len = int(self._first_prompt_lens[trajectory])
        ids, tokenizer = self._trajectory_ids, self._tokenizer
        return make_break(entry, trajectory, first_prompt_len, ids, tokenizer)

    def tree(self, trajectory: int | None) -> TrajectoryTree:
        """See :meth:`MergeReport.tree`."""
        if trajectory is None:
            trajectory = int(np.bincount(self._trajectories, minlength=1).argmax())
        trajectory = check_index("trajectory", trajectory, len(self._ends))
        begin = int(self._ends[trajectory - 1]) if trajectory > 0 else 0
        rows = self._turn_rows[begin : self._ends[trajectory]].tolist()
        places = range(*np.searchsorted(self._trajectories, [trajectory, trajectory + 1]).tolist())
        lasts = self._compared[places.start : places.stop].tolist()
        ids = self._trajectory_ids
        return TrajectoryTree.of(
            str(trajectory) if ids is None else repr(ids[trajectory]),
            rows,
            begin,
            {row: int(self._lens[row]) for row in rows if row >= 0},
            [(self[place], last) for place, last in zip(places, lasts, strict=True)],
        )

    def most_broken(self, count: int) -> list[int]:
        """Return at most `count` trajectories with the most breaks."""
        counts = np.bincount(self._trajectories)
        order = np.argsort(-counts, kind="stable")[:count]
        return [trajectory for trajectory in order.tolist() if counts[trajectory] > 0]

    # Each property of a merge is a copy of a table.

    @cached_property
    def _trajectories(self) -> NDArray[np.int64]:
        """The trajectory of each break."""
        return np.searchsorted(self._ends, self._merge.break_turns, side="right")

    @cached_property
    def _first_prompt_lens(self) -> NDArray[np.int64]:
        """The prompt length of the first turn of each trajectory."""
        firsts = np.append(0, self._ends[:-1])
        lens: NDArray[np.int64] = self._merge.turn_prompt_lens[firsts]
        return lens

    @cached_property
    def _turn_rows(self) -> NDArray[np.int64]:
        return self._merge.turn_rows

    @cached_property
    def _lens(self) -> NDArray[np.int64]:
        """The number of tokens of each row."""
        lens: NDArray[np.int64] = self._merge.prompt_lens + self._merge.response_lens
        return lens

    @cached_property
    def _compared(self) -> NDArray[np.int64]:
        """The last turn of the group that each turn was compared with."""
        compared: NDArray[np.int64] = self._merge.to_dict()["breaks"][:, 1]
        return compared

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (Breaks, list)):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Breaks: {len(self):,}"
