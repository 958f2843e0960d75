"""Trajectories of turns that continue each other, or nearly so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from hypothesis import strategies as st

from fastcollate.plan.merge import Merge
from fastcollate.testing.drawing import Rollouts, with_fields


@dataclass
class TrajectoryID:
    """An id with equality but no hash, as SkyRL's."""

    instance_id: str
    repetition_id: int


class Trajectories(NamedTuple):
    """Turns and their trajectory ids."""

    turns: Rollouts
    trajectory_ids: list[Any]
    is_last_step: list[bool]


class _Text(NamedTuple):
    """A turn from which the next one is made."""

    first: int
    """Tokens of the prompt that the trajectory started with."""
    prompt: list[int]
    response: list[int]


Change: TypeAlias = Callable[[st.DrawFn, "_Words", _Text], list[int]]
"""Makes the next prompt from a turn, without the observation."""

# Few different ids, so that turns also agree by chance. CPython caches the smallest integers;
# equal larger ones may be the same object or not.
VOCABULARIES = [
    [0, 1],
    [5, 6, 7],
    [1000, 1001],
    [70_000, 70_001, 70_002, 70_003],
    [-(2**63), -1, 2**63 - 1],
]

REALIGNING = ["tail", "response", "span"]
"""Spans that may be masked under the policy "realign"."""


class _Words:
    """Draws tokens: few, and at times many."""

    def __init__(self, draw: st.DrawFn, max_len: int, max_long_len: int) -> None:
        self._draw = draw
        self._vocabulary = draw(st.sampled_from(VOCABULARIES))
        self._rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        short, long = st.integers(0, max_len), st.integers(0, max_long_len)
        self._length = st.integers(0, 9).flatmap(lambda which: long if which == 9 else short)

    def any(self) -> list[int]:
        return self.some(self._draw(self._length))

    def some(self, count: int) -> list[int]:
        places = self._rng.integers(0, len(self._vocabulary), count)
        return [self._vocabulary[place] for place in places]

    def other(self, token: int) -> int:
        place = self._vocabulary.index(token)
        return self._vocabulary[(place + 1) % len(self._vocabulary)]


def _extend(draw: st.DrawFn, words: _Words, text: _Text) -> list[int]:
    return text.prompt + text.response


def _retry(draw: st.DrawFn, words: _Words, text: _Text) -> list[int]:
    return text.prompt


def _shrink(draw: st.DrawFn, words: _Words, text: _Text) -> list[int]:
    whole = text.prompt + text.response
    return whole[: draw(st.integers(0, len(whole)))]


def _start_anew(draw: st.DrawFn, words: _Words, text: _Text) -> list[int]:
    return []


def _diverge(draw: st.DrawFn, words: _Words, text: _Text) -> list[int]:
    """Change a token of the first prompt, after it, or of the last response."""
    whole = text.prompt + text.response
    bounds = [0, text.first, len(text.prompt), len(whole)]
    part = draw(st.integers(0, 2))
    if bounds[part] < bounds[part + 1]:
        place = draw(st.integers(bounds[part], bounds[part + 1] - 1))
        whole[place] = words.other(whole[place])
    return whole


def _retokenise(draw: st.DrawFn, words: _Words, text: _Text) -> list[int]:
    """Replace some tokens of the last response by none, fewer, as many or more."""
    response = text.response
    start = draw(st.integers(0, len(response)))
    stop = draw(st.integers(start, min(start + 2, len(response))))
    between = words.some(draw(st.integers(0, 2)))
    return [*text.prompt, *response[:start], *between, *response[stop:]]


_CHANGES: list[Change] = [_extend, _extend, _retokenise, _diverge, _retry, _shrink, _start_anew]


