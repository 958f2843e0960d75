"""Port of SkyRL's merge of the turns of a trajectory, on lists."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

KEYS = (
    *("prompt_token_ids", "response_ids", "rewards", "loss_masks", "stop_reasons"),
    *("rollout_logprobs", "rollout_expert_indices", "rollout_sample_support"),
    *("trajectory_generation_times", "trajectory_time_splits", "trajectory_ids", "is_last_step"),
    "rollout_metrics",
)
"""Keys of a merged output, in this order."""

REFUSED = ("rollout_expert_indices", "pixel_values", "image_grid_thw")


def merge_stepwise_output(generator_output: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of SkyRL's function of this name, turn by turn.

    The tokens so far are joined, cut out of the next prompt and compared at every turn, as there:
    this is the peer in the benchmarks.

    Parameters
    ----------
    generator_output
        For each of T turns ``prompt_token_ids``, ``response_ids`` and ``loss_masks``, lists;
        ``rewards``, lists or numbers; ``trajectory_ids`` and ``is_last_step``; and if there are any
        ``rollout_logprobs``, lists, ``rollout_sample_support``, arrays (tokens, k), and
        ``stop_reasons``. A trajectory ends where ``is_last_step``
        is true; turns after the last such one are left out.

    Returns
    -------
    dict[str, object]
        The same for the merged rows, all lists new, with their own ``rollout_metrics`` and without
        other keys; of `KEYS`, those that are not named here are None. Between the turns of a row
        are the tokens of the later prompt that the earlier turn has not, with mask 0,
        log-probability 0.0, sample support -1 and, where the trajectory's first reward is a list,
        reward 0.0. All else is the last turn's.

    Raises
    ------
    AssertionError
        If no trajectory ends; without trajectory ids; where they differ in a trajectory, are the
        same in the next one or come back later; with experts or images; if the values of a merged
        row are not as many as its response's tokens, or rewards are lists in some rows only; if a
        true flag is not True.
    KeyError, IndexError, TypeError
        If something else is missing, too short, or None where it may not be.

    Notes
    -----
    SkyRL 0.4.0, ``skyrl/train/generators/utils.py`` and
    ``validate_generator_output`` of ``skyrl/train/utils/trainer_utils.py``.
    """
    responses = generator_output["response_ids"]
    if any(generator_output.get(key) is not None for key in REFUSED):
        raise AssertionError(f"none of {REFUSED} can be merged")
    is_last_step = generator_output["is_last_step"]
    stops = [turn + 1 for turn in range(len(responses)) if is_last_step[turn]]
    if not stops:
        raise AssertionError("no trajectory has a last step")

    def finished(column: Any) -> Any:
        if isinstance(column, dict):
            return {name: finished(each) for name, each in column.items()}
        return None if column is None else [column[turn] for turn in range(stops[-1])]

    turns = {k: finished(each) for k, each in generator_output.items() if k != "rollout_metrics"}
    rows = [row for start, stop in pairwise([0, *stops]) for row in _merged(turns, start, stop)]
    merged: dict[str, Any] = {
        key: [row[key] for row in rows] if key in rows[0] else None for key in KEYS
    }
    _check_values(merged)
    _check_trajectories(merged["trajectory_ids"], merged["is_last_step"])
    merged["rollout_metrics"] = _metrics(merged)
    return merged


