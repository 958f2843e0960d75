"""The same steps on Ray: turns stay in the worker that played them until they are trained on.

The driver plans from the lengths of rows; a worker fetches the rows of its shards and packs them.
"""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import ray
import torch
import torch.distributed as dist
from ray.exceptions import GetTimeoutError

import fastcollate.ray
from grpo.game import PAD
from grpo.learning import Learner
from grpo.options import TIMEOUT, Options
from grpo.reporting import Clock, ProgressBar, Report


def train_on_ray(options: Options) -> list[Report]:
    """Train with as many actors as there are ranks, each of which plays and learns."""
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    actor: Any = Worker
    if torch.device(options.device).type == "cuda":  # Ray hides GPUs from actors that request none
        actor = actor.options(num_gpus=1 / options.ranks)
    workers = [actor.remote(options, rank) for rank in range(options.ranks)]
    reports: list[Report] = []
    try:
        (address,) = answers([workers[0].address.remote()])
        answers([worker.meet.remote(address) for worker in workers])
        with ProgressBar(options) as bar:
            while len(reports) < options.steps and not (reports and bar.elapsed > options.seconds):
                reports.append(train_step(workers, options, step=len(reports)))
                bar.show(reports[-1])
    finally:
        for worker in workers:
            ray.kill(worker)
    return reports


def answers(refs: list[Any]) -> list[Any]:
    """Wait for the results of workers, up to a limit."""
    try:
        return ray.get(refs, timeout=TIMEOUT.total_seconds())
    except GetTimeoutError as error:
        raise TimeoutError(
            f"a worker has not answered within {TIMEOUT}; `ray status` says whether there are CPUs "
            "for all, and `ray stack` what they do"
        ) from error


def train_step(workers: list[Any], options: Options, step: int) -> Report:
    """Have the workers play a step, plan it, and have them learn from it."""
    clock = Clock()
    with clock.measure("playing"):
        played = answers([worker.play.remote(step) for worker in workers])
    blocks = [block for block, _ in played]
    with clock.measure("planning"):
        plan = fastcollate.ray.plan_step(blocks, **options.planning)
    mini_batches = range(plan.num_mini_batches)
    learned = [
        worker.learn.remote([plan.shard(mini_batch, rank) for mini_batch in mini_batches])
        for rank, worker in enumerate(workers)
    ]
    losses, positions, seconds = answers(learned)[0]  # the same on all ranks
    return Report(
        reward=float(np.mean([reward for _, reward in played])),
        losses=losses,
        turns=sum(block.num_turns for block in blocks),
        rows=sum(block.num_rows for block in blocks),
        positions=positions,
        seconds=clock.seconds | seconds,
    )


@ray.remote
class Worker:
    """One of the ranks."""

    def __init__(self, options: Options, rank: int) -> None:
        torch.set_num_threads(1)
        self.options, self.rank = options, rank

    def address(self) -> str:
        """Return the address of the ranks: a free port of the first one."""
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        return f"tcp://{ray.util.get_node_ip_address()}:{port}"  # type: ignore[no-untyped-call]

    def meet(self, address: str) -> None:
        """Wait for the other ranks."""
        dist.init_process_group(
            "gloo",
            init_method=address,
            rank=self.rank,
            world_size=self.options.ranks,
            timeout=TIMEOUT,
        )
        self.learner = Learner(self.options, self.rank)

    def play(self, step: int) -> tuple[fastcollate.ray.Block, float]:
        """Play this rank's games; return a handle of their rows, and the mean reward."""
        turns = self.learner.play(step)
        columns = turns.columns(self.options.samples)
        # Each worker has only its own tokens, but all games of a prompt are on one worker.
        share = "group" if self.options.tree else None
        block = fastcollate.ray.put_turns(columns, merge=self.options.merging, share=share)
        return block, float(np.mean(turns.rewards))

    def learn(
        self, shards: list[fastcollate.ray.BlockShard]
    ) -> tuple[list[float], int, dict[str, float]]:
        """Learn from this rank's shards of a step."""
        clock = Clock()
        batches = (
            # Positions of padding are zero, or they would exceed the model's.
            fastcollate.ray.collate(
                shard.narrow() if self.options.narrow else shard,
                pad_token_id=PAD,
                position_ids="zero",
            )
            for shard in shards
        )
        tokens = [shard.loss_normalizers.tokens for shard in shards]
        return *self.learner.learn_all(batches, tokens, clock), clock.seconds
