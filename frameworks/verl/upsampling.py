"""Ports of verl's functions that make padding rows, field by field."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastcollate.common.arrays import dtype_name, is_array, is_tensor

Sample = Mapping[str, Any]

RESPONSE_FIELDS = {
    "response_mask": "int64",
    "loss_mask": "int64",
    "rm_scores": "float32",
    "rollout_log_probs": "float32",
}
"""Zeros that every row has, with their dtypes."""

TEACHER_FIELDS = ("teacher_ids", "teacher_logprobs")


def upsample_batch(
    samples: Sequence[Sample],
    tags: Sequence[Sample],
    *,
    multiple_of: Sequence[int],
    eos_token_id: int,
    uid: str,
) -> tuple[list[Any], list[Any]]:
    """Append rows until their number can be divided by each of some numbers.

    Parameters
    ----------
    samples, tags
        A dict each for every row, with at least one row.
    multiple_of
        Ranks, and rows of the mini-batches.
    eos_token_id
        The token of the new rows.
    uid
        The new rows' uid.

    Returns
    -------
    tuple[list, list]
        All samples and tags, the passed ones first.
    """
    samples, tags = list(samples), list(tags)
    sources = list(samples)
    count = 0
    while any(len(samples) % number for number in multiple_of):
        sample, tag = _row(sources, tags[0], eos_token_id)
        if "routed_experts" in sources[0] and "routed_experts" not in sample:
            sample["routed_experts"] = None
        sample["uid"] = uid
        if "uid" in tag:
            tag["uid"] = uid
        for fields in (sample, tag):
            if "session_id" in fields:
                fields["session_id"] = _scalar(fields["session_id"], count)
        samples.append(sample)
        tags.append(tag)
        count += 1
    return samples, tags


def construct_minimal_padding_template(
    source_td: Sample, source_tag: Sample, eos_token_id: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make a row of 127 prompt tokens and a response token that trains nothing.

    Parameters
    ----------
    source_td, source_tag
        The row whose fields it has, and what is known of that row.
    eos_token_id
        The token.

    Returns
    -------
    tuple[dict, dict]
        The row and what is known of it. Zeros are for one token where the source's value is for the
        response, for 127 where it is for the prompt and for 128 where it is for both.
    """
    return _row([source_td], source_tag, eos_token_id)


def _row(
    samples: Sequence[Sample], source_tag: Sample, eos: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    source = samples[0]
    like = _like(source)
    row: dict[str, Any] = {}
    for key, value in source.items():
        place = _place(samples, key)
        if place is None:
            row[key] = copy.deepcopy(value)
        elif is_array(value):
            shape = list(value.shape)
            shape[place[0]] = place[1]
            row[key] = _filled(value, shape, 0, dtype_name(value.dtype))
        else:
            zero = False if isinstance(value[0], bool) else 0 * value[0]
            row[key] = [zero] * place[1]

    def like_field(key: str) -> Any:
        return source[key] if is_array(source.get(key)) else like

    row["prompts"] = _filled(like_field("prompts"), [127], eos, "int64")
    row["responses"] = _filled(like_field("responses"), [1], eos, "int64")
    row["input_ids"] = _filled(like_field("input_ids"), [128], eos, "int64")
    row["attention_mask"] = _filled(like_field("attention_mask"), [128], 1, "int64")
    row["position_ids"] = _positions(source.get("position_ids"), row["attention_mask"])
    for key, dtype in RESPONSE_FIELDS.items():
        place = _place(samples, key) if key in source else None
        row[key] = _filled(like_field(key), [place[1] if place else 1], 0, dtype)
    row["num_turns"] = _scalar(source.get("num_turns"), 0)
    for key, value in zip(TEACHER_FIELDS, (eos, 0), strict=True):
        if is_array(source.get(key)):
            place = _place(samples, key)
            shape = [place[1] if place else 128, *source[key].shape[1:]]
            row[key] = _filled(source[key], shape, value, dtype_name(source[key].dtype))
    row.pop("routed_experts", None)
    experts: Any = source.get("routed_experts")
    if is_array(experts):
        shape = [128, *experts.shape[1:]] if experts.ndim else []
        row["routed_experts"] = _filled(experts, shape, 0, dtype_name(experts.dtype))
    for key in ("multi_modal_inputs", "multi_modal_data"):
        if key in source:
            row[key] = {}

    tag = copy.deepcopy(dict(source_tag))
    tag["is_padding"] = True
    tag["prompt_len"] = 127
    tag["response_len"] = 1
    tag["seq_len"] = 128
    return row, tag


def _place(samples: Sequence[Sample], key: str) -> tuple[int, int] | None:
    """Say along which dimension a field has tokens, and how many of them a synthetic row has."""
    for axis, parts in ((0, ("responses", "both")), (-1, ("responses", "both")), (0, ("prompts",))):
        for part in parts:
            fits = True
            for sample in samples:
                value = sample.get(key)
                if value is None:
                    fits = fits and sample is not samples[0]
                    continue
                if is_array(value):
                    shape = list(value.shape)
                elif isinstance(value, list) and value and isinstance(value[0], (int, float)):
                    shape = [len(value)]
                else:
                    shape = []
                counts = {name: len(sample[name]) for name in ("prompts", "responses")}
                counts["both"] = counts["prompts"] + counts["responses"]
                if not shape or shape[axis] != counts[part]:
                    fits = False
            if fits:
                return axis, {"prompts": 127, "responses": 1, "both": 128}[part]
    return None


def _positions(source: Any, mask: Any) -> Any:
    """Give all tokens their number, in every row of the position ids."""
    if not is_array(source):
        return _wrapped(mask, list(range(128)), [128], "int64")
    leading = list(source.shape[:-1])
    values = list(range(128)) * math.prod(leading)
    return _wrapped(source, values, [*leading, 128], dtype_name(source.dtype))


def _scalar(source: Any, number: int) -> Any:
    if is_array(source):
        return _filled(source, list(source.shape), number, dtype_name(source.dtype))
    return number


def _filled(like: Any, shape: Sequence[int], value: int, dtype: str) -> Any:
    values = []
    for _ in range(math.prod(shape)):
        values.append(value)
    return _wrapped(like, values, shape, dtype)


def _wrapped(like: Any, values: list[int], shape: Sequence[int], dtype: str) -> Any:
    if is_tensor(like):
        import torch

        return torch.tensor(values, dtype=getattr(torch, dtype)).reshape(list(shape))
    return np.array(values, dtype=dtype).reshape(shape)


def _like(source: Sample) -> Any:
    """Return an array of the row's library: torch if any is, or if there is none."""
    arrays = [value for value in source.values() if is_array(value)]
    for array in arrays:
        if is_tensor(array):
            return array
    if arrays:
        return arrays[0]
    import torch

    return torch.zeros(0)
