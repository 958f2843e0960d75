"""Plain implementations of fastcollate's contracts: slow or simple, and right.

`build_batch_loops` and `build_batch_numpy` were written apart from each other and from the Rust
code, so what all three agree on is unlikely to be wrong. They trust their input: what is an error
in `fastcollate.build_batch` is not looked for here.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

__all__ = [
    "assert_same",
    "build_batch_loops",
    "build_batch_numpy",
    "convert_prompts_responses_to_batch_tensors",
]

Array: TypeAlias = npt.NDArray[Any]
Row: TypeAlias = "Sequence[float] | Array | torch.Tensor"
Rows: TypeAlias = "Sequence[Row] | Array | torch.Tensor"
Field: TypeAlias = "Rows | Sequence[float]"
"""One row for every row of the batch or, for rewards, one number."""


@np.errstate(over="ignore")  # beyond float32 is infinity, as it should be
def build_batch_loops(
    prompts: Rows,
    responses: Rows,
    *,
    pad_token_id: int,
    rewards: Field | None = None,
    loss_masks: Rows | None = None,
    logprobs: Rows | None = None,
    layout: str = "left",
    pad_to: int | None = None,
    pad_to_multiple_of: int = 1,
    max_prompt_len: int | None = None,
    max_response_len: int | None = None,
) -> dict[str, Array]:
    """Build a batch token by token, in Python loops.

    Every padded row is a Python list that is filled by position and converted at the end, as
    training frameworks do it. This is the baseline that users have today.

    Parameters
    ----------
    prompts, responses
        B rows of token ids each. A row is a sequence of numbers, an array or a CPU tensor.
    pad_token_id
        The id around the shorter rows.
    rewards, loss_masks, logprobs
        B rows with one value per response token; for ``rewards`` also B numbers, of which each
        lands on the last response token of its row.
    layout, pad_to, pad_to_multiple_of, max_prompt_len, max_response_len
        As `fastcollate.build_batch`.

    Returns
    -------
    dict[str, numpy.ndarray]
        ``input_ids`` and ``attention_mask``, int64 ``(B, W)``; ``response_mask``, int64
        ``(B, R)``; of those given ``loss_mask``, ``rewards`` and ``logprobs``, float32
        ``(B, R)``. W is the longest prompt + response, R the longest response, unless fixed.
    """
    prompt_rows = [_readable(row) for row in prompts]
    response_rows = [_readable(row) for row in responses]

    def rounded(width: int) -> int:
        return -(-width // pad_to_multiple_of) * pad_to_multiple_of

    response_width = max(len(r) for r in response_rows)
    if max_response_len is not None:
        response_width = max_response_len
    if layout == "two_segment":
        prompt_width = max(len(p) for p in prompt_rows)
        if max_prompt_len is not None:
            prompt_width = max_prompt_len
        prompt_width, response_width = rounded(prompt_width), rounded(response_width)
        width = prompt_width + response_width
    else:
        width = max(len(p) + len(r) for p, r in zip(prompt_rows, response_rows, strict=True))
        width = rounded(width if pad_to is None else pad_to)

    input_ids, attention_mask, response_mask = [], [], []
    for prompt, response in zip(prompt_rows, response_rows, strict=True):
        ids = [pad_token_id] * width
        is_token = [0] * width
        is_response = [0] * response_width
        if layout == "left":
            start = width - len(prompt) - len(response)
        elif layout == "two_segment":
            start = prompt_width - len(prompt)
        else:
            start = 0
        for position, token in enumerate(prompt):
            ids[start + position] = token
            is_token[start + position] = 1
        start += len(prompt)
        for position, token in enumerate(response):
            ids[start + position] = token
            is_token[start + position] = 1
        start = response_width - len(response) if layout == "left" else 0
        for position in range(len(response)):
            is_response[start + position] = 1
        input_ids.append(ids)
        attention_mask.append(is_token)
        response_mask.append(is_response)

    batch = {
        "input_ids": np.array(input_ids, np.int64),
        "attention_mask": np.array(attention_mask, np.int64),
        "response_mask": np.array(response_mask, np.int64),
    }
    for key, field in _given(rewards=rewards, loss_masks=loss_masks, logprobs=logprobs):
        padded_rows = []
        for values, response in zip(field, response_rows, strict=True):
            padded = [0.0] * response_width
            start = response_width - len(response) if layout == "left" else 0
            if _is_number(values):
                padded[start + len(response) - 1] = values
            else:
                for position, value in enumerate(_readable(values)):
                    padded[start + position] = value
            padded_rows.append(padded)
        batch[key] = np.array(padded_rows, np.float32)
    return batch


@np.errstate(over="ignore")
def build_batch_numpy(
    prompts: Rows,
    responses: Rows,
    *,
    pad_token_id: int,
    rewards: Field | None = None,
    loss_masks: Rows | None = None,
    logprobs: Rows | None = None,
) -> dict[str, Array]:
    """Build the left layout with one NumPy slice write per row and array.

    Same arguments, but for layouts, and results as `build_batch_loops`. This is the fastest that we
    could write with NumPy, and so the peer in the benchmarks.
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
        ids[start:split] = _assignable(prompt, np.int64)
        ids[split:] = _assignable(response, np.int64)

    batch = {
        "input_ids": input_ids,
        "attention_mask": _ones_from(starts, width),
        "response_mask": _ones_from((response_width - response_lens).tolist(), response_width),
    }
    for key, field in _given(rewards=rewards, loss_masks=loss_masks, logprobs=logprobs):
        padded = np.zeros((rows, response_width), np.float32)
        if _is_number(field[0]):
            padded[:, -1] = np.fromiter(field, np.float32, rows)
        else:
            for out, values in zip(padded, field, strict=True):
                out[response_width - len(values) :] = _assignable(values, np.float32)
        batch[key] = padded
    return batch


