"""Train on the responses of a server, from their bytes to an optimizer step.

The server is a process of its own, which answers over HTTP with recorded samples. Run it from the
root of the repository: ``python examples/tutorials/from_a_server.py``.
"""

import preflight  # isort: skip  # errors of one line

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import fastcollate as fc
from grpo_loop import response_log_probs
from served import engine, first_turns, generate

VOCABULARY = 4096  # of the recorded tokenizer
PROMPTS = 16  # of a step


def make_model() -> LlamaForCausalLM:
    """Return a small model with random weights."""
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def group_advantages(rewards: list[float], uids: list[str]) -> np.ndarray:
    """Return the rewards minus the mean of their prompt."""
    _, prompts = np.unique(uids, return_inverse=True)
    means = np.bincount(prompts, rewards) / np.bincount(prompts)
    return rewards - means[prompts]


def main() -> None:
    """Train on what the server returns."""
    arguments = preflight.read_arguments(__doc__, steps=6)
    torch.set_num_threads(1)  # small models gain nothing from more
    torch.manual_seed(0)
    model = make_model().to(arguments.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    known = {(*prompt, -1, *response): reward for prompt, response, _, reward in first_turns()}
    prompts = [*{tuple(prompt): None for prompt, *_ in first_turns()}]
    with engine() as address:
        for step in range(1, arguments.steps + 1):
            asked = [list(prompts[(step * PROMPTS + one) % len(prompts)]) for one in range(PROMPTS)]

            bodies = [generate(address, prompt, return_token_ids=True) for prompt in asked]
            calls = fc.rollouts.parse(bodies)
            turns = zip(calls.prompts.to_list(), calls.responses.to_list(), strict=True)
            rewards = [known[(*prompt, -1, *response)] for prompt, response in turns]
            advantages = group_advantages(rewards, calls.uids)
            batch = fc.build_batch(**calls.batch, advantages=advantages, pad_token_id=0)
            log_probs = response_log_probs(model, batch.to(arguments.device))
            trained = batch.loss_mask != 0
            losses = -log_probs[trained] * batch.advantages[trained]
            loss = (losses * batch.loss_mask[trained]).sum() / batch.loss_mask.sum()
            loss.backward()
            optimizer.step()

            optimizer.zero_grad()
            print(f"step {step}  {calls.report['calls']} samples, loss {loss.item():8.4f}")


if __name__ == "__main__":
    main()