def _metrics(merged: Mapping[str, Any]) -> dict[str, float]:
    """Count tokens, those of rows with and without reward, those that train, and turns."""
    tokens = [len(response) for response in merged["response_ids"]]
    rewards = [
        sum(map(float, each)) if isinstance(each, list) else float(each)
        for each in merged["rewards"]
    ]
    trained = [sum(mask) for mask in merged["loss_masks"]]
    turns = []
    for mask in merged["loss_masks"]:
        length = 0
        for value in [*mask, 0]:
            if value != 0:
                length += 1
            elif length:
                turns.append(length)
                length = 0
    with_reward = [count for count, total in zip(tokens, rewards, strict=True) if total > 0]
    without = [count for count, total in zip(tokens, rewards, strict=True) if total == 0]
    metrics = {
        "generate/min_num_tokens": min(tokens),
        "generate/max_num_tokens": max(tokens),
        "generate/avg_num_tokens": statistics.fmean(tokens),
        "generate/std_num_tokens": statistics.pstdev(map(float, tokens)),
        "generate/avg_tokens_non_zero_rewards": statistics.fmean(with_reward or [0]),
        "generate/avg_tokens_zero_rewards": statistics.fmean(without or [0]),
        "generate/avg_assistant_tokens": statistics.fmean(trained),
        "generate/min_assistant_tokens": min(trained),
        "generate/max_assistant_tokens": max(trained),
        "generate/std_assistant_tokens": statistics.pstdev(map(float, trained)),
    }
    if turns:
        metrics["generate/tokens_per_turn_mean"] = statistics.fmean(turns)
        metrics["generate/tokens_per_turn_std"] = statistics.pstdev(map(float, turns))
        metrics["generate/tokens_per_turn_max"] = max(turns)
    return metrics


def _merged(turns: Mapping[str, Any], start: int, stop: int) -> Iterator[dict[str, Any]]:
    """Give the rows of one trajectory."""
    ids = turns.get("trajectory_ids")
    if ids is None:
        raise AssertionError("there are no trajectory_ids")
    if not all(ids[turn] == ids[start] for turn in range(start, stop)):
        raise AssertionError(f"turns {start} to {stop - 1} are of more than one trajectory")

    observed: dict[str, Any] = {"response_ids": None, "loss_masks": 0}
    if turns.get("rollout_logprobs") is not None:
        observed["rollout_logprobs"] = 0.0
    if turns.get("rollout_sample_support") is not None:
        observed["rollout_sample_support"] = [-1] * len(turns["rollout_sample_support"][start][0])
    if isinstance(turns["rewards"][start], list):
        observed["rewards"] = 0.0

    row: dict[str, Any] = {}
    for turn in range(start, stop):
        prompt = turns["prompt_token_ids"][turn]
        tokens = row["prompt_token_ids"] + row["response_ids"] if row else None
        if tokens is not None and tokens == prompt[: len(tokens)]:
            observation = prompt[len(tokens) :]
            row["response_ids"].extend(observation)
            for key, value in observed.items():
                if value is not None:
                    row[key].extend([value] * len(observation))
                row[key].extend(turns[key][turn])
        else:
            if row:
                yield row
            row = {key: list(turns[key][turn]) for key in ("prompt_token_ids", *observed)}
        for key in ("rewards", "stop_reasons", "trajectory_ids", "is_last_step"):
            if key not in observed and turns.get(key) is not None:
                row[key] = turns[key][turn]
    yield row


def _check_values(merged: Mapping[str, Any]) -> None:
    """Check that each row has as many values as response tokens, and all the same rewards."""
    for row, response in enumerate(merged["response_ids"]):
        reward = merged["rewards"][row]
        per_token = {"loss_masks": merged["loss_masks"][row]}
        if merged["rollout_logprobs"] is not None:
            per_token["rollout_logprobs"] = merged["rollout_logprobs"][row]
        if isinstance(reward, list):
            per_token["rewards"] = reward
        else:
            float(reward)  # the metrics need a number
        for key, values in per_token.items():
            if len(values) != len(response):
                raise AssertionError(f"{len(values)} {key} for {len(response)} tokens in row {row}")
    if len({isinstance(reward, list) for reward in merged["rewards"]}) > 1:
        raise AssertionError("some rewards are lists, some are not")


def _check_trajectories(ids: list[Any], is_last_step: list[Any]) -> None:
    """Check that a trajectory's rows are together, and its last one is flagged, by True itself."""
    names = [
        trajectory.to_string() if hasattr(trajectory, "to_string") else str(trajectory)
        for trajectory in ids
    ]
    firsts = {row for row in range(len(ids)) if row == 0 or names[row] != names[row - 1]}
    if len({names[row] for row in firsts}) < len(firsts):
        raise AssertionError("a trajectory's turns are not all together")
    for row, flag in enumerate(is_last_step):
        is_last = row + 1 == len(ids) or row + 1 in firsts
        if (flag is True) != is_last:
            raise AssertionError(f"row {row} of {names[row]!r} has is_last_step {flag!r}")