@st.composite
def trajectories(
    draw: st.DrawFn,
    *,
    max_trajectories: int = 3,
    max_turns: int = 6,
    max_len: int = 4,
    max_long_len: int = 40,
) -> Trajectories:
    """Draw turns that continue earlier ones of their trajectory, or fail to.

    Most often, the next prompt is all previous tokens and an observation. Else the last response is
    retokenized; or a token differs in the first prompt, in an observation or in the last response;
    or the prompt is the same again, a shorter or another one. At times an earlier turn is
    continued, as in interleaved branches.

    Parameters
    ----------
    max_trajectories
        The most trajectories; there is at least one.
    max_turns
        The most turns of a trajectory; there is at least one.
    max_len
        The most tokens of most prompts that start a trajectory, responses and observations.
    max_long_len
        The same for some of them.

    Returns
    -------
    SearchStrategy[Trajectories]
        Token ids are of a vocabulary of two to four, and equal ones are either the same object
        wherever a turn repeats an earlier one or all different objects. Fields as in `rollouts`.
        Ids of trajectories are strings, numbers, or objects that have no hash.
    """
    words = _Words(draw, max_len, max_long_len)
    goes_back = draw(st.booleans())
    prompts: list[list[int]] = []
    responses: list[list[int]] = []
    counts = draw(st.lists(st.integers(1, max_turns), min_size=1, max_size=max_trajectories))
    for count in counts:
        texts: list[_Text] = []
        for turn in range(count):
            if turn == 0:
                prompt = words.any()
                first = len(prompt)
            else:
                which = draw(st.integers(0, turn - 1)) if goes_back else turn - 1
                change = draw(st.sampled_from(_CHANGES))
                prompt = change(draw, words, texts[which]) + words.any()
                first = min(texts[which].first, len(prompt))
            texts.append(_Text(first, prompt, words.any()))
        prompts += [text.prompt for text in texts]
        responses += [text.response for text in texts]
    if draw(st.booleans()):
        prompts, responses = distinct(prompts), distinct(responses)
    return Trajectories(
        draw(with_fields(prompts, responses)),
        draw(_ids(counts)),
        [turn == count - 1 for count in counts for turn in range(count)],
    )


def distinct(rows: list[list[int]]) -> list[list[int]]:
    """Return rows in which equal numbers are distinct objects, except small cached ones."""
    return [[int(str(token)) for token in row] for row in rows]


@st.composite
def _ids(draw: st.DrawFn, counts: list[int]) -> list[Any]:
    make: Callable[[int], Any] = draw(
        st.sampled_from(
            [
                lambda index: index - 1,
                lambda index: f"task {index}",
                lambda index: (index, None),
                lambda index: TrajectoryID("task", index),
                lambda index: TrajectoryID(f"task {index}", 0),
            ]
        )
    )
    # Made anew for every turn: they are equal, but not the same object.
    return [make(index) for index, count in enumerate(counts) for _ in range(count)]


@st.composite
def name_turns(draw: st.DrawFn, data: Trajectories) -> dict[str, Any]:
    """Draw the arguments that identify trajectories: ids, flags or both."""
    both = {"trajectory_ids": data.trajectory_ids, "is_last_step": data.is_last_step}
    names = draw(st.sampled_from([["trajectory_ids"], ["is_last_step"], list(both)]))
    return {name: both[name] for name in names}


@st.composite
def merge_options(draw: st.DrawFn, policy: str | None = None) -> dict[str, Any]:
    """Draw a policy, if none is given, and its options: arguments of `fastcollate.merge_turns`."""
    policy = draw(st.sampled_from(["exact", "branch", "realign"])) if policy is None else policy
    options: dict[str, Any] = {"rewards": draw(st.sampled_from(["error", "sum", "last"]))}
    if policy == "realign":
        options["mask_drift"] = draw(st.sampled_from(REALIGNING))
        options["max_drift_tokens"] = draw(st.sampled_from([0, 0, 1, 3, 100]))
        if options["mask_drift"] != "span":
            options["fork_threshold"] = draw(st.sampled_from([None, 1, 3, 1024, 1024]))
    return {"policy": Merge(policy, **options)}  # type: ignore[arg-type]


def taking_numbers(options: dict[str, Any], rewards: Any | None) -> dict[str, Any]:
    """Return options of `fastcollate.merge_turns` that drop no number of these rewards silently.

    Parameters
    ----------
    options
        As drawn by `merge_options`.
    rewards
        As in `fastcollate.build_batch`. If each turn has one number, numbers are summed instead of
        raising an error.

    Returns
    -------
    dict[str, object]
        Options, the same if rewards are per token.
    """
    are_numbers = rewards is not None and not hasattr(rewards[0], "__len__")
    policy = options.get("policy", "exact")
    policy = Merge(policy) if isinstance(policy, str) else policy  # type: ignore[arg-type]
    if are_numbers and policy.rewards == "error":
        return {**options, "policy": replace(policy, rewards="sum")}
    return options
