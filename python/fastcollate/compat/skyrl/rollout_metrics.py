"""Metrics of rollouts: ``get_rollout_metrics`` of ``skyrl.train.generators.utils``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastcollate._fastcollate import fix_lists
from fastcollate.common.arrays import read_array


def rollout_metrics(
    responses: Sequence[Sequence[int]], rewards: Sequence[Any], loss_masks: Sequence[Any]
) -> dict[str, float]:
    """Count the tokens of rows: all, those of rows with a reward, those that train.

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
