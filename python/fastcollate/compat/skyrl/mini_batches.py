"""Mini-batches of prompts: functions of ``skyrl.train.dataset.preprocess``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastcollate.plan.grouping import prompt_spans


def compute_prompt_boundaries(uids: Sequence[Any]) -> list[tuple[int, int]]:
    """Find the rows of every prompt.

    Parameters
    ----------
    uids
        The id of each row's prompt, as in :func:`fastcollate.planning.prompt_boundaries`; strings
        in SkyRL.

    Returns
    -------
    list[tuple[int, int]]
        The first row of each prompt, and one past its last; none for no uids.

    Raises
    ------
    AssertionError
        If a uid comes again after another.

    Notes
    -----
    Written against SkyRL 0.4.0: ``compute_prompt_boundaries`` of
    ``skyrl.train.dataset.preprocess``. Unlike in SkyRL, uids need no hash.
    """
    try:
        return prompt_spans(uids)
    except ValueError as error:
        raise AssertionError(str(error)) from error


def compute_prompt_mini_batch_boundaries(
    uids: Sequence[Any],
    mini_batch_size: int,
    train_batch_size: int,
    is_stepwise: bool,
    n_samples_per_prompt: int,
) -> list[tuple[int, int]]:
    """Find the rows of every mini-batch of `mini_batch_size` prompts.

    Parameters
    ----------
    uids
        The id of each row's prompt.
    mini_batch_size
        Number of prompts of a mini-batch.
    train_batch_size
        Required number of prompts; a multiple of `mini_batch_size`.
    is_stepwise
        If True, prompts may have any number of rows; else each has `n_samples_per_prompt`.
    n_samples_per_prompt
        Rows of each prompt. As in SkyRL, it is checked only if rollouts are not step-wise, and per
        mini-batch, not per prompt.

    Returns
    -------
    list[tuple[int, int]]
        First row of each of the ``train_batch_size // mini_batch_size`` mini-batches, and one past
        its last.

    Raises
    ------
    AssertionError
        If a uid comes again after another, or the numbers are inconsistent.
    IndexError
        If there are no uids.
    ZeroDivisionError
        If `mini_batch_size` is 0.

    Notes
    -----
    Written against SkyRL 0.4.0: ``compute_prompt_mini_batch_boundaries`` of
    ``skyrl.train.dataset.preprocess``. Unlike in SkyRL, assertions have messages.
    """
    if len(uids) == 0:
        raise IndexError("uids is empty; pass at least one uid")
    ends = [end for _, end in compute_prompt_boundaries(uids)]
    if len(ends) != train_batch_size:
        raise AssertionError(
            f"train_batch_size is {train_batch_size}, but uids name {len(ends)} prompts; "
            "pass that number"
        )
    if train_batch_size % mini_batch_size != 0:
        raise AssertionError(
            f"mini_batch_size is {mini_batch_size}, which does not divide train_batch_size "
            f"({train_batch_size}); pass a divisor"
        )
    if mini_batch_size < 0:
        raise AssertionError(f"mini_batch_size is {mini_batch_size}; pass a number of prompts")
    stops = ends[mini_batch_size - 1 :: mini_batch_size]
    boundaries = list(zip([0, *stops], stops, strict=False))
    if not is_stepwise:
        size = n_samples_per_prompt * mini_batch_size
        for index, (start, end) in enumerate(boundaries):
            if start != index * size or end - start != size:
                raise AssertionError(
                    f"mini-batch {index} has rows {start} to {end - 1}, but "
                    f"{mini_batch_size} prompts of n_samples_per_prompt={n_samples_per_prompt} "
                    f"have {size}; pass that many rows of every prompt"
                )
    return boundaries
