"""A fuzzer's bytes as choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


class Choices:
    """Choices determined by bytes, the same ones every time.

    After the end of the bytes every choice is the first option, so every target ends.
    This is not ``atheris.FuzzedDataProvider``, so that an input can be run again without atheris.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.rng = np.random.default_rng(self.below(1 << 16))
        """The source of bulk values: choosing each by bytes would make inputs longer."""

    def below(self, limit: int) -> int:
        """Choose a number from 0 on."""
        size = 1 if limit <= 1 << 8 else 4
        chosen = int.from_bytes(self._data[self._at : self._at + size], "little")
        self._at += size
        return chosen % limit

    def pick(self, options: Sequence[T]) -> T:
        """Choose one of these."""
        return options[self.below(len(options))]

    def one_in(self, count: int) -> bool:
        """Choose yes, once in so many times."""
        return self.below(count) == count - 1
