"""Upsampling of trajectories that replaces ``verl.trainer.ppo.padding_utils``."""

from __future__ import annotations

import copy
import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastcollate.batch import Batch
from fastcollate.common.arguments import check_count, check_int, suggests_names, tally
from fastcollate.common.arrays import (
    check_array,
    convert,
    describe,
    dtype_like,
    dtype_name,
    first_misfit,
    flatten,
    is_array,
    is_tensor,
    to_tensor,
    zeros,
)
from fastcollate.common.text import show
from fastcollate.compat.verl.token_axes import PROMPT_LENGTH, ROW_LENGTH, Sample, Tokens, token_axes
from fastcollate.plan.shard import Shard

BATCH_ROW_LENGTH = 2
"""The same of a synthetic row of a :class:`fastcollate.Batch`."""

ZEROS = {
    "response_mask": "int64",
    "loss_mask": "int64",
    "rm_scores": "float32",
    "rollout_log_probs": "float32",
}
"""Fields that a synthetic row always has: zeros of this dtype, one per response token."""


IMAGES = ("multi_modal_inputs", "multi_modal_data")
"""Fields of images, of which a synthetic row has none."""


@suggests_names
def upsample_batch(
    samples: Sequence[Mapping[str, Any]] | Batch,
    tags: Sequence[Mapping[str, Any]] | None = None,
    *,
    dp_size: int,
    eos_token_id: int,
    actor_mini_batch_rows: int | None = None,
    critic_mini_batch_rows: int | None = None,
) -> Any:
    """Append synthetic rows until all ranks and mini-batches have equally many rows.

    The number of rows becomes the next multiple of the least common multiple of all three numbers.
    (The largest of them is not enough: 8 ranks and mini-batches of 12 need 24 rows, not 12.)

    Parameters
    ----------
    samples
        A dict for each of N trajectories, as :func:`construct_minimal_padding_template` takes it;
        or a :class:`fastcollate.Batch` of N rows.
    tags
        A dict for each sample; none for a batch.
    dp_size
        Number of data-parallel ranks, at least 1.
    eos_token_id
        The token of synthetic rows.
    actor_mini_batch_rows
        Rows of a mini-batch of the actor, in verl ``ppo_mini_batch_size * rollout.n``. None while
        the actor is not updated: ``trainer.critic_warmup`` is above the step.
    critic_mini_batch_rows
        The same for the critic; None if there is none.

    Returns
    -------
    tuple or Batch
        Samples and tags, or a batch as wide as the one passed, with the synthetic rows of
        :meth:`fastcollate.Batch.select`. If N is a multiple already, the arguments themselves; else
        new lists of the N given dicts followed by new ones.

        A synthetic row and its tag are made by :func:`construct_minimal_padding_template` of the
        first sample. All have one ``uid``, ``pad`` and 32 hexadecimal digits that are new in every
        call, so that no advantage is computed over synthetic and real rows; it is in the tag too if
        that has a uid. A ``session_id``, if any, counts from 0, in sample and tag. Rows share no
        memory, neither with each other nor with the first sample.

        Fields with a value per token are detected from all samples, not from the first alone: a
        vector of 5 numbers in each of them is not one, even if the first response has 5 tokens.

    Raises
    ------
    TypeError
        An argument is of another type than above, or a value of the first sample cannot be copied.
    ValueError
        There are more or fewer tags than samples; a number is less than 1; ``eos_token_id`` is
        negative; a sample's ``input_ids`` are not as long as ``prompts`` and ``responses``.

    Notes
    -----
    Written against verl 0.9.1: ``upsample_batch_to_divisible_size`` of
    ``verl.trainer.ppo.padding_utils``, which reads and writes rows in its transfer queue, and
    ``PPOTrainer._get_required_batch_multiple`` of ``verl.trainer.ppo.v1.trainer_base``.
    """
    rows = [check_count("dp_size", dp_size, "a number of ranks")]
    for name, value in (
        ("actor_mini_batch_rows", actor_mini_batch_rows),
        ("critic_mini_batch_rows", critic_mini_batch_rows),
    ):
        if value is not None:
            rows.append(check_count(name, value, "a number of rows"))
    eos = _check_eos(eos_token_id)
    if isinstance(samples, Batch):
        if tags is not None:
            raise TypeError(
                f"tags is {show(tags)}, but samples is a Batch, which has none; leave tags out"
            )
        return _upsample(samples, math.lcm(*rows), eos)
    for name, items in (("samples", samples), ("tags", tags)):
        if not isinstance(items, Sequence) or isinstance(items, (str, bytes)):
            raise TypeError(f"{name} is {show(items)}; pass a list of one dict per row")
    assert tags is not None
    if len(tags) != len(samples):
        raise ValueError(
            f"tags has {tally(len(tags), 'item')}, but samples has {len(samples)}; "
            "pass one tag per sample"
        )

    missing = -len(samples) % math.lcm(*rows)
    if missing == 0:
        return samples, tags
    read = [_read(f"samples[{row}]", sample) for row, sample in enumerate(samples)]
    sample, tag = _template(read, _read("tags[0]", tags[0]), eos, "samples[0]", "tags[0]")
    # In the key order of the first row, so that all rows can be stacked.
    sample = {**dict.fromkeys(read[0]), **sample}
    sample["uid"] = f"pad{uuid.uuid4().hex}"
    if "uid" in tag:
        tag["uid"] = sample["uid"]
    return (
        [*samples, *(_numbered(sample, row) for row in range(missing))],
        [*tags, *(_numbered(tag, row) for row in range(missing))],
    )


