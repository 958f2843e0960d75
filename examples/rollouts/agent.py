"""The agent: a language model that spells out given statements, with slips."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, pre_tokenizers

from .language_model import NGramModel


class Response(NamedTuple):
    """One turn's sampled tokens."""

    ids: list[int]
    logprobs: list[float]


class Agent:
    """A policy that writes a given statement token by token.

    Each token is sampled among those that spell a prefix of the rest of the statement, in
    proportion to the model's probability of the token, times the probability with which its
    unigrams spell the remaining text. So the text is given, but its tokens are not: as in large
    models, they may differ from the tokenizer's own encoding.

    Parameters
    ----------
    model : NGramModel
        Gives the probabilities.
    tokenizer : Tokenizer
        A byte-level tokenizer.
    end_of_turn : str
        The special token that closes every response.
    """

    def __init__(self, model: NGramModel, tokenizer: Tokenizer, end_of_turn: str) -> None:
        self._model = model
        self._unigram_logprobs = np.log(model.next_token_probabilities([]))
        self._special = list(tokenizer.get_added_tokens_decoder())
        self._end_of_turn = tokenizer.get_vocab()[end_of_turn]
        self._ids = tokenizer.get_vocab(with_added_tokens=False)
        self._longest = max(map(len, self._ids))
        self._byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def respond(
        self, prompt: list[int], statement: str, slips: bool, rng: np.random.Generator
    ) -> Response:
        """Spell out a statement.

        Parameters
        ----------
        prompt : list of int
            The token ids so far.
        statement : str
            The text to spell.
        slips : bool
            True to sample one token, at a random position, among all the wrong ones instead.
        rng : numpy.random.Generator
            Source of randomness.

        Returns
        -------
        Response
            The ids, closed by the end-of-turn token, and their natural log-probabilities under the
            model itself, without the restriction to the statement.
        """
        # One character for each byte, as in the tokenizer's vocabulary.
        spelling = "".join(piece for piece, _ in self._byte_level.pre_tokenize_str(statement))
        steps, rest = self._look_ahead(spelling)
        slip_at = int(rng.integers(len(spelling))) if slips else len(steps)
        ids: list[int] = []
        logprobs = []
        at = 0
        while at < len(steps):
            logits = np.log(self._model.next_token_probabilities(prompt + ids))
            right, ends = list(steps[at]), list(steps[at].values())
            choice = _sample(logits[right] + rest[ends], rng)
            token, at = right[choice], ends[choice]
            if slip_at < at:
                slip_at = len(steps)
                wrong = logits.copy()
                wrong[right + self._special] = -np.inf
                token = _sample(wrong, rng)
            ids.append(token)
            logprobs.append(float(logits[token]))
        return Response(ids, logprobs)

    def _look_ahead(self, spelling: str) -> tuple[list[dict[int, int]], NDArray[np.float64]]:
        """Return, for each offset, the next offsets, and the log-probability of the rest."""
        steps: list[dict[int, int]] = [{} for _ in spelling]
        steps.append({self._end_of_turn: len(steps) + 1})
        rest = np.zeros(len(steps) + 1)
        for at in reversed(range(len(spelling))):
            ends = range(at + 1, min(at + self._longest, len(spelling)) + 1)
            steps[at] = {self._ids[s]: end for end in ends if (s := spelling[at:end]) in self._ids}
            logprobs = self._unigram_logprobs[list(steps[at])] + rest[list(steps[at].values())]
            rest[at] = np.logaddexp.reduce(logprobs)
        return steps, rest


def _sample(logits: NDArray[np.float64], rng: np.random.Generator) -> int:
    weights = np.exp(logits - logits.max())
    return int(rng.choice(len(weights), p=weights / weights.sum()))
