"""Ports of SkyRL's boundaries of prompts and mini-batches, row by row."""

from __future__ import annotations

from collections.abc import Sequence


def compute_prompt_boundaries(uids: Sequence[str]) -> list[tuple[int, int]]:
    """Return the result of SkyRL's function of this name: this is the peer in the benchmarks.

    Raises
    ------
    AssertionError
        If a uid comes again after another.

    Notes
    -----
    SkyRL 0.4.0, ``skyrl/train/dataset/preprocess.py``; so is the other function.
    """
    found: list[tuple[int, int]] = []
    before: set[str] = set()
    first = 0
    for row in range(1, len(uids)):
        if uids[row] == uids[row - 1]:
            continue
        if uids[row] in before:
            raise AssertionError(
                f"uid {uids[row]!r} appears in non-contiguous positions at index {row}"
            )
        before.add(uids[row - 1])
        found.append((first, row))
        first = row
    if len(uids) > 0:
        found.append((first, len(uids)))
    return found


def compute_prompt_mini_batch_boundaries(
    uids: Sequence[str],
    mini_batch_size: int,
    train_batch_size: int,
    is_stepwise: bool,
    n_samples_per_prompt: int,
) -> list[tuple[int, int]]:
    """Return the result of SkyRL's function of this name.

    Raises
    ------
    AssertionError
        If a uid comes again after another, or the numbers contradict each other.
    IndexError, ZeroDivisionError
        If there are no uids, or mini-batches are of none.
    """
    prompts = compute_prompt_boundaries(uids)
    if not prompts:
        raise IndexError("no uids")
    if len(prompts) != train_batch_size or train_batch_size % mini_batch_size != 0:
        raise AssertionError("the number of prompts")
    found = []
    for first in range(0, len(prompts), mini_batch_size):
        found.append((prompts[first][0], prompts[first + mini_batch_size - 1][1]))
    if len(found) != train_batch_size // mini_batch_size:
        raise AssertionError("the number of mini-batches")
    if not is_stepwise:
        rows = n_samples_per_prompt * mini_batch_size
        for index, (start, end) in enumerate(found):
            if start != index * rows or end != start + rows:
                raise AssertionError("the number of rows")
    return found
