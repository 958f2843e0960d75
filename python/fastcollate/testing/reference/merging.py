"""Merging turns that share a prefix, token by token."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fastcollate.common.row_columns import VALUES
from fastcollate.plan.breaks import AROUND, Break
from fastcollate.plan.merge import Merge
from fastcollate.testing.reference.fields import CAPTURED
from fastcollate.testing.reference.loops import build_batch_loops
from fastcollate.testing.reference.moving import (
    Origin,
    join_captured,
    move_field,
    move_values,
)
from fastcollate.testing.reference.reading import Field, Rows, is_number, readable, rows_of
from fastcollate.testing.reference.spreading import fill, is_spread, numbers_as_field, spread_merged


class MergedRow(NamedTuple):
    """A row, made of one turn or of several."""

    source: int
    """The last turn in it."""
    trajectory: int
    prompt: list[int]
    response: list[int]
    origins: list[Origin]
    """One for each token of the response; None for observations and masked sampled tokens."""
    turns: list[int]
    """All turns in it."""
    begins: list[tuple[int, int, int]]
    """Each of them, its number of tokens, and how many of them the row begins with."""


class MergedTurns(NamedTuple):
    """The result of `merge_turns_loops`."""

    rows: list[MergedRow]
    breaks: list[Break]
    trajectories: list[list[int]]
    """The turns of each."""
    dropped: list[int]
    """Trajectories without a row."""
    masked_tokens: int
    """Sampled tokens that are in no row although their turn is, in dropped trajectories too."""
    response_lens: list[int]
    """Of all turns."""
    merge_rewards: str
    """As `fastcollate.merge_turns`."""


@dataclasses.dataclass
class _Group:
    """Turns that form one row so far."""

    prompt_len: int
    """Tokens of the first turn's prompt."""
    last_prompt_len: int
    """Tokens of the last turn's prompt, after which its response starts."""
    last_turn: int
    tokens: list[int]
    origins: list[Origin]
    """One for each of the tokens."""
    turns: list[int]
    lens: dict[int, int] = dataclasses.field(default_factory=dict)
    """Tokens of each turn."""
    cuts: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    """Turns that were realigned, and the tokens that they have in common with earlier ones."""


def merge_turns_loops(
    prompts: Rows,
    responses: Rows,
    *,
    trajectory_ids: Sequence[Any] | None = None,
    is_last_step: Sequence[bool] | None = None,
    policy: str | Merge = "exact",
    loss_mask: Rows | None = None,
    drop_untrainable: bool = False,
    allow_unfinished: bool = False,
) -> MergedTurns:
    """Find the turns of each row, by comparing all of their tokens.

    Parameters
    ----------
    prompts, responses, trajectory_ids, is_last_step, policy, loss_mask, drop_untrainable
        As in `fastcollate.merge_turns`.
    allow_unfinished
        Ignored: it makes no difference for valid input.

    Returns
    -------
    MergedTurns
        The rows with their tokens and the origin of each, and the turns that did not fit.
    """
    rules = policy if isinstance(policy, Merge) else Merge(policy)  # type: ignore[arg-type]
    prompt_ids, response_ids = _as_lists(prompts), _as_lists(responses)
    trajectories = _trajectories(len(prompt_ids), trajectory_ids, is_last_step)
    weights = None if loss_mask is None else [readable(row) for row in rows_of(loss_mask)]
    rows: list[MergedRow] = []
    breaks: list[Break] = []
    dropped: list[int] = []
    masked_tokens = 0
    for trajectory, turns in enumerate(trajectories):
        groups, of_trajectory = _group(prompt_ids, response_ids, trajectory, turns, rules)
        breaks += of_trajectory
        origins = [origin for group in groups for origin in group.origins if origin is not None]
        masked_tokens += sum(len(response_ids[turn]) for turn in turns) - len(origins)
        trains = [weights is None or weights[turn][position] != 0 for turn, position in origins]
        if drop_untrainable and not any(trains):
            dropped.append(trajectory)
            continue
        for group in sorted(groups, key=lambda group: group.last_turn):
            n, tokens = group.prompt_len, group.tokens
            streams = tokens[:n], tokens[n:], group.origins[n:]
            begins = [
                (turn, count, min([count, *(end for later, end in group.cuts if later > turn)]))
                for turn, count in group.lens.items()
            ]
            rows.append(MergedRow(group.last_turn, trajectory, *streams, group.turns, begins))
    response_lens = list(map(len, response_ids))
    found = rows, breaks, trajectories, dropped, masked_tokens
    return MergedTurns(*found, response_lens, rules.rewards)


