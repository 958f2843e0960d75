"""Rollouts as plain Python lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from hypothesis import strategies as st

Number: TypeAlias = int | float


class Rollouts(NamedTuple):
    """Rollouts as plain Python lists, under the names of `fastcollate.build_batch`'s arguments."""

    prompts: list[list[int]]
    responses: list[list[int]]
    rewards: list[list[Number]] | list[Number] | None = None
    loss_mask: list[list[Number]] | None = None
    logprobs: list[list[Number]] | None = None
    advantages: list[list[Number]] | list[Number] | None = None


# Bulk values come from a NumPy generator, as drawing each of them by Hypothesis would take most of
# a test's time. Hypothesis draws and shrinks lengths, families of values and the seed.
Family: TypeAlias = Callable[[np.random.Generator, int], list[Any]]

_INT64 = np.iinfo(np.int64)
_MIXED: list[Number] = [0, 1, True, False, 0.5, -0.0, 2**24 + 1, 3]
# Halfway between two float32, over the largest, under the smallest, and denormal there.
_ROUNDED = [1 + 2**-24, 1 + 3 * 2**-24, 1e300, 3.4028236e38, 1e-300, 1e-40]

_TOKENS: dict[str, Family] = {
    "characters": lambda rng, n: rng.integers(0, 128, n).tolist(),
    "vocabulary": lambda rng, n: rng.integers(0, 200_000, n).tolist(),
    "negative": lambda rng, n: rng.integers(-(2**31), 2**31, n).tolist(),
    "int64": lambda rng, n: rng.integers(_INT64.min, _INT64.max, n, endpoint=True).tolist(),
    "limits": lambda rng, n: rng.choice([_INT64.min, _INT64.max, -1, 2**53 + 1], n).tolist(),
}
_MASKS: dict[str, Family] = {
    "zeros and ones": lambda rng, n: rng.integers(0, 2, n).tolist(),
    "booleans": lambda rng, n: (rng.random(n) < 0.5).tolist(),
    "eighths": lambda rng, n: (rng.integers(0, 128, n) / 8).tolist(),
    "normal": lambda rng, n: abs(rng.standard_normal(n)).tolist(),
    "mixed types": lambda rng, n: [_MIXED[i] for i in rng.integers(0, len(_MIXED), n)],
}
_NUMBERS: dict[str, Family] = {
    **_MASKS,
    "eighths": lambda rng, n: (rng.integers(-128, 128, n) / 8).tolist(),
    "normal": lambda rng, n: rng.standard_normal(n).tolist(),
    "mixed signs": lambda rng, n: [(-1) ** i * _MIXED[i % 8] for i in rng.integers(0, 16, n)],
    "not finite": lambda rng, n: rng.choice([np.inf, -np.inf, np.nan, -0.0, 1.5], n).tolist(),
    "rounded": lambda rng, n: rng.choice(_ROUNDED, n).tolist(),
}
_NO_NAN = {name: family for name, family in _NUMBERS.items() if name != "not finite"}


@st.composite
def rollouts(
    draw: st.DrawFn,
    *,
    max_rows: int = 6,
    max_len: int = 5,
    max_long_len: int = 600,
    nan_in_masks: bool = False,
) -> Rollouts:
    """Draw a batch of rollouts.

    Most prompts and responses are tiny or empty, since layouts fail there; at times one row is
    long, and at times all have the same length.

    Parameters
    ----------
    max_rows
        The most rows of a batch; there is at least one.
    max_len
        The most tokens in a prompt or response.
    max_long_len
        The same for the one long row that some batches have.
    nan_in_masks
        If True, a loss mask may hold NaN, infinity and negative numbers, as rewards and
        log-probabilities may.

    Returns
    -------
    SearchStrategy[Rollouts]
        Token ids are any int64. Fields hold ints, floats and bools, and may be absent; rewards
        are per token, or at times one number per row if no response is empty.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    length = st.integers(0, max_len)
    rows = draw(st.integers(1, max_rows))
    lens = draw(st.lists(st.tuples(length, length), min_size=rows, max_size=rows))
    spread = draw(st.sampled_from(["as drawn", "one long", "all the same"]))
    if spread == "one long":
        long = st.integers(0, max_long_len)
        lens[draw(st.integers(0, rows - 1))] = draw(st.tuples(long, long))
    elif spread == "all the same":
        lens = lens[:1] * rows

    tokens = _TOKENS[draw(st.sampled_from(list(_TOKENS)))]
    prompts = [tokens(rng, count) for count, _ in lens]
    tokens = _TOKENS[draw(st.sampled_from(list(_TOKENS)))]
    responses = [tokens(rng, count) for _, count in lens]
    return draw(with_fields(prompts, responses, nan_in_masks=nan_in_masks))


def batches(
    *, max_rows: int = 6, max_len: int = 5, max_long_len: int = 600
) -> st.SearchStrategy[dict[str, Any]]:
    """Draw arguments of :func:`fastcollate.build_batch`, but for ``pad_token_id``.

    Most prompts and responses are tiny or empty, since code fails there; at times one row is long,
    and at times all have the same length.

    Parameters
    ----------
    max_rows
        The most rows of a batch; there is at least one.
    max_len
        The most tokens in a prompt or response.
    max_long_len
        The same for the one long row that some batches have.

    Returns
    -------
    SearchStrategy[dict[str, list]]
        ``prompts`` and ``responses``, and some of ``rewards``, ``loss_mask``, ``logprobs`` and
        ``advantages``, as lists.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(batches())
    ... def test_my_trainer(columns):
    ...     batch = fc.build_batch(**columns, pad_token_id=0)
    """
    drawn = rollouts(max_rows=max_rows, max_len=max_len, max_long_len=max_long_len)
    return drawn.map(
        lambda data: {name: rows for name, rows in data._asdict().items() if rows is not None}
    )


@st.composite
def with_fields(
    draw: st.DrawFn,
    prompts: list[list[int]],
    responses: list[list[int]],
    *,
    nan_in_masks: bool = False,
) -> Rollouts:
    """Draw rewards, loss masks, log-probabilities and advantages for token ids.

    Parameters
    ----------
    prompts, responses
        The token ids.
    nan_in_masks
        As for `rollouts`.

    Returns
    -------
    SearchStrategy[Rollouts]
        Fields as those of `rollouts`.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def values(families: dict[str, Family], counts: list[int]) -> list[list[Any]]:
        family = families[draw(st.sampled_from(list(families)))]
        return [family(rng, count) for count in counts]

    def field(families: dict[str, Family]) -> list[list[Number]] | None:
        return values(families, list(map(len, responses))) if draw(st.booleans()) else None

    rewards: list[list[Number]] | list[Number] | None = field(_NUMBERS)
    if rewards is not None and all(responses) and draw(st.booleans()):
        (rewards,) = values(_NO_NAN, [len(responses)])
    return Rollouts(
        prompts=prompts,
        responses=responses,
        rewards=rewards,
        loss_mask=field(_NUMBERS if nan_in_masks else _MASKS),
        logprobs=field(_NUMBERS),
        advantages=field(_NO_NAN),
    )
