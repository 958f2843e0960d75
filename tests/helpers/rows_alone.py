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


def trained_alone(model, prompts, responses, masks):
    """Return the sum of the losses of rows that the model reads one by one, and its gradients."""
    losses = []
    for prompt, response, mask in zip(prompts, responses, masks, strict=True):
        if len(prompt) + len(response) > 1:
            log_probs = log_probs_alone(model, prompt, response)
            weights = torch.tensor(mask[len(mask) - len(log_probs) :], dtype=log_probs.dtype)
            losses.append(-(log_probs * weights).sum())
    return outcome(model, sum(losses))


def loss_of(model, batch, inputs):
    """Sum the loss of a batch as a custom loop does."""
    logits = model(**inputs).logits.flatten(0, 1)
    pos, inv = batch.loss_positions()
    log_probs = logits[pos].log_softmax(-1)[inv, batch.targets.long()]
    return -(log_probs * batch.loss_mask).sum()
