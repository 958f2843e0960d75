"""Losses and gradients of rows that a Hugging Face model reads one by one, to compare with."""

import pytest
import torch


def outcome(model, loss):
    """Return a loss, and its gradients in one line."""
    model.zero_grad()
    loss.backward()
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    model.zero_grad()
    return loss.item(), gradients


def assert_same(found, expected):
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    assert expected[1].abs().max() > 1e-3
    torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-7)


def log_probs_alone(model, prompt, response):
    """Return the log-probabilities of a response whose row is all that the model reads."""
    ids = torch.tensor([[*prompt, *response]])
    log_probs = model(ids, use_cache=False).logits[0, :-1].log_softmax(-1)
    return log_probs.gather(-1, ids[0, 1:, None])[max(len(prompt) - 1, 0) :, 0]
