"""Findings of a file: those of its batches, and what only rows of a file show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from fastcollate.cli.reporting.advice import saves_rows
from fastcollate.common.arguments import tally
from fastcollate.inspect.findings import KINDS, Finding, severity_of, whole_rows
from fastcollate.plan.breaks import FIRST_PROMPT, SHORT_PROMPT
from fastcollate.rows.columns import Ragged
from fastcollate.rows.padded_blocks import find_padding

if TYPE_CHECKING:
    from fastcollate.cli.rows import FileRows
    from fastcollate.rollouts.calls import Calls
    from fastcollate.rows.lengths import Integers

MOST_EXAMPLES = 5
"""Examples of a kind that are kept."""


class FileFindings:
    """Collects the findings of a file, chunk by chunk."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], dict[str, Any]] = {}
        self._prompt_of: dict[Any, int] = {}
        self._uid_of: dict[int, Any] = {}
        self._samples: set[tuple[int, int]] = set()
        self.num_copies = 0
        """Number of samples that equal an earlier one of their prompt."""

    def add(self, rows: FileRows, in_batch: Iterable[Finding]) -> list[Finding]:
        """Add the findings of a chunk, of which some are in its batch; return all."""
        calls = rows.calls
        found = [
            *_padding("prompts", calls.prompts),
            *_padding("responses", calls.responses),
            *_missing_logprobs(rows),
            *_bad_rewards(rows.values.get("rewards"), calls.responses.lengths),
            *self._prompts_and_ids(rows),
            *in_batch,
        ]
        for one in found:
            known = self._found.setdefault((one.kind, one.advice), _entry(one.kind, one.advice))
            shown = [in_file(text, rows.first_row) for text in one.shown]
            known["examples"] += shown[: MOST_EXAMPLES - len(known["examples"])]
            known["rows"] += (one.rows + rows.first_row).tolist()
            known["number"] += one.number
        return found

    def all(
        self,
        rewards: Mapping[str, Any] | None,
        merging: Mapping[str, Any] | None,
        unread: Sequence[str],
    ) -> list[dict[str, Any]]:
        """Return all kinds of findings, the worst first."""
        of_file = chain(_equal_rewards(rewards), _unmerged(merging), _unread(unread))
        return sorted([*self._found.values(), *of_file], key=lambda one: KINDS.index(one["kind"]))

    def _prompts_and_ids(self, rows: FileRows) -> Iterator[Finding]:
        """Compare first prompts with their ids, and find turns that have no trajectories."""
        of_row, calls = rows.trajectories, rows.calls
        firsts = np.arange(len(calls))
        if of_row is None:
            turns = _next_turns(calls)
            yield from whole_rows(
                "turns_without_ids",
                turns,
                lambda row: f"it continues row {row - 1}, as the next turn does",
                "if rows are turns, name their trajectories by --trajectory-ids or --is-last-step",
            )
            firsts = np.delete(firsts, turns)
        else:
            firsts = np.unique(of_row, return_index=True)[1]
        uids = rows.ids.get("uids")
        of_uid, of_prompt = list[int](), list[int]()
        for row in firsts.tolist():
            if (prompt := rows.prompt_key(row)) is None:
                continue
            uid = None if uids is None else uids[row]
            if of_row is None:
                sample = prompt, hash(calls.responses[row].astype(np.int64).tobytes())
                self.num_copies += sample in self._samples
                self._samples.add(sample)
            if self._uid_of.setdefault(prompt, uid) != uid:
                of_prompt.append(row)
            if uids is not None and self._prompt_of.setdefault(uid, prompt) != prompt:
                of_uid.append(row)
        if uids is None:
            return
        yield from whole_rows(
            "prompts_of_uid",
            np.array(of_uid, np.int64),
            lambda row: f"it has another prompt than earlier rows of its uid, {uids[row]}",
            "give each prompt a uid of its own: GRPO compares the rewards of a uid's rows",
        )
        yield from whole_rows(
            "uids_of_prompt",
            np.array(of_prompt, np.int64),
            lambda row: f"earlier rows with its prompt have another uid than its own, {uids[row]}",
            "give all samples of a prompt one uid, unless they are groups of their own",
        )


def in_file(reason: str, first_row: int) -> str:
    """Return a reason with row numbers of the file, not of the chunk."""
    reason = reason.removeprefix("batch: ")
    return re.sub(r"\brow (\d+)", lambda found: f"row {int(found[1]) + first_row}", reason)


def _entry(kind: str, advice: str, number: int = 0, *examples: str) -> dict[str, Any]:
    """Return a kind of finding, with the rows of the file that have it."""
    known = {"kind": kind, "severity": severity_of(kind), "number": number, "rows": []}
    return {**known, "examples": list(examples), "advice": advice}


