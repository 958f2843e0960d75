"""Turns that go on with each other, or nearly so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from choices import Choices
from fastcollate.planning import Merge

# Few different ids, so that turns also agree by accident; equal large ones are not one object.
_VOCABULARIES = [[0, 1], [5, 6, 7], [1000, 1001], [-(2**63), -1, 2**63 - 1]]


class Turns(NamedTuple):
    """Turns, and what tells the trajectories apart."""

    prompts: list[list[int]]
    responses: list[list[int]]
    trajectory_ids: list[Any]
    is_last_step: list[bool]


class Equal:
    """An id that has equality, but no hash."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]


def draw_turns(choices: Choices) -> Turns:
    """Draw up to three trajectories of up to five turns."""
    words = _words(choices)
    # Made anew for every turn: they are equal, but not the same object.
    make_id = choices.pick([int, "task {}".format, lambda index: (index,), Equal])
    found = Turns([], [], [], [])
    for trajectory in range(1 + choices.below(3)):
        count = 1 + choices.below(5)
        turns: list[tuple[list[int], list[int]]] = []
        for turn in range(count):
            prompt = words()
            if turn > 0:
                before = choices.pick([turns[-1], turns[-1], choices.pick(turns)])
                prompt = choices.pick(_CHANGES)(choices, *before) + prompt
            turns.append((prompt, words()))
            found.trajectory_ids.append(make_id(trajectory))
            found.is_last_step.append(turn == count - 1)
        found.prompts.extend(prompt for prompt, _ in turns)
        found.responses.extend(response for _, response in turns)
    return found


def _words(choices: Choices) -> Callable[[], list[int]]:
    vocabulary = choices.pick(_VOCABULARIES)
    longest = choices.pick([3, 3, 5, 40])

    def words() -> list[int]:
        return some(choices, vocabulary, choices.below(longest + 1))

    return words


def some(choices: Choices, values: Sequence[Any], count: int) -> list[Any]:
    """Draw so many of these values."""
    return [values[index] for index in choices.rng.integers(0, len(values), count)]


Change = Callable[[Choices, "list[int]", "list[int]"], "list[int]"]
"""From a turn's prompt and response to the start of the next prompt."""


def _cut(choices: Choices, prompt: list[int], response: list[int]) -> list[int]:
    whole = [*prompt, *response]
    return whole[: choices.below(len(whole) + 1)]


def _differ(choices: Choices, prompt: list[int], response: list[int]) -> list[int]:
    """Change one token anywhere."""
    whole = [*prompt, *response]
    if whole:
        whole[choices.below(len(whole))] = choices.pick(whole)
    return whole


def _retokenise(choices: Choices, prompt: list[int], response: list[int]) -> list[int]:
    """Put other tokens in the place of some of the response."""
    start = choices.below(len(response) + 1)
    between = (prompt + response)[: choices.below(3)]
    return [*prompt, *response[:start], *between, *response[start + choices.below(3) :]]


_CHANGES: list[Change] = [
    *[lambda _, prompt, response: prompt + response] * 3,
    _retokenise,
    _retokenise,
    _differ,
    _cut,
    lambda _, prompt, __: prompt,
]


def draw_merge(choices: Choices) -> dict[str, Any]:
    """Draw options of `merge_turns`."""
    policy = choices.pick(["exact", "branch", "realign", "realign"])
    options: dict[str, Any] = {"rewards": choices.pick(["error", "sum", "last"])}
    if policy == "realign" and choices.one_in(2):
        options["mask_drift"] = choices.pick(["tail", "response", "span"])
        options["max_drift_tokens"] = choices.pick([0, 1, 3, 100])
        if options["mask_drift"] != "span":
            options["fork_threshold"] = choices.pick([None, 1, 3, 1024])
    return {"policy": Merge(policy, **options)}
