"""Rollouts of many turns, in which each prompt repeats everything before it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from common.workload import VOCABULARY, Rollouts

Ids = npt.NDArray[np.int32]
Cut = tuple[Any, int, int]
"""Tokens, and where the prompt and the response of a turn end in them."""


class Turns(NamedTuple):
    """Prompts and responses in one of several forms.

    "shared" are lists, which share the int objects of the same tokens;
    "distinct" are lists with an object for every number, as Python's parsers give them; "arrays"
    are int32, none a view of another.
    """

    prompts: Any
    responses: Any
    is_last_step: list[bool]

    @property
    def tokens(self) -> int:
        """Number of tokens of all prompts and responses."""
        return sum(map(len, self.prompts)) + sum(map(len, self.responses))


def trajectories(
    count: int, *, turns: tuple[int, int], tokens: tuple[int, int], form: str
) -> Turns:
    """Make trajectories of the given turns and tokens; each turn continues the previous one."""
    rng = np.random.default_rng(count)
    out = Turns([], [], [])
    for length in rng.integers(*tokens, count, endpoint=True):
        ids = _source(_random_ids(rng, length), form)
        number = int(rng.integers(*turns, endpoint=True))
        ends = sorted(rng.choice(np.arange(1, length), 2 * number - 1, replace=False).tolist())
        ends.append(int(length))
        _add(out, [(ids, *cut) for cut in zip(ends[::2], ends[1::2], strict=True)], form)
    return out


def branches(
    count: int, *, turns: int, shared: int, first: int, step: int, form: str = "arrays"
) -> Turns:
    """Make a trajectory of branches that take turns at random.

    Parameters
    ----------
    count, turns
        Number of branches, and of the turns of each.
    shared
        Length of the common prefix of all branches. Their next tokens all differ.
    first
        Length of the first prompt.
    step
        Length of responses and of observations.
    """
    rng = np.random.default_rng(shared)
    common = _source(_random_ids(rng, shared), form)
    length = first + 2 * step * turns
    streams = []
    for branch in range(count):
        own = _random_ids(rng, length - shared)
        own[0] = branch
        own = _source(own, form)
        streams.append(common + own if form == "shared" else np.concatenate([common, own]))
    progress = [0] * count
    cuts: list[Cut] = []
    for branch in rng.permutation(np.repeat(np.arange(count), turns)).tolist():
        end = first + 2 * step * progress[branch]
        cuts.append((streams[branch], end, end + step))
        progress[branch] += 1
    out = Turns([], [], [])
    _add(out, cuts, form)
    return out


def nested(count: int, *, turns: int, tokens: int, step: int) -> Turns:
    """Make a trajectory of branches that are prefixes of each other, and turns that fit them all.

    The first turns open a branch each, the longest first; every other turn continues the longest
    branch.
    """
    rng = np.random.default_rng(tokens)
    ids = _random_ids(rng, tokens + 2 * step * turns)
    ends = np.linspace(tokens, tokens // 2, count, dtype=np.int64).tolist()
    ends += [tokens + 2 * step * turn for turn in range(1, turns - count + 1)]
    out = Turns([], [], [])
    _add(out, [(ids, end - step, end) for end in ends], "arrays")
    return out


def fields_of(turns: Turns) -> Rollouts:
    """Make lists of rewards, loss masks and log-probabilities for all responses."""
    rng = np.random.default_rng(0)
    lens = list(map(len, turns.responses))
    return {
        "rewards": [rng.standard_normal(n).tolist() for n in lens],
        "loss_mask": [[1] * n for n in lens],
        "logprobs": [(-rng.standard_exponential(n)).tolist() for n in lens],
    }


def _random_ids(rng: np.random.Generator, count: int) -> Ids:
    return rng.integers(VOCABULARY, size=count, dtype=np.int32)


def _source(ids: Ids, form: str) -> Any:
    """Return the tokens in the form that rows are cut from."""
    return ids.tolist() if form == "shared" else ids


def _add(turns: Turns, cuts: Iterable[Cut], form: str) -> None:
    """Add a trajectory."""
    take = {"shared": list, "distinct": np.ndarray.tolist, "arrays": np.copy}[form]
    for ids, split, end in cuts:
        turns.prompts.append(take(ids[:split]))
        turns.responses.append(take(ids[split:end]))
        turns.is_last_step.append(False)
    turns.is_last_step[-1] = True
