"""The rows of a step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fastcollate._fastcollate import check_range
from fastcollate.common.arguments import id_list, tally
from fastcollate.common.arrays import is_tensor, pieces_of
from fastcollate.common.text import show
from fastcollate.plan.merging import MergePlan, check_uids, merging_of
from fastcollate.plan.trajectories import parse_trajectories
from fastcollate.plan.tree_plan import TreePlan
from fastcollate.rows.lengths import Integers, check_lengths


class StepRows(NamedTuple):
    """The rows of a step, with their lengths and ids."""

    lengths: Integers
    """Prompt and response tokens, (rows, 2)."""
    has_only_totals: bool = False
    uids: Any | None = None
    trajectory_ids: Any | None = None
    is_last_step: Any | None = None
    merge: MergePlan | None = None
    """The plan that merged turns into the rows, if any."""
    may_be_per_turn: bool = False

    @classmethod
    def of(cls, rows: Any) -> StepRows:
        """Read the argument `rows` of `plan_step`."""
        if isinstance(rows, (MergePlan, TreePlan)):
            lengths = _table(rows.prompt_lens, rows.response_lens)
            merge = rows.merge if isinstance(rows, TreePlan) else rows
            return cls(lengths, merge=merge, may_be_per_turn=merge is not None)
        if hasattr(rows, "_step_rows"):  # a Batch
            of_batch: StepRows = rows._step_rows()
            return of_batch
        if isinstance(rows, (tuple, list)) and any(isinstance(one, str) for one in rows[:1]):
            raise TypeError(
                f"rows[0] is {show(rows[0])}; pass the number of tokens of each row, and ids as "
                "uids=..."
            )
        if isinstance(rows, (tuple, list)) and len(rows) == 2 and hasattr(rows[0], "__len__"):
            prompts = check_lengths("prompt_lens", rows[0])
            responses = check_lengths("response_lens", rows[1])
            if len(prompts) != len(responses):
                raise ValueError(
                    f"rows has {len(prompts)} lengths of prompts, but "
                    f"{len(responses)} of responses; pass one of each per row"
                )
            return cls(_table(prompts, responses))
        totals = check_lengths("rows", rows)
        return cls(_table(0, totals), True)

    @property
    def totals(self) -> Integers:
        """Tokens of each row, (rows,)."""
        totals: Integers = self.lengths[:, 0] + self.lengths[:, 1]  # `sum` takes ten times as long
        return totals

    def per_row(self, name: str, values: Any) -> Any:
        """Check that there is one value per row; of values per turn, take the rows' own."""
        if not hasattr(values, "__len__") or isinstance(values, (str, bytes)):
            values = id_list(name, values)
        check_range(values)
        count, rows = len(values), len(self.lengths)
        if count == rows:
            return values
        if self.may_be_per_turn and self.merge is not None:
            if count == self.merge.num_turns:
                if name == "uids":
                    merging = merging_of(self.merge, None, None, None)
                    check_uids(merging, id_list(name, values), None)
                sources = self.merge.sources
                if isinstance(values, np.ndarray) or is_tensor(values):
                    return values[sources]
                return list(map(id_list(name, values).__getitem__, sources.tolist()))
            raise ValueError(
                f"{name} has {count} items, but the plan has {tally(rows, 'row')} of "
                f"{tally(self.merge.num_turns, 'turn')}; pass one per row or per turn"
            )
        raise ValueError(f"{name} has {count} items, but there are {rows} rows; pass one per row")

    def trajectories(self, trajectory_ids: Any | None, is_last_step: Any | None) -> Integers:
        """Return the offsets of trajectories, with the end of the last."""
        is_own = trajectory_ids is None and is_last_step is None
        if is_own:
            if self.merge is not None:
                of_rows = self.merge.trajectories
                return np.array([0, *np.flatnonzero(np.diff(of_rows)) + 1, len(of_rows)], np.int64)
            # Last rows of trajectories may not have been selected.
            trajectory_ids = self.trajectory_ids
            is_last_step = self.is_last_step if trajectory_ids is None else None
        if trajectory_ids is not None:
            trajectory_ids = self.per_row("trajectory_ids", trajectory_ids)
        if is_last_step is not None:
            is_last_step = self.per_row("is_last_step", is_last_step)
        found = parse_trajectories(trajectory_ids, is_last_step, allow_unfinished=is_own)
        return np.array([0, *found.ends], np.int64)


def _table(prompt_lens: Any, response_lens: Integers) -> Integers:
    """Return lengths of prompts, one for each row or for all, and responses: int64 (rows, 2)."""
    lengths = np.empty((len(response_lens), 2), np.int64)
    for at in pieces_of(len(lengths)):
        lengths[at, 0] = prompt_lens if np.ndim(prompt_lens) == 0 else prompt_lens[at]
        lengths[at, 1] = response_lens[at]
    return lengths