def convert_prompts_responses_to_batch_tensors(
    pad_token_id: Any,
    prompts: Sequence[list[int]],
    responses: Sequence[list[int]],
    rewards: Sequence[list[float] | torch.Tensor],
    loss_masks: Sequence[list[float]],
    logprobs: Sequence[list[float]] | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """Do what SkyRL's function of this name does, in loops of our own.

    Parameters
    ----------
    pad_token_id
        The id in front of the shorter rows, or a tokenizer that has it as an attribute.
    prompts, responses
        B lists of token ids each.
    rewards, loss_masks, logprobs
        Up to R values for each row, right-aligned: their number need not be that of the
        response's tokens. ``logprobs`` may have fewer rows than the batch, or none.

    Returns
    -------
    tuple
        sequences, attention_mask, response_mask, rewards, loss_masks, logprobs or None, None:
        int64 and ``(B, W)``, ``(B, W)``, ``(B, R)``, then float32 ``(B, R)``. ``sequences`` is
        float32 where no row has a token, for that is what torch makes of empty lists.

    Raises
    ------
    AssertionError
        If the row counts differ, or there are no rows.
    TypeError
        If rewards is None or holds plain numbers.
    ValueError
        If a field's row is longer than R (SkyRL leaves this to torch's broadcasting).
    IndexError
        If logprobs has more rows than the batch.

    References
    ----------
    SkyRL 0.3, ``skyrl/train/dataset/preprocess.py``.
    """
    import torch

    pad = getattr(pad_token_id, "pad_token_id", pad_token_id)
    rows = len(prompts)
    counts = [len(field) for field in (prompts, responses, rewards, loss_masks)]
    if rows == 0 or len(set(counts)) > 1:
        raise AssertionError(f"row counts differ or are 0: {counts}")
    width = max(len(p) + len(r) for p, r in zip(prompts, responses, strict=True))
    response_width = max(len(r) for r in responses)

    input_ids, attention_mask, response_mask = [], [], []
    for prompt, response in zip(prompts, responses, strict=True):
        tokens = len(prompt) + len(response)
        input_ids.append([pad] * (width - tokens) + list(prompt) + list(response))
        attention_mask.append([int(column >= width - tokens) for column in range(width)])
        first = response_width - len(response)
        response_mask.append([int(column >= first) for column in range(response_width)])

    def right_aligned(field: Sequence[Any], dtype: torch.dtype | None) -> torch.Tensor:
        out = torch.zeros(rows, response_width)
        for row, values in enumerate(field):
            padded = out[row]
            start = response_width - len(values)
            if start < 0:
                raise ValueError(f"row {row} has {len(values)} items, more than {response_width}")
            for position, value in enumerate(torch.as_tensor(values, dtype=dtype)):
                padded[start + position] = value
        return out

    return (
        torch.tensor(input_ids),
        torch.tensor(attention_mask, dtype=torch.int64),
        torch.tensor(response_mask, dtype=torch.int64),
        # Without a dtype, whole numbers go through int64 and not float64: that rounds apart
        # beyond 2**53.
        right_aligned(rewards, None),
        right_aligned(loss_masks, torch.float32),
        right_aligned(logprobs, torch.float32) if logprobs else None,
        None,
    )


def assert_same(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Check that two batches are the same, bit for bit.

    Parameters
    ----------
    actual, expected
        Mappings of names to NumPy arrays or torch CPU tensors, in any mixture: a `Batch`, or a
        dict from one of the functions of this module.

    Raises
    ------
    AssertionError
        If the keys or their order, a dtype, a shape or a value differ, or an array is not
        C-contiguous. Values are compared by their bits, so 0.0 is not -0.0; NaN is like any NaN.
    """
    _require(list(actual) == list(expected), f"keys {list(actual)}, expected {list(expected)}")
    for key, value in expected.items():
        _assert_same_array(key, actual[key], value)


def _require(holds: bool, message: str) -> None:
    # Not an assert statement, which python -O leaves out.
    if not holds:
        raise AssertionError(message)


def _assert_same_array(name: str, actual: Any, expected: Any) -> None:
    found, wanted = _dtype_name(actual), _dtype_name(expected)
    _require(found == wanted, f"{name} is {found}, expected {wanted}")
    found_shape, wanted_shape = tuple(actual.shape), tuple(expected.shape)
    _require(
        found_shape == wanted_shape, f"{name} has shape {found_shape}, expected {wanted_shape}"
    )

    left, right = np.asarray(_readable(actual)), np.asarray(_readable(expected))
    _require(left.flags.c_contiguous, f"{name} is not C-contiguous")
    differs = _bits(left) != _bits(right)
    if left.dtype.kind == "f":
        differs &= ~(np.isnan(left) & np.isnan(right))
    if differs.any():
        index = tuple(int(i) for i in np.argwhere(differs)[0])
        raise AssertionError(
            f"{name}{list(index)} is {left[index]!r}, expected {right[index]!r} "
            f"({int(differs.sum())} of {differs.size} differ)"
        )


def _bits(values: Array) -> Array:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def _dtype_name(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def _given(*, rewards: Any, loss_masks: Any, logprobs: Any) -> list[tuple[str, Any]]:
    """Pair the fields that were given with their names, in the order of the outputs."""
    fields = [("loss_mask", loss_masks), ("rewards", rewards), ("logprobs", logprobs)]
    return [(key, _readable(field)) for key, field in fields if field is not None]


def _is_number(value: Any) -> bool:
    return not hasattr(value, "__len__")


def _ones_from(starts: list[int], width: int) -> Array:
    mask = np.zeros((len(starts), width), np.int64)
    for row, start in zip(mask, starts, strict=True):
        row[start:] = 1
    return mask


def _readable(row: Any) -> Any:
    """Give what NumPy and Python loops can both read: tensors and array.array as arrays."""
    if hasattr(row, "detach"):
        row = row.detach().resolve_neg()
        # NumPy has no bfloat16; float32 holds all of its values.
        return (row.float() if _dtype_name(row) == "bfloat16" else row).numpy()
    return np.asarray(row) if isinstance(row, array) else row


def _assignable(row: Any, dtype: type[np.generic]) -> Any:
    """Give the fastest thing to assign to a slice of that dtype."""
    if isinstance(row, (list, tuple)):
        return np.fromiter(row, dtype, len(row))
    return _readable(row)
