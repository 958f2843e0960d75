"""Episodes of the policy, as columns for a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fastcollate as fc
from grpo.game import MAX_TOKENS, PAD, Game, Task
from policy import Policy


@torch.no_grad()
def play(policy: Policy, tasks: Sequence[Task], luck: Tensor) -> list[Game]:
    """Play games in parallel, all at the same position.

    A game reads its next token if it is known, and samples it otherwise. So nothing is padded.

    Parameters
    ----------
    policy
        The player.
    tasks
        One task per game.
    luck
        Numbers from 0 to 1, (games, MAX_TOKENS), one for each token that may be drawn, so that the
        course of a game does not depend on the others.
    """
    games = [Game(task) for task in tasks]
    past: list[Any] = []
    for position in range(MAX_TOKENS):
        if all(game.is_over for game in games):
            break
        tokens = [
            game.tokens[position] if position < len(game.tokens) else PAD  # the game is over
            for game in games
        ]
        log_probs, past = policy.read(torch.tensor(tokens, device=luck.device), past)
        below = log_probs.exp().cumsum(dim=-1) < luck[:, position, None]
        drawn = below.sum(dim=-1).clamp(max=log_probs.shape[-1] - 1)
        of_drawn = log_probs.gather(-1, drawn[:, None]).squeeze(-1)
        for game, token, logprob in zip(games, drawn.tolist(), of_drawn.tolist(), strict=True):
            if len(game.tokens) == position + 1 and not game.is_over:
                game.say(token, logprob)
    return games


@dataclass
class Turns:
    """The turns of all games, in order; those of a task are consecutive."""

    prompts: list[list[int]] = field(default_factory=list)
    responses: list[list[int]] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)
    uids: list[int] = field(default_factory=list)
    """The number of each turn's task."""
    trajectory_ids: list[int] = field(default_factory=list)
    """The number of each turn's game."""
    is_last_step: list[bool] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    """One number per game."""

    def __len__(self) -> int:
        return len(self.prompts)

    @classmethod
    def of(cls, games: Sequence[Game], samples: int, first: int = 0) -> Turns:
        """Collect the turns of games: `samples` of each task, numbered from `first` on."""
        turns = cls()
        for number, game in enumerate(games, first):
            turns.rewards.append(game.reward)
            for turn in game.turns:
                turns.prompts.append(turn.prompt)
                turns.responses.append(turn.response)
                turns.logprobs.append(turn.logprobs)
                turns.uids.append(number // samples)
                turns.trajectory_ids.append(number)
                turns.is_last_step.append(turn is game.turns[-1])
        return turns

    @classmethod
    def joined(cls, parts: Sequence[Turns]) -> Turns:
        """Concatenate turns."""
        turns = cls()
        for part in parts:
            for name, values in vars(part).items():
                getattr(turns, name).extend(values)
        return turns

    def columns(self, samples: int) -> dict[str, Any]:
        """Return the columns by the argument names of `build_batch` and `put_turns`."""
        return {
            "prompts": self.prompts,
            "responses": self.responses,
            "logprobs": self.logprobs,
            # All tokens of the policy are trained on. In merged rows, tokens of the game have 0.
            "loss_mask": [[1] * len(response) for response in self.responses],
            "advantages": group_advantages(self, samples),
            "uids": self.uids,
            "trajectory_ids": self.trajectory_ids,
            "is_last_step": self.is_last_step,
        }


def group_advantages(turns: Turns, samples: int) -> fc.Ragged:
    """Compare each game with the others of its task, as GRPO does.

    Every token of every turn gets the advantage of its game.
    """
    rewards = np.array(turns.rewards).reshape(-1, samples)
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    per_game = (centred / (rewards.std(axis=1, keepdims=True) + 1e-4)).ravel()
    ends = np.array(turns.is_last_step)
    lens = list(map(len, turns.responses))
    values = np.repeat(per_game[np.cumsum(ends) - ends], lens)
    return fc.Ragged(values, np.cumsum([0, *lens]))