def _upsample(batch: Batch, multiple: int, eos: int) -> Batch:
    """Append synthetic rows to a batch."""
    count = batch.plan.num_rows
    missing = -count % multiple
    if missing == 0:
        return batch
    rows = np.concatenate([np.arange(count), np.full(missing, -1)])
    again = batch.select(Shard(rows, rows < 0, count))
    starts, _ = again.plan.row_starts()
    ids = flatten(again["input_ids"], again["input_ids"].ndim)
    ids[starts[count:, None] + np.arange(BATCH_ROW_LENGTH)] = eos
    if again.uids is not None:
        uids = [*again.uids[:count], *[f"pad{uuid.uuid4().hex}"] * missing]
        again = again._replace(uids=uids)
    return again


def construct_minimal_padding_template(
    source_td: Mapping[str, Any], source_tag: Mapping[str, Any], eos_token_id: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make a row of 128 tokens without trained ones, with the fields of another row.

    Parameters
    ----------
    source_td
        The fields of a row of L tokens, the last R of which are its response; all may be missing.
        Arrays may be NumPy's or torch's, without a batch dimension: ``prompts`` ``(L - R,)``,
        ``responses`` ``(R,)``, ``input_ids`` ``(L,)``, ``position_ids`` ``(L,)`` or ``(4, L)``,
        ``routed_experts`` ``(L, layers, topk)``, masks, ``rm_scores`` and ``rollout_log_probs``
        ``(R,)`` or ``(L,)``, and any others.
    source_tag
        The trainer's metadata of the row.
    eos_token_id
        The token of the row.

    Returns
    -------
    sample : dict
        All fields of the source, and any of these that it lacks, in its library (torch if it has no
        arrays):

        * ``prompts``, ``responses`` and ``input_ids``: the token, int64 ``(127,)``, ``(1,)`` and
          ``(128,)``;
        * ``attention_mask``: 1, int64 ``(128,)``; ``position_ids``:
          :func:`build_padding_position_ids`;
        * ``response_mask``, ``loss_mask``: 0, int64; ``rm_scores``, ``rollout_log_probs``: 0,
          float32; all of them ``(1,)``, or ``(128,)`` if the source's has L values;
        * ``num_turns``: 0;
        * ``routed_experts``: :func:`build_padding_routed_experts`; if the source's is not an array,
          there is none;
        * ``multi_modal_inputs`` and ``multi_modal_data``: an empty dict, if present; with
          ``vision_token_types`` in it, these as -1, int64 ``(1, 128)``, and ``pixel_values`` and
          ``image_grid_hws`` of no image;
        * ``teacher_ids`` and ``teacher_logprobs``: the token, and 0, of the source's dtype and
          trailing shape, for 128 tokens (or one, if the source's has R values and not L);
        * any other array, or list of numbers, with as many items as the response, the row (along
          its first dimension, or else its last) or else the prompt has tokens: zeros of the
          source's dtype, for 1, 128 or 127 of them;
        * all other values: a copy that shares no memory with the source.
    tag : dict
        A copy of the source's with ``is_padding`` True, ``prompt_len`` 127, ``response_len`` 1 and
        ``seq_len`` 128.

    Raises
    ------
    TypeError
        An argument is of another type than above, or a value cannot be copied.
    ValueError
        ``eos_token_id`` is negative, or beyond the dtype of ``teacher_ids``; tokens are not
        one-dimensional; ``input_ids`` are not as long as ``prompts`` and ``responses`` together.

    Notes
    -----
    Written against verl 0.9.1, and for ``vision_token_types`` against its main branch of autumn
    2026: the function of this name in ``verl.trainer.ppo.padding_utils``.
    verl's supports only tensors and masks of responses; ``response_mask`` and ``loss_mask`` are
    one tensor there, ``num_turns`` is always an int, and fields that are not named above stay as
    long as the source's. Rows of verl 0.9.0 have two tokens.
    """
    source = _read("source_td", source_td)
    tag = _read("source_tag", source_tag)
    return _template([source], tag, _check_eos(eos_token_id), "source_td", "source_tag")


def build_padding_position_ids(source_position_ids: Any, attention_mask: Any) -> Any:
    """Return the positions of a mask's tokens, with the leading dimensions of a row's position ids.

    Parameters
    ----------
    source_position_ids
        Position ids ``(..., L)``, such as ``(L,)`` or, with three rows for images, ``(4, L)``.
        Values that are not a NumPy array or torch tensor count as ``(L,)``.
    attention_mask
        NumPy array or torch tensor ``(S,)``, 0 or False at padding.

    Returns
    -------
    numpy.ndarray or torch.Tensor
        ``(..., S)``: the number of tokens before each one, the same in all dimensions; padding is 0
        before the first token, and else repeats the position before it. Library, dtype and device
        are those of `source_position_ids`; without one int64, and the mask's.

    Raises
    ------
    TypeError
        `attention_mask` is not an array of numbers.
    ValueError
        `attention_mask` is not one-dimensional.

    Notes
    -----
    ``verl.trainer.ppo.padding_utils.build_padding_position_ids``, for tensors and arrays.
    """
    mask = check_array("attention_mask", attention_mask)
    if mask.ndim != 1:
        raise ValueError(f"attention_mask is {describe(mask)}; pass the mask of one row")
    if is_tensor(mask):
        mask = mask.detach().cpu()
    counts = np.asarray(convert(mask, dtype_like(mask, "int64"))).cumsum()
    positions = np.maximum(counts - 1, 0)
    if not is_array(source_position_ids):
        result = zeros(positions.shape, attention_mask, "int64")
    else:
        leading = tuple(source_position_ids.shape[:-1])
        result = zeros((*leading, len(positions)), source_position_ids)
    result[...] = to_tensor(positions).to(result) if is_tensor(result) else positions
    return result


def build_padding_routed_experts(source_routed_experts: Any, seq_len: int) -> Any:
    """Return zeros for `seq_len` tokens, in the form of a row's routed experts.

    Parameters
    ----------
    source_routed_experts
        NumPy array or torch tensor ``(L, ...)``, such as ``(L, layers, topk)``.
    seq_len
        Number of tokens S.

    Returns
    -------
    numpy.ndarray or torch.Tensor or None
        Zeros ``(S, ...)`` of the same library, dtype and device; ``()`` for a source of that shape.
        None if the source is not an array.

    Raises
    ------
    TypeError
        `seq_len` is not an integer.
    ValueError
        `seq_len` is negative.

    Notes
    -----
    ``verl.trainer.ppo.padding_utils.build_padding_routed_experts``, for tensors and arrays.
    """
    length = check_count("seq_len", seq_len, "a number of tokens", least=0)
    if not is_array(source_routed_experts):
        return None
    shape = tuple(source_routed_experts.shape)
    return zeros((length, *shape[1:]) if shape else (), source_routed_experts)


def _template(
    samples: Sequence[Sample], source_tag: Sample, eos: int, name: str, tag_name: str
) -> tuple[Sample, Sample]:
    """Make a synthetic row and its tag from the first sample's."""
    source, like = samples[0], _any_array(samples[0])
    tokens = token_axes(samples, name)

    def fill(field: str, shape: tuple[int, ...], value: int, dtype: str) -> Any:
        found = source.get(field)
        array = zeros(shape, found if is_array(found) else like, dtype)
        array[...] = value
        return array

    sample = {
        field: _resize(f"{name}[{field!r}]", value, tokens.get(field))
        for field, value in source.items()
        if field not in ("routed_experts", *IMAGES)
    }
    lengths = {"prompts": PROMPT_LENGTH, "responses": 1, "input_ids": ROW_LENGTH}
    for field, length in lengths.items():
        sample[field] = fill(field, (length,), eos, "int64")
    sample["attention_mask"] = fill("attention_mask", (ROW_LENGTH,), 1, "int64")
    sample["position_ids"] = build_padding_position_ids(
        source.get("position_ids"), sample["attention_mask"]
    )
    for field, dtype in ZEROS.items():
        count = tokens[field].number if field in tokens else 1
        sample[field] = fill(field, (count,), 0, dtype)
    sample["num_turns"] = _number(source.get("num_turns"), 0)

    experts = build_padding_routed_experts(source.get("routed_experts"), ROW_LENGTH)
    if experts is not None:
        sample["routed_experts"] = experts
    for field, value in (("teacher_ids", eos), ("teacher_logprobs", 0)):
        found: Any = source.get(field)
        if is_array(found):
            if first_misfit(np.array([value]), found.dtype) is not None:
                raise ValueError(
                    f"eos_token_id is {eos}, which does not fit {dtype_name(found.dtype)}, the "
                    f"dtype of {name}[{field!r}]; pass a wider dtype"
                )
            count = tokens[field].number if field in tokens else ROW_LENGTH
            sample[field] = zeros((count, *found.shape[1:]), found)
            sample[field][...] = value
    sample.update({field: _no_images(source[field]) for field in IMAGES if field in source})

    tag = {key: _copy(f"{tag_name}[{key!r}]", value) for key, value in source_tag.items()}
    tag.update(is_padding=True, prompt_len=PROMPT_LENGTH, response_len=1, seq_len=ROW_LENGTH)
    return sample, tag


def _no_images(images: Any) -> Sample:
    """Return inputs without images, for models that require them."""
    if not isinstance(images, Mapping) or "vision_token_types" not in images:
        return {}
    types = zeros((1, ROW_LENGTH), images["vision_token_types"], "int64")
    types[...] = -1
    none = {key: _copy(key, images[key][:0]) for key in ("pixel_values", "image_grid_hws")}
    return {"vision_token_types": types, **none}


def _resize(name: str, value: Any, tokens: Tokens | None) -> Any:
    """Return zeros for the tokens of a synthetic row, or a copy of a value not per token."""
    if tokens is None:
        return _copy(name, value)
    if not is_array(value):
        return type(value)([type(value[0])()] * tokens.number)
    shape = list(value.shape)
    shape[tokens.axis] = tokens.number
    return zeros(tuple(shape), value)


def _any_array(source: Sample) -> Any:
    """Return an array of the row's library; of verl's if the row has no arrays."""
    arrays = [value for value in source.values() if is_array(value)]
    tensors = [value for value in arrays if is_tensor(value)]
    if tensors or arrays:
        return (tensors or arrays)[0]
    try:
        import torch
    except ImportError:
        return np.zeros(0)
    return torch.zeros(0)


def _numbered(template: Sample, row: int) -> Sample:
    """Return a row made from a template, with its number."""
    made = {key: _copy(key, value) for key, value in template.items()}
    if "session_id" in made:
        made["session_id"] = _number(made["session_id"], row)
    return made


def _number(source: Any, number: int) -> Any:
    """Return a number in the source's form: an array of one number, or an int."""
    if is_array(source) and math.prod(source.shape) == 1:
        array = zeros(tuple(source.shape), source)
        array[...] = number
        return array
    return number


def _copy(name: str, value: Any) -> Any:
    """Return a copy that shares no memory with a value."""
    try:
        return value.detach().clone() if is_tensor(value) else copy.deepcopy(value)
    except Exception as error:
        raise TypeError(
            f"{name} is {show(value)}, which cannot be copied ({error}); leave it out, or "
            "pass an object that copy.deepcopy takes"
        ) from error


def _read(name: str, fields: Any) -> Sample:
    """Return the fields of a dict, or of a TensorDict, which is iterated by rows."""
    if not (hasattr(fields, "keys") and hasattr(fields, "__getitem__")):
        raise TypeError(f"{name} is {show(fields)}; pass a dict")
    return {key: fields[key] for key in fields.keys()}  # noqa: SIM118


def _check_eos(value: Any) -> int:
    eos = check_int("eos_token_id", value, "one token id, such as tokenizer.eos_token_id")
    if eos < 0:
        raise ValueError(f"eos_token_id is {eos}; pass a token id of 0 or more")
    return eos
