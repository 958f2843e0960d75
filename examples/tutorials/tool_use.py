"""Train a model that calls a tool several times: one row per conversation, not one per call.

The model follows links. It reads "follow 4 <end>" and answers "4 <end>", which opens page 4; the
tool answers "next 7 <end>", and so on, up to the last page. Run it from the root of the repository:
``python examples/tutorials/tool_use.py``. Sampling and loss come from ``grpo_loop.py``.
"""

import preflight  # isort: skip  # errors of one line

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from transformers import LlamaForCausalLM

import fastcollate as fc
from grpo_loop import END, PAD, PROMPTS, SAMPLES, group_advantages, make_model, sample, train_step

WORDS = ("<pad>", "<end>", "follow", "next", "found", "error", *"0123456789")
LINKS = 5  # at most


@dataclass
class Conversation:
    """A conversation with the tool, and its turns so far."""

    pages: list[int]
    tokens: list[int]
    prompts: list[list[int]] = field(default_factory=list)
    responses: list[list[int]] = field(default_factory=list)
    log_probs: list[list[float]] = field(default_factory=list)
    reward: float = 0.0
    is_over: bool = False

    def add_turn(self, response: list[int], log_probs: list[float]) -> None:
        """Record a response, and append it and the tool's answer to the tokens."""
        self.prompts.append(list(self.tokens))
        self.responses.append(response)
        self.log_probs.append(log_probs)
        self.tokens += response + self.answer(response)

    def answer(self, response: list[int]) -> list[int]:
        """Return the tool's answer; a call of the right page earns a reward."""
        opened = len(self.responses)
        if response[0] != self.pages[opened - 1]:
            self.is_over = True
            return [WORDS.index("error"), END]
        is_complete = response[1:] == [END]
        self.reward += (1.0 if is_complete else 0.5) / len(self.pages)
        if opened == len(self.pages):
            self.is_over = True
            return [WORDS.index("found"), END]
        return [WORDS.index("next"), self.pages[opened], END]


def draw_conversations(rng: np.random.Generator) -> list[Conversation]:
    """Return the conversations of a step: `SAMPLES` with the same pages, then others."""
    conversations = []
    for _ in range(PROMPTS):
        pages = rng.choice(range(6, 16), rng.integers(2, LINKS + 1), replace=False).tolist()
        prompt = [WORDS.index("follow"), pages[0], END]
        conversations += [Conversation(pages, list(prompt)) for _ in range(SAMPLES)]
    return conversations


def run(model: LlamaForCausalLM, conversations: list[Conversation]) -> None:
    """Sample the next turn of all conversations at once, until all are over."""
    while live := [one for one in conversations if not one.is_over]:
        responses, log_probs = sample(model, [one.tokens for one in live], max_response=2)
        for one, response, of_response in zip(live, responses, log_probs, strict=True):
            one.add_turn(response.tolist(), of_response.tolist())


def collate(
    conversations: list[Conversation], merge: Literal["exact"] | None = "exact"
) -> fc.Batch:
    """Return a batch of turns; the turns of a conversation become one row."""
    advantages = group_advantages([one.reward for one in conversations])
    numbers = [n for n, one in enumerate(conversations) for _ in one.prompts]
    return fc.build_batch(
        prompts=[prompt for one in conversations for prompt in one.prompts],
        responses=[response for one in conversations for response in one.responses],
        logprobs=[log_probs for one in conversations for log_probs in one.log_probs],
        advantages=advantages[numbers],
        uids=[number // SAMPLES for number in numbers],
        trajectory_ids=numbers,
        merge=merge,
        pad_token_id=PAD,
    )


class Decoder:
    """As much of a tokenizer as ``batch.show`` needs."""

    def decode(self, ids: list[int]) -> str:
        """Return tokens as text."""
        return "".join(f" {WORDS[token]}" for token in ids)


def main() -> None:
    """Train, and print rewards and sizes."""
    arguments = preflight.read_arguments(__doc__, steps=40)
    torch.set_num_threads(1)  # small models gain nothing from more
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model = make_model(len(WORDS)).to(arguments.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(1, arguments.steps + 1):
        conversations = draw_conversations(rng)
        run(model, conversations)
        batch = collate(conversations).to(arguments.device)
        train_step(model, optimizer, batch)
        if step == 1 or step % 10 == 0:
            apart = collate(conversations, merge=None)
            reward = np.mean([one.reward for one in conversations])
            print(
                f"step {step:3}  reward {reward:.2f}  {apart.plan.num_rows} turns in "
                f"{batch.plan.num_rows} rows  tokens {int(apart.attention_mask.sum()):,} -> "
                f"{int(batch.attention_mask.sum()):,}"
            )
    longest = int(batch.response_lens.argmax())
    print(batch.show(rows=[longest], tokenizer=Decoder()))


if __name__ == "__main__":
    main()
