"""Train a Hugging Face model with GRPO, in a loop of your own.

The model reads "repeat 7", or "please repeat please 7", and has to answer with sevens and an end.
It starts from random weights. Run it from the root of the repository:
``python examples/tutorials/grpo_loop.py``.
"""

import preflight  # isort: skip  # errors of one line

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import fastcollate as fc

WORDS = ("<pad>", "<end>", "repeat", "please", *"0123456789")
PAD, END = WORDS.index("<pad>"), WORDS.index("<end>")
PROMPTS, SAMPLES = 16, 8  # prompts of a step, responses of a prompt
MAX_RESPONSE = 8
CLIP = 0.2  # ratios of probabilities are clipped to 0.8 and 1.2


def make_model(words: int = len(WORDS)) -> LlamaForCausalLM:
    """Return a small model with random weights."""
    config = LlamaConfig(
        vocab_size=words, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, initializer_range=0.1, tie_word_embeddings=True,
        pad_token_id=PAD, eos_token_id=END, bos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def draw_prompts(rng: np.random.Generator, count: int = PROMPTS) -> list[list[int]]:
    """Return prompts: one to five words and a digit."""
    return [
        [*rng.integers(2, 4, rng.integers(1, 6)).tolist(), int(rng.integers(4, 14))]
        for _ in range(count)
    ]


def reward_of(prompt: list[int], response: list[int]) -> float:
    """Return the share of words that are the prompt's digit; half of it if the end is missing."""
    words = [token for token in response if token != END]
    share = words.count(prompt[-1]) / max(len(words), 1)
    return share if response[-1] == END else share / 2


@torch.no_grad()
def sample(
    model: LlamaForCausalLM, prompts: Sequence[Sequence[int]], max_response: int = MAX_RESPONSE
) -> tuple[fc.Ragged, fc.Ragged]:
    """Return a response to each prompt, and the log-probabilities of its tokens."""
    ids = fc.pad(prompts, "left", fill=PAD, array_type="torch").to(model.device)
    mask = fc.pad([[1] * len(prompt) for prompt in prompts], "left", array_type="torch")
    options = {"do_sample": True, "top_k": 0, "max_new_tokens": max_response}
    outputs = {"return_dict_in_generate": True, "output_logits": True}
    output = model.generate(ids, attention_mask=mask.to(ids.device), **options, **outputs)
    tokens = output.sequences[:, ids.shape[1] :]
    log_probs = torch.stack(output.logits, dim=1).log_softmax(-1).gather(-1, tokens[..., None])
    is_end = (tokens == END).int()
    sampled = is_end.cumsum(1) - is_end == 0  # up to and including the first <end>
    return fc.unpad(tokens, mask=sampled), fc.unpad(log_probs[..., 0], mask=sampled)


def group_advantages(rewards: Sequence[float], samples: int = SAMPLES) -> np.ndarray:
    """Return the rewards minus the mean of their prompt, over its standard deviation."""
    groups = np.reshape(rewards, (-1, samples))
    centred = groups - groups.mean(1, keepdims=True)
    return (centred / (groups.std(1, keepdims=True) + 1e-6)).ravel()


def collate(
    prompts: list[list[int]], responses: fc.Ragged, log_probs: fc.Ragged, rewards: list[float]
) -> fc.Batch:
    """Return the batch of a step."""
    return fc.build_batch(
        prompts,
        responses,
        pad_token_id=PAD,
        logprobs=log_probs,
        advantages=group_advantages(rewards),
        uids=[row // SAMPLES for row in range(len(prompts))],
    )


def response_log_probs(model: LlamaForCausalLM, batch: fc.Batch) -> Tensor:
    """Return the log-probabilities of response tokens, in the shape of ``batch.loss_mask``."""
    hidden = model.base_model(**batch.model_inputs(model=model)).last_hidden_state
    positions, index = batch.loss_positions()
    log_probs = model.lm_head(hidden.flatten(0, 1)[positions]).log_softmax(-1)
    return log_probs[index, batch.targets]


def policy_loss(log_probs: Tensor, batch: fc.Batch, tokens: float) -> Tensor:
    """Return GRPO's clipped loss: a sum over trained tokens, divided by `tokens`."""
    trained = batch.loss_mask != 0
    advantages = batch.advantages[trained]
    ratio = (log_probs[trained] - batch.logprobs[trained]).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    losses = -torch.minimum(ratio * advantages, clipped * advantages)
    return (losses * batch.loss_mask[trained]).sum() / tokens


@torch.no_grad()
def largest_difference(model: LlamaForCausalLM, batch: fc.Batch) -> float:
    """Compare log-probabilities of sampled tokens with the sampler's."""
    differences = response_log_probs(model, batch) - batch.logprobs
    return differences[batch.response_mask != 0].abs().max().item()


def train_step(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, batch: fc.Batch) -> None:
    """Take an optimizer step on each mini-batch."""
    plan = fc.plan_step(batch, prompts_per_mini_batch=PROMPTS // 2)
    tokens = batch.loss_normalizers(plan).tokens
    for index in range(plan.num_mini_batches):
        mini_batch = batch.select(plan.shard(index, rank=0))
        log_probs = response_log_probs(model, mini_batch)
        loss = policy_loss(log_probs, mini_batch, tokens[index])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def main() -> None:
    """Train, and print the reward."""
    arguments = preflight.read_arguments(__doc__, steps=60)
    torch.set_num_threads(1)  # small models gain nothing from more
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model = make_model().to(arguments.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(1, arguments.steps + 1):
        prompts = [prompt for prompt in draw_prompts(rng) for _ in range(SAMPLES)]
        responses, log_probs = sample(model, prompts)
        answers = [response.tolist() for response in responses]
        rewards = [reward_of(*pair) for pair in zip(prompts, answers, strict=True)]
        batch = collate(prompts, responses, log_probs, rewards).to(arguments.device)
        if step == 1:
            difference = largest_difference(model, batch)
            print(f"log-probabilities of sampler and trainer differ by {difference:.0e} at most")
        train_step(model, optimizer, batch)
        if step == 1 or step % 10 == 0:
            words = (" ".join(WORDS[token] for token in row) for row in (prompts[0], answers[0]))
            print(f"step {step:3}  reward {np.mean(rewards):.2f}  {' -> '.join(words)}")


if __name__ == "__main__":
    main()
