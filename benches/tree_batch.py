"""Measure batches of trees: `build_batch(layout=fc.Tree(...))` beside the packed layout.

Rows of groups of 8 with equal prompts, in bins of 16,384 tokens, with log-probabilities and
advantages per response token. Trees are planned before; tokens are compared when read.

tree
    From the bins of a plan, and how many times as long the packed layout takes.
tokens
    The same without a plan: tokens are compared to find shared prefixes, and bins are packed.
packed
    The same rows in the packed layout, in the bins of a plan.
trie
    A trie of Python dicts with an object per token, and its ids, depths and mask bounds as NumPy
    arrays, as AReaL and verl build them; without fields. It gets eight groups, and its time is
    scaled up to all.
per byte
    The time of tree for a byte that it writes, over that of packed.
fill mapped
    Writing as many bytes as the tree has, to memory in use.

The lines of rows show the growth of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import fastcollate as fc
from common.report import Effort, Figures, main, time_cell
from common.workload import arrays_of, fill

GROUP = 8
TRIE_GROUPS = 8
CAPACITY = 16_384


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure prompts as long as responses, longer prompts, different rows, and numbers of rows."""
    groups, length = (2, 64) if effort.is_smoke else (64, 1_000)
    columns = samples(groups, length, length)
    yield "equal prompts, int32", figures(effort, columns)
    yield "equal prompts, lists", figures(effort, as_lists(columns))
    yield "prompts of 4 x responses, int32", figures(effort, samples(groups, 4 * length, length))
    yield "different rows, int32", figures(effort, samples(groups, length, length, is_shared=False))
    for groups in (2, 4) if effort.is_smoke else (16, 32, 64, 128, 256):
        columns = samples(groups, length // 4, length // 4)
        yield f"{groups * GROUP:,} rows", figures(effort, columns)


def samples(groups: int, prompt: int, response: int, *, is_shared: bool = True) -> dict[str, Any]:
    """Make groups of rows, with equal prompts if shared."""
    rng = np.random.default_rng(0)
    count = groups * GROUP

    def ids(rows: int, length: int) -> list[Any]:
        return [rng.integers(0, 150_000, length, np.int32) for _ in range(rows)]

    prompts = ids(groups if is_shared else count, prompt)
    if is_shared:
        prompts = [row.copy() for row in prompts for _ in range(GROUP)]
    return {
        "prompts": prompts,
        "responses": ids(count, response),
        "logprobs": [rng.standard_normal(response, np.float32) for _ in range(count)],
    }


def as_lists(columns: dict[str, Any]) -> dict[str, Any]:
    """Return rows as lists; equal prompts share their ints, like samples of one prompt."""
    lists = {name: [row.tolist() for row in rows] for name, rows in columns.items()}
    first = range(0, len(lists["prompts"]), GROUP)
    lists["prompts"] = [list(lists["prompts"][row]) for row in first for _ in range(GROUP)]
    return lists


def figures(effort: Effort, columns: dict[str, Any]) -> Figures:
    """Measure a batch of rows in both layouts."""
    prompts, responses = columns["prompts"], columns["responses"]
    inputs = {**columns, "advantages": columns["logprobs"]}
    build = partial(fc.build_batch, **inputs, pad_token_id=0, array_type="numpy")
    plan = fc.planning.prefix_tree(prompts, responses)
    tree = partial(build, layout=fc.Tree(plan=plan.pack(fc.Tree(CAPACITY))))
    packed = partial(
        build, layout=fc.Packed(plan=fc.planning.pack(plan.lengths, fc.Packed(CAPACITY)))
    )
    found, beside = tree(), packed()
    for name in ("input_ids", "logprobs"):
        assert np.array_equal(found.to_layout("left")[name], beside.to_layout("left")[name])
    groups = len(prompts) // GROUP
    few = min(groups, TRIE_GROUPS) * GROUP
    calls: dict[str, Callable[[], Any]] = {
        "tree": tree,
        "tokens": partial(build, layout=fc.Tree(CAPACITY)),
        "packed": packed,
        "trie": partial(
            trie_of,
            *([list(map(int, row)) for row in column[:few]] for column in (prompts, responses)),
        ),
        "fill mapped": partial(fill, arrays_of(dict(found))),
    }
    assert len(calls["trie"]()[0]) == sum(plan.select(np.arange(few)).nodes.lengths)
    times = effort.run(calls, slow=["trie"])
    times["trie"] *= len(prompts) / few
    sizes = [sum(array.nbytes for array in arrays_of(dict(batch))) for batch in (found, beside)]
    times["per byte"] = times["tree"] / sizes[0] / (times["packed"] / sizes[1])
    return times


class Node:
    """A token of a trie."""

    def __init__(self, token: int, depth: int) -> None:
        self.token, self.depth = token, depth
        self.children: dict[int, Node] = {}


def trie_of(prompts: list[list[int]], responses: list[list[int]]) -> tuple[Any, Any, Any]:
    """Insert all rows into a trie; return ids, depths and the ends of subtrees."""
    root = Node(-1, -1)
    for prompt, response in zip(prompts, responses, strict=True):
        node = root
        for token in prompt + response:
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = Node(token, node.depth + 1)
            node = child
    ids: list[int] = []
    depths: list[int] = []
    ends: list[int] = []
    stack = list(reversed(root.children.values()))
    opened: list[int] = []
    while stack:
        node = stack.pop()
        while len(opened) > node.depth:
            ends[opened.pop()] = len(ids)
        opened.append(len(ids))
        ids.append(node.token)
        depths.append(node.depth)
        ends.append(0)
        stack.extend(reversed(node.children.values()))
    for place in opened:
        ends[place] = len(ids)
    return np.array(ids), np.array(depths), np.array(ends, np.int32)


def cell(figures: Figures, name: str) -> str:
    """Format a time or a ratio."""
    if name == "per byte":
        return f"{figures[name]:.2f}x"
    return time_cell(figures, name, ours=["tree", "tokens"], peer="packed")


if __name__ == "__main__":
    main(__doc__, measure, cell)
