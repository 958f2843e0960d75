"""A port of SkyRL's boundaries of prompts, row by row."""

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
    SkyRL 0.4.0, ``skyrl/train/dataset/preprocess.py``.
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
