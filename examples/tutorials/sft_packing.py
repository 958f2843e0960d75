"""Fine-tune a Hugging Face model on conversations in packed rows.

The conversations are the recorded ones of ``examples/rollouts``, and the agent's turns train. Run
it from the root of the repository: ``python examples/tutorials/sft_packing.py``.
"""

import preflight  # isort: skip  # errors of one line

import torch
from torch.utils.data import DataLoader, RandomSampler
from transformers import LlamaConfig, LlamaForCausalLM

import fastcollate as fc
from rollouts import load_rollouts

VOCABULARY = 4096  # of the recorded tokenizer
CAPACITY = 1024  # tokens of a packed row; no conversation is longer
CONVERSATIONS = 16  # of a step


def load_samples() -> list[dict[str, list[int]]]:
    """Return the conversations, whose masks are 1 on the agent's tokens."""
    rollouts, samples = load_rollouts(), []
    mask: list[int] = []
    turns = zip(rollouts.prompts, rollouts.responses, rollouts.is_last_step, strict=True)
    for encoding, (prompt, response, is_last) in zip(rollouts.encodings, turns, strict=True):
        if encoding != "tokens":  # here a prompt does not continue the tokens before it
            continue
        mask += [0] * (len(prompt) - len(mask)) + [1] * len(response)
        if is_last:
            samples.append({"input_ids": prompt + response, "assistant_masks": mask})
            mask = []
    return samples


def make_model() -> LlamaForCausalLM:
    """Return a small model with random weights."""
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=1,
        num_attention_heads=4, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config)


Collate = fc.Collator[fc.Batch]


def make_collators(model: LlamaForCausalLM) -> tuple[Collate, Collate]:
    """Return a collator of padded rows, and one of packed rows."""
    padded = fc.Collator(pad_token_id=0, layout="right")
    packed = fc.Collator(pad_token_id=0, layout=fc.Packed(capacity=CAPACITY), model=model)
    return padded, packed


def compare(
    model: LlamaForCausalLM, samples: list[dict[str, list[int]]], padded: Collate, packed: Collate
) -> None:
    """Print the size and the loss of one batch, padded and packed."""
    for name, collate in ("padded", padded), ("packed", packed):
        batch = collate(samples).to(model.device)
        with torch.no_grad():
            loss = model(**batch).loss
        rows, width = batch.input_ids.shape
        print(f"{name}: {rows:2} rows of {width:,} = {rows * width:,} positions, loss {loss:.4f}")


def main() -> None:
    """Train on packed rows, and print the loss."""
    arguments = preflight.read_arguments(__doc__, steps=20)
    torch.set_num_threads(1)  # small models gain nothing from more
    torch.manual_seed(0)
    samples = load_samples()
    model = make_model().to(arguments.device)
    padded, packed = make_collators(model)
    compare(model, samples[:CONVERSATIONS], padded, packed)

    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    order = RandomSampler(samples, num_samples=arguments.steps * CONVERSATIONS)
    loader = DataLoader(samples, CONVERSATIONS, sampler=order, collate_fn=packed)
    with fc.prefetch(loader, arguments.device) as batches:
        for step, batch in enumerate(batches, 1):
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == 1 or step % 5 == 0:
                print(f"step {step:3}  loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
