"""Truncation of samples: the part of each row that is kept."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from fastcollate.common.arguments import check_choice, check_count
from fastcollate.rows.lengths import Integers

Keep: TypeAlias = Literal["start", "end"]


class Truncated(NamedTuple):
    """How much of some samples was cut off."""

    rows: int
    tokens: int


class Limit(NamedTuple):
    """The maximum length of a row, and the part to keep of longer ones."""

    max_length: int
    keep: Keep

    @classmethod
    def check(cls, max_length: Any, keep: Any) -> Limit | None:
        """Check the options of a collator; None without a limit."""
        check_choice("keep", keep, get_args(Keep))
        if max_length is None:
            return None
        return cls(check_count("max_length", max_length, "a number of tokens"), keep)

    def kept(self, lengths: Integers) -> tuple[Integers, Integers, Truncated]:
        """Return the kept part of each row: its start and its length, int64 (rows,)."""
        kept = np.minimum(lengths, self.max_length)
        cut = lengths - kept
        starts = cut if self.keep == "end" else np.zeros_like(cut)
        return starts, kept, Truncated(int(np.count_nonzero(cut)), int(cut.sum()))
