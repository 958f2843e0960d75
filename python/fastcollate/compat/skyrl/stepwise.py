"""Merging of turns in place of ``skyrl.train.generators.utils``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from fastcollate._fastcollate import fix_lists
from fastcollate.common.arguments import suggests_names
from fastcollate.common.arrays import describe, read_array
from fastcollate.common.text import show
from fastcollate.plan.merging import merge_turns

Column: TypeAlias = list[Any]
"""One item per turn, or per merged row."""


@suggests_names
def merge_stepwise_output(generator_output: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the turns of step-wise rollouts, as SkyRL's function of this name does.

    A turn joins the row of the turns before it if their prompt and responses are a prefix of its
    prompt, else it begins a row. The results equal SkyRL's value by value. Nothing is logged.

    :func:`fastcollate.build_batch` with ``merge="exact"`` merges and builds the batch in one call,
    and takes less time.

    Parameters
    ----------
    generator_output
        SkyRL's ``GeneratorOutput`` of T turns, which is not changed:

        * ``prompt_token_ids``, ``response_ids``, ``loss_masks``: T lists;
        * ``rewards``: T numbers, or T lists;
        * ``trajectory_ids``: T objects, the same for all turns of a trajectory, which are together;
        * ``is_last_step``: T bools, which alone mark the ends of trajectories; turns after the last
          True are left out;
        * ``rollout_logprobs``, T lists, ``rollout_sample_support``, T arrays (tokens, k), and
          ``stop_reasons``: may be None or missing;
        * any other column, except ``rollout_metrics``, is None, has T items or is a dict of columns
          of T items, and is left out.

        Lists may be tuples, arrays or tensors instead, except lists of rewards.

    Returns
    -------
    dict
        The same keys, with one item for each merged row: the first turn's prompt; the responses of
        all turns and, between them, the observations of the next prompt, where loss masks are 0,
        log-probabilities 0.0 and sample support -1. Rewards are 0.0 there, if the trajectory's
        first is a list; else the reward is the last turn's, as are all other values. The
        lists are new. ``rollout_expert_indices``, ``trajectory_generation_times`` and
        ``trajectory_time_splits`` are None. ``rollout_metrics`` describe the merged rows.

    Raises
    ------
    AssertionError
        ``trajectory_ids`` is missing or None; a trajectory has turns of several ids, or comes back
        after another one; trajectories that follow each other have the same id; no turn is a last
        one, or its flag is truthy and not True; there are ``rollout_expert_indices``,
        ``pixel_values`` or ``image_grid_thw``; a merged row does not have one loss mask value,
        log-probability and reward (if it is a list) for each token of its response; some rows'
        rewards are lists and others' are not.
    KeyError
        A required key is missing.
    IndexError
        A column has fewer items than there are turns.
    TypeError
        ``is_last_step`` or another required column is None or of a wrong type.
    ValueError
        A token id does not fit int64.

    Notes
    -----
    Written against SkyRL 0.4.0: ``merge_stepwise_output``, ``concatenate_generator_outputs`` and
    ``get_rollout_metrics`` of ``skyrl.train.generators.utils``, and ``validate_generator_output``
    of ``skyrl.train.utils.trainer_utils``. As there, values are counted in merged rows: a turn's
    loss mask that is too long makes up for one that is too short. Unlike in SkyRL, prompts may be
    tuples or arrays.
    """
    turns, stops = _find_finished_turns(generator_output)
    _check_ids(turns.get("trajectory_ids"), stops)
    prompts, responses, rewards, loss_masks = (
        _require(turns, key)
        for key in ("prompt_token_ids", "response_ids", "rewards", "loss_masks")
    )
    flags = turns["is_last_step"]
    plan = merge_turns(prompts, responses, is_last_step=list(map(bool, flags)), policy="exact")

    # The rows of an exact plan are runs of turns, each up to its source.
    lasts = plan.sources.tolist()
    rows = [range(before + 1, last + 1) for before, last in pairwise([-1, *lasts])]
    observed = _observe(prompts, responses)
    rewarded = [isinstance(rewards[start], list) for start in [0, *stops[:-1]]]
    logprobs, stop_reasons = turns.get("rollout_logprobs"), turns.get("stop_reasons")
    support = turns.get("rollout_sample_support")
    merged: dict[str, Any] = {
        "prompt_token_ids": [list(prompts[row[0]]) for row in rows],
        "response_ids": [
            [*prompts[row[-1]][len(prompts[row[0]]) :], *responses[row[-1]]] for row in rows
        ],
        "rewards": [
            _join(rewards, row, observed, 0.0) if rewarded[trajectory] else _number(rewards, row)
            for row, trajectory in zip(rows, plan.trajectories.tolist(), strict=True)
        ],
        "loss_masks": [_join(loss_masks, row, observed, 0) for row in rows],
        "stop_reasons": stop_reasons and [stop_reasons[last] for last in lasts],
        "rollout_logprobs": logprobs and [_join(logprobs, row, observed, 0.0) for row in rows],
        "rollout_expert_indices": None,
        "rollout_sample_support": support and [_support(support, row, observed) for row in rows],
        "trajectory_generation_times": None,
        "trajectory_time_splits": None,
        "trajectory_ids": [turns["trajectory_ids"][last] for last in lasts],
        "is_last_step": [flags[last] for last in lasts],
    }
    _check_values(merged, rows)
    _check_trajectories(merged, rows)
    merged["rollout_metrics"] = rollout_metrics(
        merged["response_ids"], merged["rewards"], merged["loss_masks"]
    )
    return merged


