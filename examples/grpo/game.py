"""Higher or lower: guess a number; each wrong guess gets a hint."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

VOCABULARY = (
    *("<pad>", "<end>", "guess", "to", "higher", "lower", "what?"),
    *("0", "1", "2", "3", "4", "5", "6", "7", "8", "9"),
)
PAD, END = VOCABULARY.index("<pad>"), VOCABULARY.index("<end>")

HIGHS = range(8, 16)  # a range of 9 to 16 numbers
MAX_GUESSES = 5
MAX_RESPONSE = 3  # two digits and <end>
MAX_TOKENS = 6 + MAX_GUESSES * (MAX_RESPONSE + 1)


def encode(text: str) -> list[int]:
    """Return the tokens of words; numbers become digits."""
    return [
        VOCABULARY.index(token)
        for word in text.split()
        for token in (word if word.isdecimal() else [word])
    ]


def decode(tokens: list[int]) -> str:
    """Return tokens as text."""
    return " ".join(VOCABULARY[token] for token in tokens)


class Task(NamedTuple):
    """A secret number from 0 to `high`."""

    high: int
    secret: int


def draw_tasks(rng: np.random.Generator, count: int) -> list[Task]:
    """Draw tasks at random."""
    highs = rng.choice(HIGHS, count)
    secrets = rng.integers(highs + 1)
    return [Task(*pair) for pair in zip(highs.tolist(), secrets.tolist(), strict=True)]


class Turn(NamedTuple):
    """One guess, with everything before it as its prompt."""

    prompt: list[int]
    response: list[int]
    logprobs: list[float]


class Game:
    """One episode. The number of tokens read determines the speaker.

    Parameters
    ----------
    task
        The number to guess.

    Attributes
    ----------
    tokens : list[int]
        All tokens so far, of the game and of the player.
    turns : list[Turn]
        The guesses that are complete.
    reward : float
        1 for the first guess if it is right, 0.1 less for each one before it; 0 if none is.
    is_over : bool
        True after a right guess or too many guesses.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.tokens: list[int] = []
        self.turns: list[Turn] = []
        self.reward = 0.0
        self.is_over = False
        self._tell(f"guess 0 to {task.high} <end>")

    def say(self, token: int, logprob: float) -> None:
        """Add a token of the player's; a guess ends with <end> or at its maximum length."""
        self.tokens.append(token)
        self._logprobs.append(logprob)
        prompt, response = self.tokens[: self._start], self.tokens[self._start :]
        if token == END or len(response) == MAX_RESPONSE:
            self.turns.append(Turn(prompt, response, self._logprobs))
            self._answer(response)

    def _answer(self, response: list[int]) -> None:
        said = "".join(VOCABULARY[token] for token in response[:-1])
        guess = int(said) if response[-1] == END and said.isdecimal() else None
        is_right = guess == self.task.secret
        self.is_over = is_right or len(self.turns) == MAX_GUESSES
        if is_right:
            self.reward = 1 - 0.1 * (len(self.turns) - 1)
        elif not self.is_over:
            self._tell("what?" if guess is None else self._direction(guess))

    def _direction(self, guess: int) -> str:
        return "higher" if guess < self.task.secret else "lower"

    def _tell(self, text: str) -> None:
        self.tokens += encode(text)
        self._start = len(self.tokens)  # of the next response
        self._logprobs: list[float] = []
