"""Measure an update of a small policy on rows that are packed, and on the same rows as trees.

Groups of 8 rows with prompts as long as responses, in bins of one capacity. Model, loss, dense
masks and the positions that the output layer runs on are the example trainer's, and the same for
both (`examples/policy.py`): the only difference is the sharing.

packed, tree
    Forward pass, backward pass and optimizer step over all rows, one mini-batch.
packed/tree
    Time of packed rows, relative to that of trees.
tokens
    Their tokens, relative to those of trees: 16/9.
positions
    Their positions, with padding, relative to those of trees.
build, mask
    For the tree, the times of `build_batch`, sharing and packing included, and of its masks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

import fastcollate as fc
from common.report import Effort, Figures, main, time_text
from grpo.learning import policy_loss
from policy import Policy

GROUP = 8
VOCABULARY = 512


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure rows of growing length."""
    torch.set_num_threads(1)
    for groups, half in [(2, 8)] if effort.is_smoke else [(32, 32), (16, 64), (8, 128), (4, 256)]:
        yield f"{groups} x {GROUP} rows of {2 * half} tokens", of_rows(effort, groups, half)


def of_rows(effort: Effort, groups: int, half: int) -> Figures:
    """Measure groups of rows, of which half of all tokens are prompts."""
    columns = samples(groups, half)
    capacity = (GROUP + 1) * half  # a group's tree
    packed, tree = (
        fc.build_batch(**columns, pad_token_id=0, position_ids="zero", layout=layout)
        for layout in (fc.Packed(capacity, shift="next_token"), fc.Tree(capacity))
    )
    torch.manual_seed(0)
    policy = Policy(VOCABULARY, max_positions=2 * half, layers=2)
    optimizer = torch.optim.AdamW(policy.parameters(), 0.0)
    losses = [loss_of(policy, batch).item() for batch in (packed, tree)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)

    def update(batch: fc.Batch) -> None:
        optimizer.zero_grad()
        loss_of(policy, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    calls: dict[str, Callable[[], Any]] = {
        "packed": partial(update, packed),
        "tree": partial(update, tree),
        "build": partial(fc.build_batch, **columns, pad_token_id=0, layout=fc.Tree(capacity)),
        "mask": partial(tree.dense_mask, "bool"),
    }
    times = effort.run(calls)
    tokens = sum(map(len, columns["prompts"] + columns["responses"]))
    planned = fc.planning.prefix_tree(columns["prompts"], columns["responses"])
    return {
        "packed": times["packed"],
        "tree": times["tree"],
        "packed/tree": times["packed"] / times["tree"],
        "tokens": tokens / planned.tokens_after,
        "positions": packed.input_ids.numel() / tree.input_ids.numel(),
        "build": times["build"],
        "mask": times["mask"],
    }


def samples(groups: int, half: int) -> dict[str, Any]:
    """Make groups of rows of one prompt, with the inputs of a policy gradient."""
    rng = np.random.default_rng(0)
    prompts = rng.integers(1, VOCABULARY, (groups, half)).repeat(GROUP, 0)
    responses = rng.integers(1, VOCABULARY, prompts.shape)
    return {
        "prompts": list(prompts),
        "responses": list(responses),
        "loss_mask": list(np.ones_like(responses)),
        "logprobs": list(np.full(responses.shape, -np.log(VOCABULARY))),
        "advantages": rng.standard_normal(responses.shape).tolist(),
        "array_type": "torch",
    }


def loss_of(policy: Policy, batch: fc.Batch) -> torch.Tensor:
    """Return the loss of the example trainer."""
    read, index = batch.loss_positions()
    found = policy(batch.input_ids, batch.position_ids, batch.dense_mask("bool"), read)
    return policy_loss(found[index, batch.targets], batch, float(batch.loss_mask.sum()))


def cell(figures: Figures, name: str) -> str:
    """Format a time or a ratio."""
    if name in ("packed/tree", "tokens", "positions"):
        return f"{figures[name]:.2f}x"
    return time_text(figures[name])


if __name__ == "__main__":
    main(__doc__, measure, cell)
