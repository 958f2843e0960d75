"""The dimension of each field that counts tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fastcollate.common.arrays import (
    describe,
    is_tensor,
)

Sample: TypeAlias = dict[str, Any]
"""The fields of one trajectory, or its tag."""


ROW_LENGTH = 128
"""Tokens of a synthetic row: one of the response, all others of the prompt."""


PROMPT_LENGTH = ROW_LENGTH - 1


PARTS = (
    *(
        (axis, part, number)
        for axis in (0, -1)
        for part, number in (("response", 1), ("sequence", ROW_LENGTH))
    ),
    (0, "prompt", PROMPT_LENGTH),
)
"""Alignments of a field's values per token: the first dimension that fits, and the tokens of it in
a synthetic row. Values per prompt token are the rarest."""


NUMBERS = (bool, int, float, np.bool_, np.number)


class _Lengths(NamedTuple):
    """Token counts of a sample; None if unknown."""

    prompt: int | None
    response: int | None
    sequence: int | None


class Tokens(NamedTuple):
    """The token dimension of a field, and its tokens in a synthetic row."""

    axis: int
    number: int


def token_axes(samples: Sequence[Sample], name: str) -> dict[str, Tokens]:
    """Find the fields of the first sample that have values per token in all samples."""
    names = [name, *(f"samples[{row}]" for row in range(1, len(samples)))]
    lengths = [count_tokens(each, sample) for each, sample in zip(names, samples, strict=True)]
    found = {}
    for field, value in samples[0].items():
        if not _shape(value):
            continue
        # A sample without the field, or with None, is skipped.
        shapes = [
            (_shape(sample[field]), length)
            for sample, length in zip(samples, lengths, strict=True)
            if sample.get(field) is not None
        ]
        for axis, part, number in PARTS:
            if all(shape and shape[axis] == getattr(length, part) for shape, length in shapes):
                found[field] = Tokens(axis, number)
                break
    return found


def count_tokens(name: str, sample: Sample) -> _Lengths:
    """Count the tokens of a sample."""
    prompt, response, sequence, mask = (
        _count(f"{name}[{field!r}]", sample.get(field))
        for field in ("prompts", "responses", "input_ids", "attention_mask")
    )
    if sequence is None:
        sequence = mask if prompt is None or response is None else prompt + response
    if prompt is None and response is not None and sequence is not None:
        prompt = sequence - response
    elif response is None and prompt is not None and sequence is not None:
        response = sequence - prompt
    if prompt is None or response is None or sequence is None:
        return _Lengths(prompt, response, sequence)
    if min(prompt, response) < 0 or prompt + response != sequence:
        raise ValueError(
            f"{name} has {sequence} input_ids, {prompt} prompts and {response} responses; "
            "pass the tokens of the prompt and the response, one after the other"
        )
    return _Lengths(prompt, response, sequence)


def _count(name: str, tokens: Any) -> int | None:
    """Return the number of tokens of an array or a list; None if missing."""
    if tokens is None:
        return None
    shape = (len(tokens),) if isinstance(tokens, (list, tuple)) else _shape(tokens)
    if len(shape) != 1:
        raise ValueError(f"{name} is {describe(tokens)}; pass the tokens of one row")
    return shape[0]


def _shape(value: Any) -> tuple[int, ...]:
    """Return the shape of numbers; () for values that cannot be resized."""
    if is_tensor(value):
        return () if value.is_nested else tuple(value.shape)
    if isinstance(value, np.ndarray):
        return () if value.dtype.hasobject else value.shape
    is_list = type(value) in (list, tuple) and len(value) > 0
    return (len(value),) if is_list and isinstance(value[0], NUMBERS) else ()
