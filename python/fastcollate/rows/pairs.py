"""Preference pairs: samples of a prompt, a chosen and a rejected response, as two rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from fastcollate._fastcollate import RowSpans
from fastcollate.common.arguments import as_list, id_list
from fastcollate.common.arrays import is_tensor
from fastcollate.rows.columns import Ragged
from fastcollate.rows.fields import Field
from fastcollate.rows.sample_tokens import check_same_rows, ids_of

PAIR = ("prompt_ids", "chosen_ids", "rejected_ids")
"""Keys of the tokens of a pair."""


def arguments_of_pairs(columns: Mapping[str, Any], of_fields: Collection[str]) -> dict[str, Any]:
    """Return the rows of pairs for `build_batch`: all chosen ones, then all rejected ones.

    Parameters
    ----------
    columns
        The columns of the samples by key.
    of_fields
        Those of these keys that fields read.
    """
    if missing := [key for key in PAIR if key not in columns]:
        present = next(key for key in PAIR if key in columns)
        raise ValueError(
            f"samples have {present!r}, but no {missing[0]!r}; pass 'prompt_ids', 'chosen_ids' and "
            "'rejected_ids' (or, for rows of another kind, rename it by columns)"
        )
    if wrong := [key for key in columns if key not in (*PAIR, "uid", *of_fields)]:
        raise ValueError(
            f"samples are pairs, as they have {PAIR[1]!r}, but {wrong[0]!r} belongs to one row; "
            "name it in ignore, or pass a field of two keys, the chosen row's and the rejected "
            "one's: fc.Field((..., ...))"
        )
    prompts, chosen, rejected = (ids_of(key, columns[key]) for key in PAIR)
    for key, responses in zip(PAIR[1:], (chosen, rejected), strict=True):
        check_same_rows(key, len(responses), len(prompts), PAIR[0])
    arguments: dict[str, Any] = {
        "prompts": _spans(prompts, prompts),
        "responses": _spans(chosen, rejected),
        "fields": {"completion_mask": _completion_mask(prompts, chosen, rejected)},
    }
    if "uid" in columns and "uid" not in of_fields:
        arguments["uids"] = id_list("uid", columns["uid"]) * 2
    return arguments


def join(chosen: Any, rejected: Any) -> Any:
    """Return the values of all chosen rows, then those of all rejected ones."""
    if is_tensor(chosen) and is_tensor(rejected) and chosen.shape[1:] == rejected.shape[1:]:
        import torch

        return torch.cat([chosen, rejected])
    are_arrays = isinstance(chosen, np.ndarray) and isinstance(rejected, np.ndarray)
    if are_arrays and chosen.shape[1:] == rejected.shape[1:]:
        return np.concatenate([chosen, rejected])
    return [*as_list(chosen), *as_list(rejected)]


def _spans(first: Ragged, second: Ragged) -> RowSpans:
    return RowSpans([(rows.values, rows.offsets[:-1], rows.lengths) for rows in (first, second)])


def _completion_mask(prompts: Ragged, chosen: Ragged, rejected: Ragged) -> Field:
    """Return a field that is 1 on tokens of responses."""
    before = np.tile(prompts.lengths, 2)
    after = np.concatenate([chosen.lengths, rejected.lengths])
    # Each row is a span of a row with the longest prompt and the longest response.
    most = int(before.max(initial=0))
    widest = np.arange(most + after.max(initial=0)) >= most
    return Field(RowSpans([(widest, most - before, before + after)]), "sequence", dtype="int64")
