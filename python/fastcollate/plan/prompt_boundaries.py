"""Boundaries of prompts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from fastcollate.common.arguments import suggests_names
from fastcollate.plan.grouping import group_offsets
from fastcollate.rows.lengths import Integers


@suggests_names
def prompt_boundaries(uids: Any) -> list[tuple[int, int]]:
    """Return the boundaries of prompts in rows.

    Parameters
    ----------
    uids
        The prompt id of each row: a sequence of str, int, bytes, tuples or other comparable
        objects; a NumPy array, a tensor or an Arrow column. At most 1,024 distinct ones may be
        unhashable.

    Returns
    -------
    list[tuple[int, int]]
        The first row of each prompt, and one past its last; empty for no uids.

    Raises
    ------
    ValueError
        A uid recurs after another.
    TypeError
        `uids` is not a sequence, or holds incomparable uids or more than 1,024 distinct unhashable
        ones.

    Notes
    -----
    The behaviour matches SkyRL's ``compute_prompt_boundaries``.

    Examples
    --------
    >>> fc.planning.prompt_boundaries(["p0", "p0", "p1", "p1", "p1"])
    [(0, 2), (2, 5)]
    """
    return list(pairwise(prompt_offsets(uids).tolist()))


def prompt_offsets(uids: Any) -> Integers:
    """Return the offsets of prompts, with the end of the last: int64 (prompts + 1,)."""
    return group_offsets("uids", uids, "uid", "pass the rows of a prompt next to each other")
