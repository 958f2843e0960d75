"""The policy as one of several equal replicas, and its training on batches."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import fastcollate as fc
from grpo.game import MAX_TOKENS, VOCABULARY, draw_tasks
from grpo.options import Options
from grpo.playing import Turns, play
from grpo.reporting import Clock
from policy import Policy, response_log_probs

CLIP = 0.2
MAX_GRADIENT = 1.0


def policy_loss(log_probs: Tensor, batch: fc.Batch, tokens: float) -> Tensor:
    """Return the batch's share of GRPO's loss: clipped ratios, averaged over `tokens`."""
    # Selected first: beside untrained tokens exp may overflow, and 0 * inf is NaN.
    trained = batch.loss_mask != 0
    advantages = batch.advantages[trained]
    ratio = (log_probs - batch.logprobs)[trained].exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    losses = -torch.minimum(ratio * advantages, clipped * advantages)
    loss: Tensor = (losses * batch.loss_mask[trained]).sum() / tokens
    return loss


class Learner:
    """A policy that plays and learns.

    Parameters
    ----------
    options
        Options of the run.
    rank
        Number of this learner among ``options.ranks``. More than one rank needs torch's process
        group.
    """

    def __init__(self, options: Options, rank: int = 0) -> None:
        self.options, self.rank = options, rank
        self.timer = fc.planning.StepTimer()
        torch.manual_seed(options.seed)
        policy = Policy(len(VOCABULARY), MAX_TOKENS)
        self.policy = policy.to(options.device, getattr(torch, options.dtype))
        self.model = self.policy if options.ranks == 1 else DistributedDataParallel(self.policy)
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(), options.learning_rate, betas=(0.9, 0.95), weight_decay=0
        )

    def play(self, step: int) -> Turns:
        """Play this rank's part of a step's games: all those of its tasks."""
        options = self.options
        rng = np.random.default_rng((options.seed, step))
        tasks = draw_tasks(rng, options.prompts)
        games = [task for task in tasks for _ in range(options.samples)]
        luck = torch.from_numpy(rng.random((len(games), MAX_TOKENS)))
        count = len(games) // options.ranks
        mine = slice(self.rank * count, (self.rank + 1) * count)
        played = play(self.policy, games[mine], luck[mine].to(options.device))
        return Turns.of(played, options.samples, first=mine.start)

    def learn_all(
        self, batches: Iterable[fc.Batch], tokens: Iterable[float], clock: Clock
    ) -> tuple[list[float], int]:
        """Take a step on each batch; later batches are made meanwhile.

        Parameters
        ----------
        batches
            This rank's rows of each mini-batch.
        tokens
            Number of trained tokens of each mini-batch, on all ranks.
        clock
            Measures times.

        Returns
        -------
        losses : list[float]
            One per mini-batch, of all ranks together.
        positions : int
            Number of positions that the model read, on all ranks together.
        """
        shares: list[Tensor] = []
        positions = 0
        made = clock.iterate("collating", batches)
        device = self.options.device
        prefetched = (
            fc.prefetch(made, device)
            if self.options.prefetch
            else nullcontext(batch.to(device) for batch in made)
        )
        with prefetched as ready:
            waited = clock.iterate("waiting for batches", ready)
            for batch, count in zip(waited, tokens, strict=True):
                with clock.measure("learning"):
                    shares.append(self.learn(batch, count))
                positions += batch.input_ids.numel()
        shares.append(torch.tensor(float(positions), device=device))
        totals = torch.stack(shares)
        if self.options.ranks > 1:
            dist.all_reduce(totals)
        *losses, total = totals.tolist()
        return losses, int(total)

    def learn(self, batch: fc.Batch, tokens: float) -> Tensor:
        """Take a step, and return this rank's share of the loss."""
        self.optimizer.zero_grad()
        with self.timer(batch):
            loss = policy_loss(response_log_probs(self.model, batch), batch, tokens)
            # DDP averages gradients over ranks, but they should be added up.
            (loss * self.options.ranks).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.policy.parameters(), MAX_GRADIENT)
        self.optimizer.step()
        return loss.detach()
