"""Train by TRL's asynchronous trainer with its own rows and with ours; print what differs.

A kernel of flash attention, the peak FLOPs of a GPU, the rollout worker and the transfer of weights
have stand-ins.
"""

import json
import queue
import random
import sys
import tempfile
import types
from itertools import pairwise

import datasets
import numpy as np
import torch
from small_llama import llama
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer
from trl.experimental.async_grpo import packing as trl_packing
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample
from trl_laid_out import FOUR_ROWS, compared, trained
from trl_trainers import options, tokenizer

import fastcollate as fc
from fastcollate.compat import trl as compat

PATCHES = {"rows": {}, "tree": {"layout": fc.Tree()}}


def flash_attn_varlen_func(query, key, value, cu_q, cu_k, *longest, causal, **options):
    """Compute flash attention of variable lengths: the last query of a span attends to all keys."""
    assert causal
    assert options.pop("window_size") == (-1, -1)
    assert longest == (cu_q.diff().max(), cu_k.diff().max())
    found = []
    for (begin, end), (first, last) in zip(pairwise(cu_q), pairwise(cu_k), strict=True):
        mask = torch.ones(end - begin, last - first, dtype=torch.bool)
        mask = mask.tril(last - first - end + begin)
        scores = torch.einsum("qhd,khd->hqk", query[begin:end], heads(key, query)[first:last])
        scores = scores * options["softmax_scale"]
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        found.append(torch.einsum("hqk,khd->qhd", weights, heads(value, query)[first:last]))
    return torch.cat(found)


def heads(keys, queries):
    """Repeat the heads of keys for those of queries."""
    return keys.repeat_interleave(queries.shape[1] // keys.shape[1], 1)


class Transfer:
    """A transfer of weights to nowhere."""

    def __getattr__(self, name):
        return lambda *_: None

    def send_weights(self, weights):
        for _ in weights:
            pass


class Worker(Transfer):
    """A worker whose rollouts are all there: groups of samples of one prompt, some equal."""

    def __init__(self):
        self.rollout_buffer, self.metrics_queue = queue.Queue(), queue.Queue()
        rng = random.Random(0)

        def tokens(least, most):
            return [rng.randrange(30) for _ in range(rng.randint(least, most))]

        for group in range(24):
            prompt = tokens(4, 12)
            for _ in range(4):
                response = tokens(1, 8)
                self.rollout_buffer.put(
                    RolloutSample(
                        prompt=[],
                        completion=[],
                        input_ids=np.array(prompt + response),
                        completion_mask=np.array([0] * len(prompt) + [1] * len(response)),
                        old_log_probs=np.full(len(prompt + response), -3, np.float32),
                        advantage=rng.uniform(-1, 1),
                        model_version=1,
                        group_id=group,
                        metrics={"reward": rng.random()},
                    )
                )


def trainer_of(token_budget):
    def make(folder_of_model, folder):
        arguments = AsyncGRPOConfig(
            token_budget=token_budget,
            gradient_accumulation_steps=2,
            max_staleness=99,
            **options(folder) | FOUR_ROWS,
        )
        return AsyncGRPOTrainer(
            folder_of_model,
            args=arguments,
            train_dataset=datasets.Dataset.from_dict({"prompt": ["w1"] * 24}),
            processing_class=tokenizer(),
            rollout_worker=Worker(),
            weight_transfer=Transfer(),
        )

    return make


def main():
    trl_packing._flash_attn = lambda: types.SimpleNamespace(
        flash_attn_varlen_func=flash_attn_varlen_func
    )
    async_grpo_trainer.get_peak_flops_per_device = lambda *_: None
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        llama().save_pretrained(folder)
        for name, token_budget in {"counts": -1, "tokens": 64}.items():
            make = trainer_of(token_budget)
            own = trained(make, folder)
            found[name] = {"own": own[2]}
            for patch, arguments in PATCHES.items():
                with compat.patch(**arguments):
                    assert async_grpo_trainer.TreeRow is compat.TreeRow
                    found[name][patch] = compared(own, trained(make, folder))
    print(json.dumps(found), file=sys.stderr)


if __name__ == "__main__":
    main()
