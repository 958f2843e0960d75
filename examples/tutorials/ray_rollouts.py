"""Train with workers of Ray: rollouts stay where they were sampled, and the driver only plans.

Two workers sample and train the model and the task of ``grpo_loop.py``. Run it from the root of the
repository: ``python examples/tutorials/ray_rollouts.py``.
"""

import preflight  # isort: skip  # errors of one line

import socket
from typing import Any

import numpy as np
import ray
import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import LlamaForCausalLM

import fastcollate as fc
import fastcollate.ray
from grpo_loop import (
    PAD,
    PROMPTS,
    SAMPLES,
    draw_prompts,
    group_advantages,
    make_model,
    policy_loss,
    response_log_probs,
    reward_of,
    sample,
)

RANKS = 2


def sample_turns(model: LlamaForCausalLM, rng: np.random.Generator, rank: int) -> dict[str, Any]:
    """Return this rank's share of a step's rollouts, as columns, with their rewards."""
    groups = draw_prompts(rng, PROMPTS // RANKS)
    prompts = [prompt for prompt in groups for _ in range(SAMPLES)]
    responses, log_probs = sample(model, prompts)
    pairs = zip(prompts, responses, strict=True)
    rewards = [reward_of(prompt, response.tolist()) for prompt, response in pairs]
    return {
        "prompts": prompts,
        "responses": responses,
        "logprobs": log_probs,
        "rewards": rewards,
        "advantages": group_advantages(rewards),
        "uids": [rank * PROMPTS + row // SAMPLES for row in range(len(prompts))],
    }


class Worker:
    """One of the ranks: it samples, and it trains its replica of the model."""

    def __init__(self, rank: int, device: str) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.model = make_model().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.rank = rank
        self.rng = np.random.default_rng(rank)
        torch.manual_seed(rank)  # of sampling

    def address(self) -> str:
        """Return an address where the ranks can meet."""
        with socket.socket() as free:
            free.bind(("", 0))
            return f"tcp://{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def connect(self, address: str) -> None:
        """Wait for the other ranks."""
        dist.init_process_group("gloo", address, rank=self.rank, world_size=RANKS)

    def rollout(self) -> tuple[fastcollate.ray.Block, float]:
        """Sample, store the rows in this node's object store, and return a handle."""
        turns = sample_turns(self.model, self.rng, self.rank)
        return fc.ray.put_turns(turns), float(np.mean(turns["rewards"]))

    def train(self, shards: list[fastcollate.ray.BlockShard]) -> list[float]:
        """Take an optimizer step on each shard; return the losses of all ranks together."""
        losses = []
        for shard in shards:
            loss = loss_of(self.model, shard)
            self.optimizer.zero_grad()
            loss.backward()
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)  # the sum over ranks
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            total = loss.detach()
            dist.all_reduce(total)
            losses.append(total.item())
        return losses


def loss_of(model: LlamaForCausalLM, shard: fastcollate.ray.BlockShard) -> Tensor:
    """Return a rank's share of the loss of a mini-batch."""
    batch = fc.ray.collate(shard, pad_token_id=PAD).to(model.device)
    return policy_loss(response_log_probs(model, batch), batch, shard.loss_normalizers.tokens)


def main() -> None:
    """Train, and print the reward."""
    arguments = preflight.read_arguments(__doc__, steps=60)
    ray.init("local", num_cpus=RANKS, include_dashboard=False, log_to_driver=False)
    gpus = 1 / RANKS if arguments.device.startswith("cuda") else 0  # both share one
    actor = ray.remote(num_gpus=gpus)(Worker)
    workers = [actor.remote(rank, arguments.device) for rank in range(RANKS)]
    address = ray.get(workers[0].address.remote())
    ray.get([worker.connect.remote(address) for worker in workers])

    for step in range(1, arguments.steps + 1):
        rollouts = ray.get([worker.rollout.remote() for worker in workers])
        blocks = [block for block, _ in rollouts]
        plan = fc.ray.plan_step(blocks, prompts_per_mini_batch=PROMPTS // 2, dp_size=RANKS)
        ray.get(
            [
                worker.train.remote([plan.shard(m, rank) for m in range(plan.num_mini_batches)])
                for rank, worker in enumerate(workers)
            ]
        )
        if step == 1:
            print(plan.step.describe())
        if step == 1 or step % 10 == 0:
            reward = np.mean([reward for _, reward in rollouts])
            print(f"step {step:3}  reward {reward:.2f}")
    ray.shutdown()


if __name__ == "__main__":
    main()
