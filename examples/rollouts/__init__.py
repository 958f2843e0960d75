"""Recorded multi-turn rollouts of an agent at a live Python console; see README.md."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ROLLOUTS = Path(__file__).with_name("rollouts.jsonl.gz")
TOKENIZER = Path(__file__).with_name("tokenizer.json")

PAD_TOKEN_ID = 0


@dataclass
class Rollouts:
    """The turns of all trajectories, as columns with one item per turn.

    The turns of a trajectory are contiguous and in order, and so are the trajectories of a prompt
    group.
    """

    prompts: list[list[int]] = field(default_factory=list)
    responses: list[list[int]] = field(default_factory=list)
    rewards: list[list[float]] = field(default_factory=list)
    loss_mask: list[list[int]] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)
    uids: list[str] = field(default_factory=list)
    trajectory_ids: list[str] = field(default_factory=list)
    is_last_step: list[bool] = field(default_factory=list)
    encodings: list[str] = field(default_factory=list)
    """The start of later prompts: `"tokens"` (the earlier ids) or `"text"` (encoded afresh)."""

    def __len__(self) -> int:
        return len(self.prompts)


def load_rollouts() -> Rollouts:
    """Read the recorded rollouts."""
    rollouts = Rollouts()
    with gzip.open(ROLLOUTS, "rt", encoding="utf-8") as lines:
        for line in lines:
            turn = json.loads(line)
            rollouts.prompts.append(turn["prompt_ids"])
            rollouts.responses.append(turn["response_ids"])
            rollouts.rewards.append(turn["rewards"])
            rollouts.loss_mask.append(turn["loss_mask"])
            rollouts.logprobs.append(turn["logprobs"])
            rollouts.uids.append(turn["uid"])
            rollouts.trajectory_ids.append(turn["trajectory_id"])
            rollouts.is_last_step.append(turn["is_last_step"])
            rollouts.encodings.append(turn["encoding"])
    return rollouts


def load_tokenizer() -> Tokenizer:
    """Read the tokenizer that the rollouts were recorded with (needs `tokenizers`)."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(TOKENIZER))
