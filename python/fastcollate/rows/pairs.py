"""Preference pairs: samples of a prompt, a chosen and a rejected response, as two rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcollate._fastcollate import RowSpans
from fastcollate.common.arguments import as_list, id_list, tally
from fastcollate.common.arrays import concatenate, is_array, is_tensor
from fastcollate.rows.columns import Ragged
from fastcollate.rows.fields import Field
from fastcollate.rows.per_row import PerRow
from fastcollate.rows.sample_tokens import check_same_rows, ids_of
from fastcollate.rows.truncation import Limit, Truncated

PAIR = ("prompt_ids", "chosen_ids", "rejected_ids")
"""Keys of the tokens of a pair."""


LOGPS = ("ref_chosen_logps", "ref_rejected_logps")
"""Keys of log-probabilities by a reference model, one number per response."""


def arguments_of_pairs(
    columns: Mapping[str, Any], of_fields: Collection[str], limit: Limit | None
) -> tuple[dict[str, Any], Truncated | None]:
    """Return the rows of pairs for `build_batch`: all chosen ones, then all rejected ones.

    Parameters
    ----------
    columns
        The columns of the samples by key.
    of_fields
        Those of these keys that fields read.
    limit
        The maximum length of a row, if any.
    """
    if missing := [key for key in PAIR if key not in columns]:
        present = next(key for key in PAIR if key in columns)
        raise ValueError(
            f"samples have {present!r}, but no {missing[0]!r}; pass 'prompt_ids', 'chosen_ids' and "
            "'rejected_ids' (prompt_ids=[] for whole sequences, as for a reward model; for rows of "
            "another kind, rename it by columns)"
        )
    if wrong := [key for key in columns if key not in (*PAIR, *LOGPS, "uid", *of_fields)]:
        raise ValueError(
            f"samples are pairs, as they have {PAIR[1]!r}, but {wrong[0]!r} belongs to one row; "
            "name it in ignore, or pass a field of two keys, the chosen row's and the rejected "
            "one's: fc.Field((..., ...))"
        )
    prompts, chosen, rejected = (ids_of(key, columns[key]) for key in PAIR)
    for key, responses in zip(PAIR[1:], (chosen, rejected), strict=True):
        check_same_rows(key, len(responses), len(prompts), PAIR[0])
    parts = _parts(prompts, chosen, PAIR[1], limit), _parts(prompts, rejected, PAIR[2], limit)
    before, after = [part[0] for part in parts], [part[1] for part in parts]
    arguments: dict[str, Any] = {
        "prompts": RowSpans(before),
        "responses": RowSpans(after),
        "fields": {"completion_mask": _completion_mask(before, after)},
    }
    given = [key for key in LOGPS if key in columns and key not in of_fields]
    if len(given) == 1:
        (other,) = {*LOGPS} - {*given}
        raise ValueError(f"samples have {given[0]!r}, but no {other!r}; pass both")
    if given:
        arguments["fields"]["ref_logps"] = PerRow(join(*(columns[key] for key in LOGPS)))
    is_named = "uid" in columns and "uid" not in of_fields
    names = id_list("uid", columns["uid"]) if is_named else [*range(len(prompts))]
    arguments["uids"] = names * 2
    if limit is None:
        return arguments, None
    return arguments, Truncated(*map(sum, zip(*(part[2] for part in parts), strict=True)))


def join(chosen: Any, rejected: Any) -> Any:
    """Return the values of all chosen rows, then of all rejected ones."""
    if is_array(chosen) and is_array(rejected):
        is_one_kind = is_tensor(chosen) == is_tensor(rejected)
        if is_one_kind and chosen.shape[1:] == rejected.shape[1:]:
            return concatenate([chosen, rejected])
    return [*as_list(chosen), *as_list(rejected)]


Part = tuple[Any, NDArray[np.int64], NDArray[np.int64]]
"""Values, and the start and length of each row in them."""


def _parts(
    prompts: Ragged, responses: Ragged, key: str, limit: Limit | None
) -> tuple[Part, Part, Truncated]:
    """Return the kept parts of the prompts and responses of all rows of one kind."""
    before, after = prompts.lengths, responses.lengths
    start, kept = np.zeros_like(before), before + after
    truncated = Truncated(0, 0)
    if limit is not None:
        start, kept, truncated = limit.kept(kept)
        lost = (after > 0) & (start + kept <= before)
        if lost.any():
            row = int(lost.argmax())
            raise ValueError(
                f"{key}[{row}] would be lost: prompt_ids[{row}] has "
                f"{tally(int(before[row]), 'token')}, and max_length is {limit.max_length}; pass "
                "keep='end', a larger max_length, or pairs with shorter prompts"
            )
    end = start + kept

    def part(rows: Ragged, first: Any, last: Any) -> Part:
        return rows.values, rows.offsets[:-1] + first, last - first

    first = np.minimum(start, before)
    return (
        part(prompts, first, np.minimum(end, before)),
        part(responses, start - first, np.maximum(end - before, 0)),
        truncated,
    )


def _completion_mask(prompts: list[Part], responses: list[Part]) -> Field:
    """Return a field that is 1 on tokens of responses."""
    before, after = (np.concatenate([part[2] for part in parts]) for parts in (prompts, responses))
    # Each row is a span of a row with the longest prompt and the longest response.
    most = int(before.max(initial=0))
    widest = np.arange(most + after.max(initial=0)) >= most
    return Field(RowSpans([(widest, most - before, before + after)]), "sequence", dtype="int64")