def _next_turns(calls: Calls) -> Integers:
    """Return the rows whose prompt begins with the whole row before."""
    prompts, responses = calls.prompts, calls.responses
    lens = prompts.lengths + responses.lengths
    rows = np.flatnonzero((prompts.lengths[1:] >= lens[:-1]) & (responses.lengths[:-1] > 0)) + 1
    found = [
        row
        for row in rows.tolist()
        if np.array_equal(
            prompts[row][: lens[row - 1]], np.concatenate([prompts[row - 1], responses[row - 1]])
        )
    ]
    return np.array(found, np.int64)


def _unread(unread: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a finding for columns of known names that have other values."""
    if named := [one for one in unread if one.endswith(")")]:
        advice = "name a column of numbers, unless it is to be left out"
        yield _entry("unread_column", advice, len(named), f"not read: {', '.join(named)}")


def _padding(name: str, column: Ragged) -> Iterator[Finding]:
    """Find a column that was padded to one length, with the token at most edges of rows."""
    rows = np.flatnonzero(column.lengths)
    edges = column.values[np.stack([column.offsets[rows], column.offsets[rows + 1] - 1])]
    ids, counts = np.unique(edges, return_counts=True)
    if len(ids) == 0:
        return
    pad = int(ids[counts.argmax()])
    if (found := find_padding(name, column, pad)) is None:
        return
    is_left = found[1] == "left"

    def reason(row: int) -> str:
        tokens = column[row] if is_left else column[row][::-1]
        run = tally(int(np.argmin(np.append(tokens == pad, False))), "token")
        edge = f"{'begins' if is_left else 'ends'} with {run} of id {pad}"
        return f"its {name.removesuffix('s')} {edge}, and all {name} have {len(tokens):,} tokens"

    padded = rows[edges[0 if is_left else 1] == pad]
    trains = "" if name == "prompts" else ", and trains unless loss_mask is 0"
    advice = f"write {name} without padding: here it counts as tokens{trains}"
    yield from whole_rows("padded_column", padded, reason, advice)


def _bad_rewards(rewards: Any, lens: Integers) -> Iterator[Finding]:
    """Find rewards of rows with tokens that are not finite; the batch has those per token."""
    if rewards is None or isinstance(rewards, Ragged):
        return
    rewards = np.asarray(rewards, np.float64)
    advice = "check where rewards are computed: one of them makes all advantages of its prompt NaN"
    yield from whole_rows(
        "nan",
        np.flatnonzero(~np.isfinite(rewards) & (lens > 0)),
        lambda row: f"its reward is {'NaN' if np.isnan(rewards[row]) else rewards[row]}",
        advice,
    )


def _equal_rewards(rewards: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield a finding if no prompt has samples with different rewards."""
    if rewards is None or rewards["are_guessed"]:
        return
    if 0 < rewards["groups"] == rewards["equal_groups"]:
        prompts = tally(rewards["groups"], "prompt")
        example = f"in each of {prompts}, all samples have equal rewards"
        advice = "check the rewards: advantages within groups (GRPO) are 0, and nothing trains"
        yield _entry("equal_rewards", advice, rewards["groups"], example)


def _unmerged(merging: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield a finding if no turn continues the one before it, and most not even the first."""
    if merging is None or saves_rows(merging):
        return
    hints = merging["hints"]
    if 2 * (hints.get(FIRST_PROMPT, 0) + hints.get(SHORT_PROMPT, 0)) < merging["num_looked_at"]:
        return
    if (number := merging["num_turns"] - merging["num_trajectories"]) > 0:
        example = f"none of {tally(number, 'later turn')} continues the turn before it"
        advice = (
            "check that the turns of a trajectory are in order, and that prompts hold all earlier "
            "turns"
        )
        yield _entry("unmerged_turns", advice, number, example)


def _missing_logprobs(rows: FileRows) -> Iterator[Finding]:
    """Find calls with no or fewer log-probabilities than tokens; NaN stands for them."""
    lens, missing = rows.calls.responses.lengths, rows.missing_logprobs

    def reason(row: int) -> str:
        values = tally(int(lens[row] - missing[row]), "value")
        return f"logprobs has {values} for {tally(int(lens[row]), 'response token')}"

    yield from whole_rows(
        "short_logprobs",
        np.flatnonzero((missing > 0) & (missing < lens)),
        reason,
        "write one per response token: if the first is missing, all others are shifted",
    )
    is_missing = (missing == lens) & (lens > 0)
    if not is_missing.all():
        yield from whole_rows(
            "missing_logprobs",
            np.flatnonzero(is_missing),
            lambda _: "it has no logprobs, and other rows have some",
            "write what the sampler returned for all rows, or for none",
        )
