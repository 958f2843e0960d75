"""The left and the packed layout with one NumPy slice write per row: the peers in benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
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
    prompts: Rows, responses: Rows, *, pad_token_id: int, **fields: Field | None
) -> dict[str, Array]:
    """Build the left layout with one NumPy slice write per row and array.

    Same results as `build_batch_loops`, of `rewards`, `loss_mask`, `logprobs` and `advantages`, but
    not of numbers as advantages. The fastest NumPy version we found.
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
    if fields.get("loss_mask") is None:
        batch["loss_mask"] = batch["response_mask"].astype(np.float32)
    for key, field in read_given_fields(**fields):
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


@np.errstate(over="ignore")
def build_packed_numpy(
    prompts: Rows,
    responses: Rows,
    *,
    pad_token_id: int,
    pack: Any,
    shift: str = "none",
    **fields: Rows | None,
) -> dict[str, Any]:
    """Build the packed layout with one NumPy slice write per sequence and array.

    Parameters
    ----------
    prompts, responses, pad_token_id, shift
        As `build_batch_loops`. There is a token in front of every response.
    fields
        `rewards`, `loss_mask`, `logprobs` and `advantages`, of one value per token.
    pack
        A `fastcollate.planning.BinPlan` that splits no sequence and rounds no length.

    Returns
    -------
    dict[str, object]
        As `build_batch_loops` in the packed layout, with the default tail. The fastest NumPy
        version we found.
    """
    # Measured on 1,024 rows, prompts of 50 to 1,000 and responses of 50 to 2,000 tokens in lists
    # (1.6 M tokens), 103 rows of 16,369, two cores, NumPy 2.4, medians of 7. What lost
    # (milliseconds, for that part alone):
    # - ids: np.fromiter per prompt and response 19.3; per output row over itertools.chain 22.0, or
    #   over one joined list 22.7; assigning that list itself 24.2.
    # - a float field: np.fromiter per response 12.2; all responses chained and written through one
    #   boolean mask 14.9.
    # - positions: slices of one shared arange 0.6; arange less np.repeat of the starts 3.8.
    # - sequence ids: np.repeat 0.3; a slice per sequence 0.9.
    prompts, responses = rows_of(prompts), rows_of(responses)
    lens = [len(p) + len(r) for p, r in zip(prompts, responses, strict=True)]
    members = [pack.indices[begin:end].tolist() for begin, end in pairwise(pack.offsets.tolist())]
    loads = [sum(lens[sequence] for sequence in bin_) for bin_ in members]
    width = max(loads)
    shape = (len(members), width)

    ends = []  # row and column after each sequence's last token
    input_ids, position_ids = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    counted = np.arange(width)
    segments, owners = [], []
    for row, (ids, positions, bin_) in enumerate(
        zip(input_ids, position_ids, members, strict=True)
    ):
        end = 0
        for sequence in bin_:
            prompt, response = prompts[sequence], responses[sequence]
            start, split, end = end, end + len(prompt), end + lens[sequence]
            ids[start:split] = assignable(prompt, np.int64)
            ids[split:end] = assignable(response, np.int64)
            positions[start:end] = counted[: end - start]
            ends.append((sequence, row, end))
        segments.append([lens[sequence] for sequence in bin_])
        owners += bin_
        if end < width:
            segments[-1].append(width - end)
            owners.append(-1)
            positions[end:] = counted[: width - end]
            if pad_token_id:
                ids[end:] = pad_token_id

    moved = shift == "next_token"
    batch: dict[str, Any] = {
        "input_ids": input_ids,
        "position_ids": position_ids,
        "sequence_ids": np.repeat(owners, np.concatenate(segments)).reshape(shape),
        "cu_seqlens": _boundaries(np.concatenate(segments)),
        "max_seqlen": max(map(max, segments)),
        "row_cu_seqlens": list(map(_boundaries, segments)),
        "response_mask": np.zeros(shape, np.int64),
    }
    for sequence, row, end in ends:
        count = len(responses[sequence])
        batch["response_mask"][row, end - moved - count : end - moved] = 1
    if fields.get("loss_mask") is None:
        batch["loss_mask"] = batch["response_mask"].astype(np.float32)
    for key, field in read_given_fields(**fields):
        batch[key] = padded = np.zeros(shape, np.float32)
        for sequence, row, end in ends:
            values = field[sequence]
            padded[row, end - moved - len(values) : end - moved] = assignable(values, np.float32)
    return batch


def _boundaries(lengths: Sequence[int] | Array) -> Array:
    boundaries = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=boundaries[1:])
    return boundaries
