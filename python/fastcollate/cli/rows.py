"""Rows of files: calls, with their numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fastcollate.build import build_batch
from fastcollate.common.row_columns import IDS
from fastcollate.plan.merge import Policy
from fastcollate.plan.merging import MergePlan, merge_turns
from fastcollate.rollouts.calls import BAD_KINDS, Calls
from fastcollate.rows.columns import Ragged

if TYPE_CHECKING:
    from fastcollate.batch import Batch
    from fastcollate.plan.breaks import Tokenizer
    from fastcollate.rows.lengths import Integers


IN_TITLES = {"uids": "uid", "trajectory_ids": "trajectory"}
"""Ids in titles of rows, and their names there."""


class FileRows(NamedTuple):
    """Rows of a file, of which the first has a number from 1 on."""

    first_row: int
    calls: Calls

    @property
    def values(self) -> dict[str, Any]:
        """Loss mask, rewards and log-probabilities, those that there are."""
        return self.calls._arguments("loss_mask", "rewards", "logprobs")

    @property
    def missing_logprobs(self) -> Integers:
        """The number of log-probabilities that each row lacks, for which NaN stands."""
        return self.calls.bad_logprobs[:, BAD_KINDS.index("missing")]

    @property
    def ids(self) -> dict[str, list[Any]]:
        """Ids of prompts and trajectories, and flags of last turns, those that there are."""
        columns = {name: list(self.calls.columns.get(name, ())) for name in IDS}
        return {name: ids for name, ids in columns.items() if any(one is not None for one in ids)}

    @property
    def trajectories(self) -> Integers | None:
        """The trajectory of each row, numbered from 0 on; None if they are unknown."""
        ids = self.ids
        if "trajectory_ids" in ids:
            numbers = {one: at for at, one in enumerate(dict.fromkeys(ids["trajectory_ids"]))}
            return np.array([numbers[one] for one in ids["trajectory_ids"]], np.int64)
        if "is_last_step" in ids:
            flags = np.array(ids["is_last_step"], np.int64)
            return np.cumsum(flags) - flags
        return None

    def prompt_key(self, row: int) -> int | None:
        """Return a key that rows with equal prompts share; None without a prompt."""
        tokens = self.calls.prompts[row]
        return hash(tokens.astype(np.int64).tobytes()) if len(tokens) > 0 else None

    def title(self, at: int, name: str) -> str:
        """Return the title of a row: its name, and its ids."""
        ids = self.ids
        return ", ".join(
            [name, *(f"{word} {ids[one][at]}" for one, word in IN_TITLES.items() if one in ids)]
        )

    def build(self, is_filled: bool = False) -> Batch[Any]:
        """Return the rows as a jagged batch, whose rewards per row are finite.

        With `is_filled`, also log-probabilities of rows that lack some.
        """
        tokens, values = (self.calls.prompts, self.calls.responses), self.values
        if is_filled and "logprobs" in values:
            values["logprobs"] = self._filled(values["logprobs"])
        if "rewards" in values:
            values["rewards"] = _on_last_tokens(values["rewards"], tokens[1])
        return build_batch(
            *tokens,
            pad_token_id=-1,
            array_type="numpy",
            layout="jagged",
            **values,
            uids=self.ids.get("uids"),
        )

    def _filled(self, logprobs: Ragged) -> Ragged:
        """Return log-probabilities, with numbers in place of those that are missing."""
        lacks = np.repeat(self.missing_logprobs > 0, logprobs.lengths)
        is_filler = lacks & np.isnan(logprobs.values)
        return Ragged(np.where(is_filler, np.float32(-1), logprobs.values), logprobs.offsets)

    def merge(self, policy: Policy, tokenizer: Tokenizer | None = None) -> MergePlan:
        """Return the plan that merges turns of trajectories."""
        ids: dict[str, Any] = {name: one for name, one in self.ids.items() if name != "uids"}
        tokens = self.calls.prompts, self.calls.responses
        try:
            return merge_turns(
                *tokens, **ids, policy=policy, allow_unfinished=True, tokenizer=tokenizer
            )
        except (TypeError, ValueError) as error:
            raise ValueError(_INDEX.sub(self._rows_of_file, str(error))) from error

    def _rows_of_file(self, turns: re.Match[str]) -> str:
        """Name a column and its rows."""
        rows = [str(int(turn) + self.first_row) for turn in turns.groups()[1:] if turn]
        return f"{turns[1]} of {'row' if len(rows) == 1 else 'rows'} {' and '.join(rows)}"


_INDEX = re.compile(r"\b(is_last_step|trajectory_ids)\[(\d+)\](?: and \[(\d+)\])?")
"""Turns in errors of merging, counted from 0 in a chunk."""


def check_capacity(lens: Integers, numbers: Sequence[int], capacity: int) -> None:
    """Check that a bin holds the longest row; `numbers` are the rows' own.

    Raises
    ------
    ValueError
        If it does not.
    """
    row = int(lens.argmax())
    if (longest := int(lens[row])) > capacity:
        raise ValueError(
            f"--capacity is {capacity}, but row {numbers[row]} has {longest} tokens; pass at least "
            f"{longest}"
        )


def _on_last_tokens(rewards: Any, responses: Ragged) -> Any:
    """Return finite rewards, on last tokens if one per row would be an error: without a token."""
    offsets, has_last = responses.offsets, responses.lengths > 0
    if isinstance(rewards, Ragged):
        return rewards
    rewards = np.where(np.isfinite(rewards), rewards, 0)
    if has_last.all():
        return rewards
    values = np.zeros(offsets[-1], np.float32)
    values[offsets[1:][has_last] - 1] = rewards[has_last]
    return Ragged(values, offsets)


def joined(parts: Sequence[Calls]) -> Calls:
    """Join calls of one file, of which some parts may lack columns of others."""
    names = list(dict.fromkeys(name for part in parts for name in part._names()))
    return Calls.concat([_with_columns(part, names) for part in parts])


def _with_columns(calls: Calls, names: list[str]) -> Calls:
    """Return calls with all of these columns."""
    if calls._names() == names:
        return calls
    offsets = calls.responses.offsets
    plain = {
        "logprobs": Ragged(np.full(offsets[-1], np.nan, np.float32), offsets),
        "loss_mask": Ragged(np.ones(offsets[-1], np.int32), offsets),
        "rewards": [np.nan] * len(calls),
    }
    known = calls._names()
    columns: dict[str, Any] = {
        name: getattr(calls, name) if name in known else plain.get(name, [None] * len(calls))
        for name in names
    }
    return Calls(**columns)
