"""The left layout in NumPy: the peer in benchmarks."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastcollate.testing.reference.reading import (
    Array,
    Field,
    Rows,
    is_number,
    read_given_fields,
    readable,
    rows_of,
)


@np.errstate(over="ignore")
def build_batch_numpy(
    prompts: Rows,
    responses: Rows,
    *,
    pad_token_id: int,
    rewards: Field | None = None,
    loss_mask: Rows | None = None,
    logprobs: Rows | None = None,
    advantages: Rows | None = None,
) -> dict[str, Array]:
    """Build the left layout with one NumPy slice write per row and array.

    Same arguments, except layouts and numbers as advantages, and results as `build_batch_loops`.
    The fastest NumPy version we found, and so the peer in the benchmarks.
    """
    # Measured on 1,500 rows, prompts of 100 to 2,000 and responses of 100 to 4,000 tokens (4.7 M
    # tokens), two cores, NumPy 2.4, medians of 7; all six outputs take 266 ms from lists and
    # 48 ms from int32/float32 arrays. What lost (milliseconds, for that part alone):
    # - reading lists, ids / float field: np.fromiter 79 / 47; array.array 86 / 52;
    #   assigning the list itself 91 / 57; np.array first 96 / 58; prompt + response 100;
    #   all rows joined and written through one boolean mask 194 / 82 (29 / 9 from arrays).
    # - padding ids from arrays: np.zeros, and the pad id where it is not 0, 12; np.empty and a
    #   write of every pad 16; np.full 18.
    # - both masks: a slice of ones per row 18; slices of one shared row of zeros and ones 17,
    #   but slower on few rows; int32 comparison, broadcast and cast 21; the same in int64 23;
    #   comparison straight into the int64 output 26.
    # - one loop over all the outputs of a row instead of one loop per output: 5 ms slower from
    #   arrays; np.empty for every output, padded with slices: 6 ms slower from arrays.
    prompts, responses = rows_of(prompts), rows_of(responses)
    rows = len(prompts)
    prompt_lens = np.fromiter(map(len, prompts), np.int64, rows)
    response_lens = np.fromiter(map(len, responses), np.int64, rows)
    totals = prompt_lens + response_lens
    width, response_width = int(totals.max()), int(response_lens.max())

    starts, splits = (width - totals).tolist(), (width - response_lens).tolist()
    input_ids = np.zeros((rows, width), np.int64)
    for ids, start, split, prompt, response in zip(
        input_ids, starts, splits, prompts, responses, strict=True
    ):
        if pad_token_id:
            ids[:start] = pad_token_id
        ids[start:split] = assignable(prompt, np.int64)
        ids[split:] = assignable(response, np.int64)

    batch = {
        "input_ids": input_ids,
        "attention_mask": _ones_from(starts, width),
        "response_mask": _ones_from((response_width - response_lens).tolist(), response_width),
    }
    if loss_mask is None:
        batch["loss_mask"] = batch["response_mask"].astype(np.float32)
    given = read_given_fields(
        rewards=rewards, loss_mask=loss_mask, logprobs=logprobs, advantages=advantages
    )
    for key, field in given:
        padded = np.zeros((rows, response_width), np.float32)
        if is_number(field[0]):
            padded[:, -1] = np.fromiter(field, np.float32, rows)
        else:
            for out, values in zip(padded, field, strict=True):
                out[response_width - len(values) :] = assignable(values, np.float32)
        batch[key] = padded
    # Nothing predicts the first token of a row without a prompt.
    headless = np.flatnonzero((prompt_lens == 0) & (response_lens > 0))
    batch["loss_mask"][headless, response_width - response_lens[headless]] = 0
    return batch


def _ones_from(starts: list[int], width: int) -> Array:
    mask = np.zeros((len(starts), width), np.int64)
    for row, start in zip(mask, starts, strict=True):
        row[start:] = 1
    return mask


def assignable(row: Any, dtype: type[np.generic]) -> Any:
    """Return the form of a row that is fastest to assign to a slice of that dtype."""
    if isinstance(row, (list, tuple)):
        return np.fromiter(row, dtype, len(row))
    return readable(row)
