"""An n-gram language model over token ids, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class NGramModel:
    """Witten-Bell interpolated n-gram model.

    Every order interpolates its own counts with the next lower order:
    ``p(w | h) = (count(h w) + kinds(h) * p(w | h[1:])) / (count(h) + kinds(h))``, with
    ``kinds(h)`` the number of different tokens seen after ``h`` (Witten and Bell, 1991). Unigrams
    are interpolated with the uniform distribution, so no token is impossible.

    Parameters
    ----------
    tokens : ndarray of int64
        The text to fit.
    vocab_size : int
        Number of token ids.
    order : int
        Length of the longest n-gram.
    """

    def __init__(self, tokens: NDArray[np.int64], vocab_size: int, order: int = 4) -> None:
        if vocab_size**order > np.iinfo(np.int64).max:
            raise ValueError(f"{order}-grams of {vocab_size} ids do not fit 64 bits")
        self.vocab_size = vocab_size
        self.order = order
        self._tables = []
        for n in range(1, order + 1):
            # An n-gram is one number in base `vocab_size`, so those of one history are adjacent in
            # the sorted table.
            grams = np.zeros(len(tokens) - n + 1, np.int64)
            for offset in range(n):
                grams = grams * vocab_size + tokens[offset : offset + len(grams)]
            self._tables.append(np.unique(grams, return_counts=True))

    def next_token_probabilities(self, context: Sequence[int]) -> NDArray[np.float64]:
        """Return the probability of every token id after `context`, shape ``(vocab_size,)``."""
        probabilities = np.full(self.vocab_size, 1 / self.vocab_size)
        for history_len, (grams, counts) in enumerate(self._tables[: len(context) + 1]):
            history = 0
            for token in context[len(context) - history_len :]:
                history = history * self.vocab_size + token
            first = history * self.vocab_size
            start, stop = np.searchsorted(grams, [first, first + self.vocab_size])
            kinds = stop - start
            if kinds == 0:
                break  # longer histories were not seen, either
            probabilities *= kinds
            probabilities[grams[start:stop] - first] += counts[start:stop]
            probabilities /= counts[start:stop].sum() + kinds
        return probabilities