def _group(
    prompts: list[list[int]],
    responses: list[list[int]],
    trajectory: int,
    turns: list[int],
    rules: Merge,
) -> tuple[list[_Group], list[Break]]:
    """Find the groups of one trajectory, in the order of their first turns."""
    groups: list[_Group] = []
    breaks: list[Break] = []
    for turn in turns:
        prompt, response = prompts[turn], responses[turn]
        candidates = groups if rules.policy == "branch" else groups[-1:]
        group = _longest_prefix(candidates, prompt)
        if group is not None:
            group.origins += [None] * (len(prompt) - len(group.tokens))
        elif groups:
            last = next(group for group in groups if group.last_turn == turn - 1)
            position = _first_difference(last.tokens, prompt)
            joins = rules.policy == "realign" and _realigns(last, position, response, rules)
            breaks.append(_break(turn, trajectory, last, prompt, position, joins))
            if joins:
                group = last
                group.cuts.append((turn, position))
                group.origins = _realign(last, position, prompt, responses, rules.mask_drift)
        if group is None:
            group = _Group(len(prompt), 0, 0, [], [None] * len(prompt), [])
            groups.append(group)
        group.last_prompt_len, group.last_turn = len(prompt), turn
        group.turns.append(turn)
        group.tokens = [*prompt, *response]
        group.lens[turn] = len(group.tokens)
        group.origins += [(turn, position) for position in range(len(response))]
    return groups, breaks


def _as_lists(column: Rows) -> list[list[int]]:
    return [[int(token) for token in readable(row)] for row in rows_of(column)]


def _trajectories(
    turns: int, ids: Sequence[Any] | None, flags: Sequence[bool] | None
) -> list[list[int]]:
    """Split the turns where the id changes or, without ids, after each last step."""
    trajectories: list[list[int]] = []
    for turn in range(turns):
        if ids is not None:
            continues = turn > 0 and ids[turn] == ids[turn - 1]
        else:
            continues = turn > 0 and not (flags is not None and flags[turn - 1])
        if not continues:
            trajectories.append([])
        trajectories[-1].append(turn)
    return trajectories


def _longest_prefix(groups: list[_Group], prompt: list[int]) -> _Group | None:
    """Find the group that a turn joins; the first of equally long ones."""
    fitting = [group for group in groups if prompt[: len(group.tokens)] == group.tokens]
    return max(fitting, key=lambda group: len(group.tokens), default=None)


def _first_difference(tokens: list[int], prompt: list[int]) -> int:
    """Find the first position at which a prompt differs from tokens, or its end."""
    same = [a == b for a, b in zip(tokens, prompt, strict=False)]
    return (*same, False).index(False)


def _realigns(group: _Group, position: int, response: list[int], rules: Merge) -> bool:
    """Return True if a turn that differs from its group still joins it."""
    if position < group.prompt_len:
        return False
    sizes = {"response": len(response), "tail": len(group.tokens) - position, "span": -1}
    if rules.fork_threshold is not None and sizes[rules.mask_drift] >= rules.fork_threshold:
        return False
    is_in_last_response = position >= group.last_prompt_len
    return is_in_last_response or len(group.tokens) - position <= rules.max_drift_tokens


def _realign(
    group: _Group, position: int, prompt: list[int], responses: list[list[int]], mask_drift: str
) -> list[Origin]:
    """Find the origins of the tokens of a prompt that differs from its group."""
    origins = group.origins[:position]
    origins += [None] * (len(prompt) - position)
    differing = group.origins[position]
    if differing is None or mask_drift == "tail":
        return origins
    turn, first = differing
    if mask_drift == "response":
        return [None if origin is None or origin[0] >= turn else origin for origin in origins]
    sampled = responses[turn][first:]
    for length in range(len(sampled), 0, -1):
        suffix = sampled[len(sampled) - length :]
        for start in range(position, len(prompt)):
            if prompt[start : start + length] == suffix:
                for offset in range(length):
                    origins[start + offset] = (turn, len(responses[turn]) - length + offset)
                return origins
    return origins


def _break(
    turn: int, trajectory: int, group: _Group, prompt: list[int], position: int, realigned: bool
) -> Break:
    ends = position == len(prompt)
    is_drift = position >= group.last_prompt_len or realigned
    around = slice(max(0, position - AROUND), position + AROUND + 1)
    return Break(
        turn,
        trajectory,
        position,
        expected=group.tokens[position],
        found=None if ends else prompt[position],
        kind="shorter" if ends else "drift" if is_drift else "diverged",
        realigned=realigned,
        expected_ids=tuple(group.tokens[around]),
        found_ids=tuple(prompt[around]),
    )


