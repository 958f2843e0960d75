"""A real consumer: a model of Hugging Face computes the same of packed rows as of padded ones."""

from functools import partial

import numpy as np
import pytest
from packings import PADDING_AS, SHIFTS

import fastcollate as fc

torch = pytest.importorskip("torch")

VOCABULARY = 97
TOLERANCE = 1e-5

MODEL_INPUTS = ("input_ids", "position_ids")
"""And no attention mask: without one, the model takes restarting positions for boundaries."""


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def model(request):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        attn_implementation=request.param,
    )
    return transformers.LlamaForCausalLM(config).eval()


def rollouts(seed, rows=12):
    rng = np.random.default_rng(seed)

    def ids(low, high):
        return rng.integers(0, VOCABULARY, rng.integers(low, high)).tolist()

    responses = [ids(1, 24) for _ in range(rows)]
    return {
        "prompts": [ids(1, 24) for _ in range(rows)],
        "responses": responses,
        "loss_mask": [rng.integers(0, 2, len(row)).tolist() for row in responses],
        "pad_token_id": 0,
    }


HOW = {
    "bins": partial(fc.Packed, 64),
    "rounded places": partial(fc.Packed, 64, multiple_of=8),
    "wide": partial(fc.Packed, 64, pad_to=80),
    "one row": fc.Packed.single_row,
    "one rounded row": partial(fc.Packed.single_row, multiple_of=4, pad_to=512),
}


def gradients_of(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def close(found, expected, what):
    torch.testing.assert_close(
        found, expected, rtol=0, atol=TOLERANCE, msg=lambda message: f"{what}: {message}"
    )


def padded(turns):
    return fc.build_batch(**turns, position_ids="zero", labels="aligned")


def logits_of(model, batch, *keys):
    return model(**{key: batch[key] for key in keys}, use_cache=False).logits


@pytest.mark.parametrize("padding_as", PADDING_AS)
@pytest.mark.parametrize("how", HOW)
def test_every_sequence_has_the_logits_of_the_padded_batch(model, how, padding_as):
    turns = rollouts(seed=len(how))
    left = padded(turns)
    packed = fc.build_batch(**turns, layout=HOW[how](padding_as=padding_as))
    assert "attention_mask" not in packed
    with torch.no_grad():
        expected = logits_of(model, left, *MODEL_INPUTS, "attention_mask")
        found = logits_of(model, packed, *MODEL_INPUTS)
    for row, mask in enumerate(left.attention_mask.bool()):
        close(found[packed.sequence_ids == row], expected[row, mask], f"sequence {row}")

    # And on the way back: what each token's prediction is made of.
    way = {"align": "sequence", "shift": "next_token"}
    close(packed.gather(found, **way).values, left.gather(expected, **way).values, "gather")


@pytest.mark.parametrize("how", HOW)
def test_the_loss_of_the_model_and_its_gradients(model, how):
    """Labels are aligned with tokens: the model shifts them, and prompts are not trained."""
    turns = rollouts(seed=len(how))
    left = padded(turns)
    packed = fc.build_batch(**turns, layout=HOW[how](), labels="aligned")
    keys = (*MODEL_INPUTS, "labels")
    expected = model(**{key: left[key] for key in (*keys, "attention_mask")}, use_cache=False).loss
    found = model(**{key: packed[key] for key in keys}, use_cache=False).loss
    close(found.detach(), expected.detach(), "loss")
    assert expected.item() > 1
    gradients = gradients_of(model, expected)
    for name, gradient in gradients_of(model, found).items():
        close(gradient, gradients[name], name)
    assert max(gradient.abs().max() for gradient in gradients.values()) > 0.01


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("how", HOW)
def test_a_loss_of_ones_own_and_its_gradients(model, how, shift):
    """Policy gradients: log-probabilities of responses, weighted per token."""
    turns = rollouts(seed=len(how))
    rng = np.random.default_rng(0)
    turns["rewards"] = [rng.standard_normal(len(row)).tolist() for row in turns["responses"]]
    left = padded(turns)
    packed = fc.build_batch(**turns, layout=HOW[how](shift=shift))

    def log_probs_of(batch, *keys):
        """Of the next token at each position but the last."""
        logits = logits_of(model, batch, *MODEL_INPUTS, *keys)[:, :-1]
        return logits.log_softmax(-1).gather(-1, batch.input_ids[:, 1:, None]).squeeze(-1)

    of_left = log_probs_of(left, "attention_mask")[:, -left.response_mask.shape[1] :]
    expected = -(of_left * left.rewards * left.loss_mask).sum() / len(turns["prompts"])
    of_packed = log_probs_of(packed)
    places = slice(None, -1) if shift == "next_token" else slice(1, None)
    weights = packed.rewards * packed.loss_mask
    found = -(of_packed * weights[:, places]).sum() / len(turns["prompts"])
    close(found.detach(), expected.detach(), "loss")
    gradients = gradients_of(model, expected)
    for name, gradient in gradients_of(model, found).items():
        close(gradient, gradients[name], name)
