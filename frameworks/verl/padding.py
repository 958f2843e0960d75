"""Ports of verl's functions that remove and restore padding, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def no_padding_loops(
    padded: Sequence[Sequence[Any]], mask: Sequence[Sequence[Any]]
) -> list[list[Any]]:
    """Return the values of each row at positions where the mask is true."""
    return [
        [value for value, kept in zip(row, row_mask, strict=True) if kept]
        for row, row_mask in zip(padded, mask, strict=True)
    ]


def response_outputs_loops(
    values: Sequence[Any],
    prompt_lens: Sequence[int],
    response_lens: Sequence[int],
    width: int,
    zero: Any,
) -> list[list[Any]]:
    """Return the values one position before each response token, out of values of whole rows."""
    rows = []
    end = 0
    for prompt_len, response_len in zip(prompt_lens, response_lens, strict=True):
        end += prompt_len + response_len
        row = list(values[end - response_len - 1 : end - 1])[:width]
        rows.append(row + [zero] * (width - len(row)))
    return rows
