"""Losses and gradients of steps, against rows one by one."""

import numpy as np
import pytest

import fastcollate as fc

torch = pytest.importorskip("torch")

from policy import Policy, response_log_probs  # noqa: E402

VOCABULARY = 13

REDUCTIONS = ["sum", "token", "row"]


def small_policy():
    """Return a model of random weights, the same each time."""
    torch.manual_seed(0)
    return Policy(VOCABULARY, max_positions=48, width=16, heads=2, layers=1).double()


def rollouts(seed, prompts):
    """Make turns of trajectories of the given number of prompts, and their columns."""
    rng = np.random.default_rng(seed)

    def ids(low, high):
        return rng.integers(1, VOCABULARY, rng.integers(low, high)).tolist()

    turns = {name: [] for name in ("prompts", "responses", "trajectory_ids", "uids")}
    for uid in range(prompts):
        question = ids(1, 6)
        for trajectory in range(rng.integers(1, 4)):
            prompt = question
            for _ in range(rng.integers(1, 4)):
                response = ids(1, 5)
                turns["prompts"].append(prompt)
                turns["responses"].append(response)
                turns["trajectory_ids"].append(f"{uid}-{trajectory}")
                turns["uids"].append(uid)
                goes_on = rng.random() < 0.8
                prompt = (prompt + response if goes_on else ids(1, 8)) + ids(0, 4)
    masked_prompts = rng.random(prompts) < 0.3
    for name in ("loss_mask", "rewards"):
        turns[name] = []
    for uid, response in zip(turns["uids"], turns["responses"], strict=True):
        mask = rng.integers(0, 2, len(response)) * (not masked_prompts[uid])
        turns["loss_mask"].append(mask.tolist())
        turns["rewards"].append(rng.standard_normal(len(response)).tolist())
    return turns


def build(turns, merge=None, **options):
    return fc.build_batch(**turns, pad_token_id=0, merge=merge, position_ids="zero", **options)


def forward(policy, batch):
    """Return the log-probabilities and the loss of every response token."""
    log_probs = response_log_probs(policy, batch)
    return log_probs, -log_probs * batch.rewards * batch.loss_mask


def row_means(losses, batch):
    return losses.sum(1) / batch.loss_mask.sum(1).clip(1)


def gradients_of(policy, losses):
    """Differentiate each loss."""
    parameters = list(policy.parameters())
    return [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]


def losses_alone(policy, batch):
    """Reduce a mini-batch's loss by its own sizes."""
    _, losses = forward(policy, batch)
    trained = losses[batch.loss_mask != 0]
    mean = trained.mean() if len(trained) > 0 else losses.sum()
    return [losses.sum(), mean, row_means(losses, batch).mean()]


def same(found, expected, what):
    torch.testing.assert_close(
        found, expected, rtol=0, atol=1e-9, msg=lambda message: f"{what}: {message}"
    )
