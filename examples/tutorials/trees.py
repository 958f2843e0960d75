"""Train on a tree, in which tokens that rows have in common are computed once.

The rows are the recorded turns of ``examples/rollouts``: each repeats the turns before it, and the
attempts at a task share its description. Turns that earned a reward train. Run it from the root of
the repository: ``python examples/tutorials/trees.py``.
"""

import preflight  # isort: skip  # errors of one line

import time
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import fastcollate as fc
from rollouts import load_rollouts

VOCABULARY = 4096  # of the recorded tokenizer
TURNS = 48
LAYOUTS = {"padded": fc.Left(), "packed": fc.Packed(1024), "tree": fc.Tree(1024)}


def load_columns() -> dict[str, Any]:
    """Return turns, and a loss mask that is 1 on the responses that earned a reward."""
    rollouts = load_rollouts()
    responses, rewards = rollouts.responses[:TURNS], rollouts.rewards[:TURNS]
    good = [int(sum(per_token) > 0) for per_token in rewards]
    return {
        "prompts": rollouts.prompts[:TURNS],
        "responses": responses,
        "loss_mask": [[mask] * len(row) for mask, row in zip(good, responses, strict=True)],
    }


def make_model() -> LlamaForCausalLM:
    """Return a small model with random weights."""
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def loss_of(model: LlamaForCausalLM, batch: fc.Batch) -> Tensor:
    """Return the mean loss of trained tokens; the same code for every layout."""
    hidden = model.base_model(**batch.model_inputs(model=model)).last_hidden_state
    positions, index = batch.loss_positions()
    log_probs = model.lm_head(hidden.flatten(0, 1)[positions]).log_softmax(-1)
    trained = batch.loss_mask != 0
    losses = -log_probs[index, batch.targets][trained] * batch.loss_mask[trained]
    return losses.sum() / batch.loss_mask.sum()


def gradient_norm(model: LlamaForCausalLM) -> float:
    """Return the norm of all gradients."""
    return torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()


def main() -> None:
    """Compare the layouts, then train on the tree."""
    arguments = preflight.read_arguments(__doc__, steps=10)
    torch.set_num_threads(1)  # small models gain nothing from more
    torch.manual_seed(0)
    columns = load_columns()
    model = make_model().to(arguments.device)
    for name, layout in LAYOUTS.items():
        batch = fc.build_batch(**columns, pad_token_id=0, layout=layout)
        batch = batch.to(arguments.device)
        start = time.perf_counter()
        loss = loss_of(model, batch)
        loss.backward()
        seconds = time.perf_counter() - start
        print(
            f"{name}: {batch.input_ids.numel():6,} positions, {seconds:.2f} s, "
            f"loss {loss.item():.5f}, norm of gradients {gradient_norm(model):.5f}"
        )
        model.zero_grad()

    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(1, arguments.steps + 1):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1 or step % 5 == 0:
            print(f"step {step:2}  loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
