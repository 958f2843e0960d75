"""Merging turns trains the same: the loss, its gradients and every log-probability."""

import numpy as np
import pytest

import fastcollate as fc

torch = pytest.importorskip("torch")

from policy import Policy, response_log_probs  # noqa: E402

VOCABULARY = 13
TOLERANCE = 1e-9


@pytest.fixture(scope="module")
def policy():
    torch.manual_seed(0)
    return Policy(VOCABULARY, max_positions=96, width=32, heads=2, layers=2).double()


def rollouts(seed):
    """Make turns of trajectories, of which some break, and their columns."""
    rng = np.random.default_rng(seed)

    def ids(low, high):
        return rng.integers(1, VOCABULARY, rng.integers(low, high)).tolist()

    turns = {name: [] for name in ("prompts", "responses", "trajectory_ids")}
    for trajectory in range(4):
        prompt = ids(1, 8)
        for _ in range(rng.integers(1, 6)):
            response = ids(0, 7) if rng.random() < 0.9 else []
            turns["prompts"].append(prompt)
            turns["responses"].append(response)
            turns["trajectory_ids"].append(trajectory)
            goes_on = rng.random() < 0.8
            prompt = (prompt + response if goes_on else ids(1, 8)) + ids(0, 5)
    responses = turns["responses"]
    return turns | {
        "loss_mask": [rng.integers(0, 2, len(row)).tolist() for row in responses],
        "rewards": [rng.standard_normal(len(row)).tolist() for row in responses],
    }


def build(turns, **options):
    return fc.build_batch(**turns, pad_token_id=0, position_ids="zero", **options)


def train(policy, batch):
    """Return the log-probabilities, the summed masked loss and its gradients."""
    policy.zero_grad()
    log_probs = response_log_probs(policy, batch) * batch.response_mask
    loss = -(log_probs * batch.loss_mask * batch.rewards).sum()
    loss.backward()
    return log_probs.detach(), loss.detach(), [p.grad.clone() for p in policy.parameters()]


@pytest.mark.parametrize("policy_name", ["exact", "branch"])
@pytest.mark.parametrize("seed", range(4))
def test_merged_turns_train_the_same(policy, policy_name, seed):
    turns = rollouts(seed)
    stepwise = build(turns)
    merged = build(turns, merge=policy_name)
    assert merged.plan.num_rows < stepwise.plan.num_rows

    log_probs, loss, gradients = train(policy, stepwise)
    merged_log_probs, merged_loss, merged_gradients = train(policy, merged)
    torch.testing.assert_close(merged_loss, loss, rtol=0, atol=TOLERANCE)
    for merged_gradient, gradient in zip(merged_gradients, gradients, strict=True):
        torch.testing.assert_close(merged_gradient, gradient, rtol=0, atol=TOLERANCE)

    of_turns = merged.gather(merged_log_probs, per="turn")
    expected = stepwise.gather(log_probs)
    assert of_turns.offsets.tolist() == expected.offsets.tolist()
    torch.testing.assert_close(of_turns.values, expected.values, rtol=0, atol=TOLERANCE)


def test_realigned_turns_train_what_still_stands(policy):
    # The text of 3, 4 is tokenised anew as 5; what was sampled before it still trains.
    turns = {
        "prompts": [[1, 2], [1, 2, 9, 5, 6]],
        "responses": [[9, 3, 4], [7, 8]],
        "loss_mask": [[1, 1, 1], [1, 1]],
        "rewards": [[1.0, 1.0, 1.0], [1.0, 1.0]],
        "trajectory_ids": ["a", "a"],
    }
    with pytest.warns(UserWarning, match="2 rewards lie on tokens"):
        merged = build(turns, merge="realign")
    assert merged.loss_mask.tolist() == [[1, 0, 0, 1, 1]]
    alone = {**turns, "loss_mask": [[1, 0, 0], [1, 1]]}
    stepwise = build(alone)
    _, loss, _ = train(policy, stepwise)
    _, merged_loss, _ = train(policy, merged)
    torch.testing.assert_close(merged_loss, loss, rtol=0, atol=TOLERANCE)
