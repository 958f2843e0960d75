"""Prefix trees as tries of Python dicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fastcollate.testing.reference.reading import Rows, readable, rows_of


class PrefixTrie(NamedTuple):
    """Rows whose common prefixes have one position per token."""

    order: list[int]
    """The rows in the order of their tokens."""
    tokens: list[int]
    """The token at each position. A row's own tokens are contiguous."""
    parents: list[int]
    """The position of the token before it, -1 for first ones."""
    paths: list[list[int]]
    """The positions of each row's tokens, in the order of the input."""

    @property
    def shared(self) -> list[int]:
        """Number of positions that each row, in order, shares with the row before it."""
        shared = []
        before: list[int] = []
        for row in self.order:
            path = self.paths[row]
            same = [a == b for a, b in zip(before, path, strict=False)]
            shared.append((*same, False).index(False))
            before = path
        return shared


def prefix_tree_loops(
    prompts: Rows,
    responses: Rows,
    *,
    share: str = "all",
    uids: Sequence[Any] | None = None,
    same_inputs: Sequence[Any] | None = None,
) -> PrefixTrie:
    """Find the common prefixes of rows, token by token.

    Parameters
    ----------
    prompts, responses, share, uids, same_inputs
        As in `fastcollate.planning.prefix_tree`, but ids must be hashable.

    Returns
    -------
    PrefixTrie
        The rows' order, and a position for each distinct token.
    """
    prompt_ids = [[int(token) for token in readable(row)] for row in rows_of(prompts)]
    response_ids = [[int(token) for token in readable(row)] for row in rows_of(responses)]
    groups: dict[Any, list[int]] = {}
    for row, prompt in enumerate(prompt_ids):
        key = (
            uids[row] if share == "group" and uids is not None else None,
            None if same_inputs is None else same_inputs[row],
            tuple(prompt) if share == "prompts" else None,
        )
        groups.setdefault(key, []).append(row)
    trie = PrefixTrie([], [], [], [[] for _ in prompt_ids])
    for rows in groups.values():
        if share == "prompts":
            shared = _count_added(trie, prompt_ids[rows[0]], [])
            for row in rows:
                trie.order.append(row)
                trie.paths[row].extend(_count_added(trie, response_ids[row], shared))
        else:
            _add_group(trie, {row: prompt_ids[row] + response_ids[row] for row in rows})
    return trie


def _count_added(trie: PrefixTrie, tokens: list[int], path: list[int]) -> list[int]:
    """Add tokens that follow on a path, and return the path with them."""
    path = list(path)
    for token in tokens:
        trie.parents.append(path[-1] if path else -1)
        path.append(len(trie.tokens))
        trie.tokens.append(token)
    return path


def _add_group(trie: PrefixTrie, rows: dict[int, list[int]]) -> None:
    """Add rows that share their common prefixes."""
    root: dict[Any, Any] = {}
    for row, stream in rows.items():
        node = root
        for token in stream:
            node = node.setdefault(token, {})
        node.setdefault("rows", []).append(row)
    stack: list[tuple[dict[Any, Any], list[int], list[int]]] = [(root, [], [])]
    while stack:
        node, tokens, path = stack.pop()
        path = _count_added(trie, tokens, path)
        for row in node.pop("rows", []):
            trie.order.append(row)
            trie.paths[row].extend(path)
        stack += [(node[token], [token], path) for token in sorted(node, reverse=True)]
