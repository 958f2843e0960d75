"""Measure attention of trees by `scaled_dot_product_attention` of each segment.

Forward and backward pass of one layer of 8 heads of 64 dimensions, in float32. Groups of 8 rows
have a number of tokens in common, and as many others as fill 256.

apart
    No tokens shared.
shared
    All common tokens shared.
by cost
    What `fc.Tree(cost=...)` shares, with costs fitted to timings of other trees.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

import fastcollate as fc
from common.report import Effort, Figures, main, time_cell
from fastcollate.compat.transformers.attention import tree_attention

LENGTH, HEADS, DIM = 256, 8, 64


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Fit the costs, then measure growing numbers of common tokens."""
    costs = fitted(effort)
    yield f"fitted: {costs!r}", {}
    for common in (1, 16) if effort.is_smoke else (1, 3, 8, 16, 32, 64, 128, 192):
        layouts = {
            "apart": fc.Tree(min_shared=LENGTH),
            "shared": fc.Tree(),
        }
        if costs.has_paths:  # a single noisy round may find no cost of segments
            layouts["by cost"] = fc.Tree(cost=costs)
        calls = {name: call(rows(common, 2), layout)[1] for name, layout in layouts.items()}
        yield f"{common} of {LENGTH} tokens in common", effort.run(calls)


def rows(common: int, groups: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Make groups of 8 rows with a number of tokens in common."""
    prompts = [np.full(common, 1 + row // 8) for row in range(8 * groups)]
    responses = [np.full(LENGTH - common, 1_000 + row) for row in range(8 * groups)]
    return prompts, responses


def call(
    parts: tuple[list[np.ndarray], list[np.ndarray]], layout: fc.Tree
) -> tuple[fc.Batch, partial[None]]:
    """Return a batch, and a call of its attention, and of its gradients."""
    batch = fc.build_batch(*parts, pad_token_id=0, layout=layout)
    paths = batch.attention_paths()
    shape = (1, HEADS, batch.plan.num_positions, DIM)
    inputs = [torch.randn(shape, requires_grad=True) for _ in range(3)]
    names = {f"tree_{name}": value for name, value in paths._asdict().items()}
    return batch, partial(run, inputs, names)


def run(inputs: list[torch.Tensor], paths: dict[str, object]) -> None:
    found, _ = tree_attention(None, *inputs, None, **paths)
    found.sum().backward()
    for one in inputs:
        one.grad = None


def fitted(effort: Effort) -> fc.planning.Costs:
    """Fit seconds of tokens, pairs, segments and keys to trees of several shapes."""
    timings = []
    cases = [(1, 64), (32, 64), (1, 256), (128, 256), (255, 256), (192, 512), (2, 8), (6, 8)]
    for common, length in cases:
        for count in (8,) if effort.is_smoke else (4, 8, 16):
            prompts = [np.full(common, 1)] * count
            responses = [np.full(length - common, 1_000 + row) for row in range(count)]
            batch, one = call((prompts, responses), fc.Tree())
            timings.append((batch, effort.run({"one": one})["one"]))
    return fc.planning.Costs.fit(timings).costs


def cell(times: Figures, name: str) -> str:
    """Format a time."""
    return time_cell(times, name, ours=["by cost"], peer="apart")


if __name__ == "__main__":
    main(__doc__, measure, cell)
