"""Measure the search for shared prefixes of rows, and the packing of such rows.

1,024 rows of 16,384 tokens in groups of 8: the prompts of a group, half of all tokens, are equal.
Lists of "shared ints" hold the same int objects in equal prompts, as if these were copied; those of
"distinct ints" have an object for every number.

fastcollate
    `prefix_tree`, and how many times as long the trie takes.
memcmp
    The bare comparison of each row, as int32, with its successor in order over the tokens that
    they share.
trie
    A trie of Python dicts with an object for every token, as AReaL and verl build one. It gets
    eight groups of lists, and its time is scaled up to all.
to memcmp
    fastcollate's time over that of memcmp.
a token
    fastcollate's time for one token of all rows.

The last lines measure plans of ever more rows, whose trees have 32 rows and about 18,000 tokens:

prefix_tree
    From arrays of 32 tokens a row.
pack
    Cut and packed in bins of 16,384 tokens.
more bins
    The same in three quarters as many bins as rows.
select
    The plan of every second row.
per n log n
    The time of pack over n * log2(n): constant if the time grows so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import fastcollate as fc
from common.report import Effort, Figures, main, time_cell

Rows = tuple[list[Any], list[Any]]

GROUP = 8
TRIE_GROUPS = 8
CAPACITY = 16_384


def measure(effort: Effort) -> Iterator[tuple[str, Figures]]:
    """Measure every kind of rows, and plans of growing numbers of rows."""
    groups, half = (16, 64) if effort.is_smoke else (128, 8_192)
    arrays = samples(groups, half)
    peer = partial(trie_of, *first(lists_of(arrays, is_shared=True), TRIE_GROUPS))
    plan = fc.planning.prefix_tree(*arrays)
    assert plan.shared.tolist() == [0, *[half] * (GROUP - 1)] * groups
    bare = memcmp(arrays, plan)
    for case, rows in {
        "arrays, int32": arrays,
        "arrays, int64": tuple([row.astype(np.int64) for row in column] for column in arrays),
        "Ragged": tuple(map(fc.ragged, arrays)),
        "lists, shared ints": lists_of(arrays, is_shared=True),
        "lists, distinct ints": lists_of(arrays, is_shared=False),
    }.items():
        call = partial(fc.planning.prefix_tree, *rows)
        assert call() == plan
        times = effort.run({"fastcollate": call, "memcmp": bare, "trie": peer}, slow=["trie"])
        times["trie"] *= groups / TRIE_GROUPS
        times["to memcmp"] = times["fastcollate"] / times["memcmp"]
        yield case, times | {"a token": times["fastcollate"] / plan.tokens_before}
    for count in (64, 256) if effort.is_smoke else (12_500, 25_000, 50_000, 100_000):
        yield f"{count:,} rows", of_plans(effort, count)


def samples(groups: int, half: int) -> Rows:
    """Make groups of rows with common prefixes."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 150_000, half, np.int32) for _ in range(groups)]
    responses = [rng.integers(0, 150_000, half, np.int32) for _ in range(groups * GROUP)]
    return [prompt.copy() for prompt in prompts for _ in range(GROUP)], responses


def lists_of(rows: Rows, *, is_shared: bool) -> Rows:
    """Return rows as lists; shared ints are the same objects in equal prompts."""
    prompts, responses = ([row.tolist() for row in column] for column in rows)
    if is_shared:
        prompts = [list(prompts[row - row % GROUP]) for row in range(len(prompts))]
    return prompts, responses


def first(rows: Rows, groups: int) -> Rows:
    """Return the first groups of rows."""
    count = groups * GROUP
    return rows[0][:count], rows[1][:count]


def memcmp(rows: Rows, plan: fc.planning.TreePlan) -> Callable[[], int]:
    """Return a call that compares the equal bytes of each row and its successor."""
    data = [np.concatenate(parts) for parts in zip(*rows, strict=True)]
    in_order = [data[row] for row in plan.order.tolist()]
    pairs = [
        (row[:shared].tobytes(), before[:shared].tobytes())
        for before, row, shared in zip(
            in_order, in_order[1:], plan.shared[1:].tolist(), strict=False
        )
    ]

    def compare() -> int:
        return sum(one == other for one, other in pairs)

    assert compare() == len(pairs)
    return compare


class Node:
    """A token of a trie."""

    def __init__(self, token: int | None, parent: Node | None) -> None:
        self.token = token
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.rows: list[int] = []


def trie_of(prompts: list[list[int]], responses: list[list[int]]) -> int:
    """Insert all rows into a trie; return its number of tokens."""
    root, count = Node(None, None), 0
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        node = root
        for token in prompt + response:
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = Node(token, node)
                count += 1
            node = child
        node.rows.append(row)
    return count


def of_plans(effort: Effort, count: int) -> Figures:
    """Measure plans of the given number of rows."""
    rng = np.random.default_rng(count)
    tokens = rng.integers(0, 50, (count, 16), np.int32)
    lengths = rng.integers(100, 2_000, count)
    shared = np.minimum(lengths[1:], lengths[:-1]) // 2
    shared[GROUP * 4 - 1 :: GROUP * 4] = 0
    plan = fc.planning.TreePlan(
        np.arange(count), np.append(0, shared), lengths, np.zeros_like(lengths)
    )
    times = effort.run(
        {
            "prefix_tree": partial(fc.planning.prefix_tree, tokens, tokens),
            "pack": partial(plan.pack, fc.Tree(CAPACITY)),
            "more bins": partial(plan.pack, fc.Tree(CAPACITY, min_bins=count * 3 // 4)),
            "select": partial(plan.select, np.arange(0, count, 2)),
        }
    )
    times["per n log n"] = times["pack"] / (count * np.log2(count))
    return times


def cell(figures: Figures, name: str) -> str:
    """Format a time or a ratio."""
    if name == "to memcmp":
        return f"{figures[name]:.2f}x"
    ours = ["fastcollate"] if "trie" in figures else []
    return time_cell(figures, name, ours=ours, peer="trie")


if __name__ == "__main__":
    main(__doc__, measure, cell)