def merge_columns_loops(
    merged: MergedTurns,
    *,
    rewards: Field | None = None,
    advantages: Field | None = None,
    fields: Mapping[str, Any] | None = None,
    **columns: Any,
) -> dict[str, Any]:
    """Merge every column of a batch into plain lists, one item per row.

    Parameters
    ----------
    merged
        The turns of each row, and their tokens.
    rewards, advantages, fields
        As `fastcollate.build_batch`, with one item per turn.
    **columns
        ``loss_mask`` and ``logprobs``; and sequences of one object per turn: ``uids``,
        ``trajectory_ids``, ``is_last_step``. They may be None.

    Returns
    -------
    dict[str, object]
        ``prompts``, ``responses`` and of the others those that are not None.

    Raises
    ------
    ValueError
        If rewards are one number per turn, and a row has no sampled token to put it on, or a number
        would be dropped.
    """
    made: dict[str, Any] = {
        "prompts": [row.prompt for row in merged.rows],
        "responses": [row.response for row in merged.rows],
    }
    advantages, fields = numbers_as_field(advantages, fields)
    if rewards is not None and is_number(rows_of(rewards)[0]):
        numbers = [
            _merge_number(row, rows_of(rewards), merged.merge_rewards) for row in merged.rows
        ]
        made["rewards"] = list(map(_last_number, merged.rows, numbers))
        rewards = None
    columns |= {"rewards": rewards, "advantages": advantages}
    for name, column in columns.items():
        if column is not None and name in VALUES:
            made[name] = move_values(merged.rows, rows_of(column), 0.0)
        elif column is not None:
            made[name] = [column[row.source] for row in merged.rows]
    if fields is not None:
        made["fields"] = {key: _merge_field(merged, field) for key, field in fields.items()}
    return made


def _merge_number(row: MergedRow, numbers: Any, rule: str) -> Any:
    """Combine the numbers of a row's turns."""
    if rule == "sum" and len(row.turns) > 1:
        total = float(numbers[row.turns[0]])
        for turn in row.turns[1:]:
            total += float(numbers[turn])
        return total
    for turn in row.turns:
        if rule == "error" and turn != row.source and float(numbers[turn]) != 0:
            raise ValueError(f"the number of turn {turn} would be dropped")
    return numbers[row.source]


def _last_number(row: MergedRow, number: Any) -> list[Any]:
    """Put a number on the last token of a row that was sampled."""
    sampled = [position for position, origin in enumerate(row.origins) if origin is not None]
    if not sampled and number != 0:
        raise ValueError(f"the row of turn {row.source} has no token to put {number} on")
    values: list[Any] = [0.0] * len(row.origins)
    if sampled:
        values[sampled[-1]] = number
    return values


def _merge_field(merged: MergedTurns, field: Any) -> Any:
    if is_spread(field):
        return spread_merged(field, merged.rows)
    if type(field).__name__ in CAPTURED:
        return join_captured(field, merged.rows)
    if type(field).__name__ == "Field":
        lens = list(merged.response_lens)
        if field.align == "sequence":  # no other rows are read
            for row in merged.rows:
                lens[row.source] = len(row.prompt) + len(row.response)
        field = fill(field, lens)
    return move_field(field, merged.rows)


def build_merged_batch_loops(
    prompts: Rows,
    responses: Rows,
    *,
    merge: str | Mapping[str, Any] = "exact",
    trajectory_ids: Sequence[Any] | None = None,
    is_last_step: Sequence[bool] | None = None,
    uids: Any | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Build a batch in two steps: merge every column into lists, then write these token by token.

    Parameters
    ----------
    prompts, responses
        As `fastcollate.build_batch`, with one item per turn.
    merge
        A policy, or arguments of `merge_turns_loops`.
    trajectory_ids, is_last_step
        Ids of trajectories, flags, or both.
    uids
        Ignored: they have no output.
    **options
        ``rewards``, ``loss_mask``, ``logprobs``, ``advantages`` and ``fields``, with one item per
        turn, and more arguments of `build_batch_loops`.

    Returns
    -------
    dict[str, object]
        As `build_batch_loops`, with one row per merged row.

    Raises
    ------
    ValueError
        If rewards are one number per turn, and a row has no sampled token to put it on, or a number
        would be dropped.
    """
    arguments = merge if isinstance(merge, dict) else {"policy": merge}
    merged = merge_turns_loops(
        prompts, responses, trajectory_ids=trajectory_ids, is_last_step=is_last_step, **arguments
    )
    given = {name: options.pop(name, None) for name in (*VALUES, "fields")}
    columns = merge_columns_loops(merged, **given)
    # Every sampled token that is kept trains; observations do not.
    sampled = [[int(origin is not None) for origin in row.origins] for row in merged.rows]
    return build_batch_loops(**columns, sampled=sampled, **options)
