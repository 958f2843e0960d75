"""verl's batches of rollouts and their policy loss, row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any


def rollout_loops(
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    loss_masks: Sequence[Sequence[int]],
    rewards: Sequence[float],
    logprobs: Sequence[Sequence[float]],
    pad: int,
) -> dict[str, list[list[Any]]]:
    """Pad rollouts as verl's agent loop does, for one score per row.

    Returns
    -------
    dict[str, list[list]]
        A list of rows for each key.
    """
    rows: list[dict[str, list[Any]]] = []
    wide, long = max(map(len, prompts)), max(map(len, responses))
    columns = zip(prompts, responses, loss_masks, rewards, logprobs, strict=True)
    for prompt, response, mask, reward, log_prob in columns:
        before, after = wide - len(prompt), long - len(response)
        attention = [0] * before + [1] * (len(prompt) + len(response)) + [0] * after
        row: dict[str, list[Any]] = {
            "prompts": [pad] * before + list(prompt),
            "responses": list(response) + [pad] * after,
            "attention_mask": attention,
            "position_ids": [max(sum(attention[: at + 1]) - 1, 0) for at in range(wide + long)],
            "response_mask": list(mask) + [0] * after,
            "rm_scores": [0.0] * (len(response) - 1) + [reward] + [0.0] * after,
            "rollout_log_probs": list(log_prob) + [0.0] * after,
        }
        row["input_ids"] = row["prompts"] + row["responses"]
        rows.append(row)
    return {key: [row[key] for row in rows] for key in rows[0]}


def grpo_loops(scores: Sequence[float], uids: Sequence[object]) -> list[float]:
    """Return verl's GRPO advantage of each row."""
    advantages = []
    for score, uid in zip(scores, uids, strict=True):
        group = [each for each, other in zip(scores, uids, strict=True) if other == uid]
        mean, deviation = (fmean(group), stdev(group)) if len(group) > 1 else (0.0, 1.0)
        advantages.append((score - mean) / (deviation + 1e-6))
    return advantages


def clipped_losses(
    old: Sequence[float], new: Sequence[float], mask: Sequence[int], advantage: float
) -> list[float]:
    """Return verl's clipped losses of the trained tokens of a row, clipped at 0.2 and 3."""
    losses = []
    for old_one, new_one, trains in zip(old, new, mask, strict=True):
        if not trains:
            continue
        ratio = math.exp(new_one - old_one)
        loss = max(-advantage * ratio, -advantage * min(max(ratio, 0.8), 1.2))
        losses.append(min(loss, -3 * advantage) if advantage < 0 else loss)
    return losses
