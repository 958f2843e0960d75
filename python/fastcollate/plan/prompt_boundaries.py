"""Boundaries of prompts: pairs of row indices over an array of offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np

from fastcollate.common.arguments import suggests_names
from fastcollate.plan.grouping import group_offsets
from fastcollate.rows.lengths import Integers


class PromptBoundaries(Sequence[tuple[int, int]]):
    """The first row of each prompt, and one past its last: a read-only sequence of pairs of ints.

    Pairs are made on access. Equal to a list of the same pairs, and to equal boundaries; can be
    pickled. ``list(boundaries)`` is a list.

    Parameters
    ----------
    offsets
        Start of each prompt, with the end of the last, int64 (prompts + 1,).

    Attributes
    ----------
    offsets
        As above, read-only.
    """

    __slots__ = ("offsets",)

    offsets: Integers

    def __init__(self, offsets: Integers) -> None:
        self.offsets = offsets.view()
        self.offsets.flags.writeable = False

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, int]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, int] | list[tuple[int, int]]:
        if isinstance(index, slice):
            starts, stops = self.offsets[:-1][index], self.offsets[1:][index]
            return list(zip(starts.tolist(), stops.tolist(), strict=True))
        return int(self.offsets[:-1][index]), int(self.offsets[1:][index])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return pairwise(self.offsets.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PromptBoundaries):
            return np.array_equal(self.offsets, other.offsets)
        return list(self) == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[PromptBoundaries], tuple[Any, ...]]:
        return type(self), (self.offsets,)

    def __repr__(self) -> str:
        more = ", ..." if len(self) > 6 else ""
        return f"PromptBoundaries([{', '.join(map(str, self[:6]))}{more}])"


@suggests_names
def prompt_boundaries(uids: Any) -> PromptBoundaries:
    """Return the boundaries of prompts in rows.

    Parameters
    ----------
    uids
        The prompt id of each row: a sequence of str, int, bytes, tuples or other comparable
        objects; a NumPy array, a tensor or an Arrow column. At most 1,024 distinct ones may be
        unhashable.

    Returns
    -------
    PromptBoundaries
        The first row of each prompt, and one past its last, as a sequence of pairs of ints; empty
        for no uids. ``offsets``, int64 (prompts + 1,), holds the same as an array.

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
    PromptBoundaries([(0, 2), (2, 5)])
    """
    return PromptBoundaries(prompt_offsets(uids))


def prompt_offsets(uids: Any) -> Integers:
    """Return the offsets of prompts, with the end of the last: int64 (prompts + 1,)."""
    return group_offsets("uids", uids, "uid", "pass the rows of a prompt next to each other")