def _find_finished_turns(generator_output: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Return all columns up to the last turn that ends a trajectory, and the trajectory ends."""
    if not isinstance(generator_output, Mapping):
        found = describe(generator_output)
        raise TypeError(f"generator_output is {found}; pass a dict with a list for each column")
    count = len(generator_output["response_ids"])
    for key in ("rollout_expert_indices", "pixel_values", "image_grid_thw"):
        if generator_output.get(key) is not None:
            raise AssertionError(
                f"{key} not supported: SkyRL merges no turns that have it; "
                "call fastcollate.build_batch with merge instead"
            )
    flags = _items("is_last_step", generator_output["is_last_step"], count)
    stops = [turn + 1 for turn, flag in enumerate(flags) if flag]
    if not stops:
        raise AssertionError(
            f"is_last_step is true for none of {count} turns; pass True for the last turn of every "
            "trajectory"
        )
    turns = {
        key: None if column is None else _items(key, column, stops[-1])
        for key, column in generator_output.items()
        if key != "rollout_metrics"
    }
    return turns, stops


def _items(key: str, column: Any, count: int) -> Any:
    """Return the first `count` items of a column, or of a dict's columns; error if too short."""
    if isinstance(column, Mapping):
        return {name: _items(f"{key}[{name!r}]", each, count) for name, each in column.items()}
    try:
        return [column[turn] for turn in range(count)]
    except IndexError as error:
        raise IndexError(
            f"{key} has {len(column)} items, but there are {count} turns; pass one item per turn"
        ) from error
    except (KeyError, TypeError) as error:
        kind = KeyError if isinstance(error, KeyError) else TypeError
        raise kind(
            f"{key} is {show(column)}; pass a list of one item for each of {count} turns"
        ) from error


def _require(turns: Mapping[str, Any], key: str) -> Column:
    if turns[key] is None:
        raise TypeError(f"{key} is None; pass a list of one item per turn")
    column: Column = turns[key]
    return column


def _observe(prompts: Column, responses: Column) -> list[int]:
    """Return the number of observation tokens in each turn's prompt."""
    lens = [len(p) + len(r) for p, r in zip(prompts, responses, strict=True)]
    return [len(prompt) - before for prompt, before in zip(prompts, [0, *lens[:-1]], strict=True)]


def _join(column: Column, row: range, observed: Sequence[int], fill: float) -> list[Any]:
    """Join the values of a row's turns, with the fill for observations between them."""
    values = list(column[row[0]])
    for turn in row[1:]:
        values.extend([fill] * observed[turn])
        values.extend(column[turn])  # `+=` would broadcast an array
    return values


def _support(column: Column, row: range, observed: Sequence[int]) -> Any:
    """Join the sample support of a row's turns, (tokens, k), with -1 between them."""
    blocks = [column[row[0]]]
    for turn in row[1:]:
        blocks += [np.full((observed[turn], blocks[0].shape[1]), -1, np.int32), column[turn]]
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def _number(rewards: Column, row: range) -> Any:
    """Return the reward of a row's last turn, in a trajectory whose first is a number."""
    reward = rewards[row[-1]]
    if isinstance(reward, list):
        return list(reward)  # its length is checked later
    try:
        float(reward)
    except TypeError as error:
        raise TypeError(
            f"rewards[{row[-1]}] is {show(reward)}; pass numbers, or lists, for all turns"
        ) from error
    return reward


def _check_ids(ids: Column | None, stops: Sequence[int]) -> None:
    """Check that all turns of a trajectory have its id."""
    if ids is None:
        raise AssertionError("trajectory_ids is None or missing; pass one per turn")
    for start, stop in pairwise([0, *stops]):
        for turn in range(start, stop):
            # An id that is not equal to itself, as NaN, is an error here too.
            if not ids[turn] == ids[start]:
                raise AssertionError(
                    f"trajectory_ids[{turn}] is {show(ids[turn])}, but its trajectory, "
                    f"which begins at turn {start}, is {show(ids[start])}; pass one id for "
                    "all turns of a trajectory"
                )


def _check_values(merged: Mapping[str, Any], rows: Sequence[range]) -> None:
    """Check that there is one value per response token, and one kind of rewards."""
    rewards = merged["rewards"]
    is_list = isinstance(rewards[0], list)
    for row, reward in zip(rows, rewards, strict=True):
        if isinstance(reward, list) != is_list:
            raise AssertionError(
                f"{_name('rewards', row)} are {'numbers' if is_list else 'lists'}, "
                f"but others are {'lists' if is_list else 'numbers'}; pass one kind for all turns"
            )
    per_token = {"loss_masks": merged["loss_masks"]}
    for key in ("rollout_logprobs", "rollout_sample_support"):
        if merged[key] is not None:
            per_token[key] = merged[key]
    if is_list:
        per_token["rewards"] = rewards
    for key, column in per_token.items():
        for row, values, response in zip(rows, column, merged["response_ids"], strict=True):
            if len(values) != len(response):
                raise AssertionError(
                    f"{_name(key, row)} have {len(values)} items when merged, "
                    f"but the response has {len(response)} tokens; pass one per response token"
                )


def _check_trajectories(merged: Mapping[str, Any], rows: Sequence[range]) -> None:
    """Check that trajectories are contiguous, and that only their last row is a last step."""
    names = [
        trajectory.to_string() if hasattr(trajectory, "to_string") else str(trajectory)
        for trajectory in merged["trajectory_ids"]
    ]
    flags = merged["is_last_step"]
    seen: set[str] = set()
    for row, name, following, flag in zip(rows, names, [*names[1:], None], flags, strict=True):
        if name in seen:
            raise AssertionError(
                f"trajectory {name!r} comes again at turn {row[0]}, after other trajectories; "
                "pass the turns of a trajectory next to each other"
            )
        is_last = name != following
        if (flag is True) != is_last:
            raise AssertionError(
                f"is_last_step[{row[-1]}] is {flag!r}, but trajectory {name!r} "
                f"{'ends' if is_last else 'goes on'} there; pass {is_last}"
            )
        if is_last:
            seen.add(name)


def _name(key: str, row: range) -> str:
    return f"{key}[{row[0]}:{row[-1] + 1}]"


@suggests_names
def rollout_metrics(
    responses: Sequence[Sequence[int]], rewards: Sequence[Any], loss_masks: Sequence[Any]
) -> dict[str, float]:
    """Count the tokens of rows: all, in rows with a reward, and the ones that train.

    Parameters
    ----------
    responses
        Token ids of each row.
    rewards
        A number, or a list of numbers, for each row.
    loss_masks
        One number per token of each row. A turn is a span of tokens whose mask is not 0.

    Returns
    -------
    dict[str, float]
        SkyRL's metrics that need no other inputs, in its order.
    """
    tokens = np.array([len(response) for response in responses])
    totals = np.array(
        [
            float(np.sum(fix_lists(reward)) if isinstance(reward, list) else reward)
            for reward in rewards
        ]
    )
    trained = np.array([sum(mask) for mask in loss_masks])
    metrics = {
        "generate/min_num_tokens": tokens.min(),
        "generate/max_num_tokens": tokens.max(),
        "generate/avg_num_tokens": tokens.mean(),
        "generate/std_num_tokens": tokens.std(),
        "generate/avg_tokens_non_zero_rewards": _mean(tokens[totals > 0]),
        "generate/avg_tokens_zero_rewards": _mean(tokens[totals == 0]),
        "generate/avg_assistant_tokens": trained.mean(),
        "generate/min_assistant_tokens": trained.min(),
        "generate/max_assistant_tokens": trained.max(),
        "generate/std_assistant_tokens": trained.std(),
    }
    turns = np.concatenate([_turn_lengths(mask) for mask in loss_masks])
    if len(turns) > 0:
        metrics |= {
            "generate/tokens_per_turn_mean": turns.mean(),
            "generate/tokens_per_turn_std": turns.std(),
            "generate/tokens_per_turn_max": turns.max(),
        }
    return {key: value.item() for key, value in metrics.items()}


def _mean(counts: Any) -> Any:
    return counts.mean() if len(counts) > 0 else np.float64(0)


def _turn_lengths(mask: Any) -> Any:
    """Return the lengths of a mask's nonzero spans."""
    edges = np.flatnonzero(np.diff(read_array(mask) != 0, prepend=False, append=False))
    return edges[1::2] - edges[::2]
