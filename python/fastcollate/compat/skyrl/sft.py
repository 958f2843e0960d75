"""Collators of supervised fine-tuning, in place of those of ``skyrl.train``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from fastcollate._fastcollate import OutputSpec
from fastcollate.collating import collate_fields
from fastcollate.compat.skyrl.training_batch import training_batch

Examples: TypeAlias = Sequence[Mapping[str, Any]]

IMAGES = ("pixel_values", "image_grid_thw")

BOOL_MASKS = OutputSpec(attention_mask="bool", response_mask="bool")
"""Masks that nobody looks at, as small as they can be."""


def collate_sft_batch(examples: Examples, tokenizer: Any) -> Any:
    """Left-pad tokenized examples, as SkyRL's function of this name does.

    Parameters
    ----------
    examples
        ``B`` dicts, each of

        * ``input_ids`` and ``attention_mask``: as many numbers as the example has tokens;
        * ``num_actions``: how many of its last tokens may be trained on;
        * ``loss_mask``: so many numbers, 1 where a token is trained on;
        * ``pixel_values`` and ``image_grid_thw``: arrays of any shape, in all examples or in none.
    tokenizer
        What has the ``pad_token_id``. It may be None if all examples are equally long.

    Returns
    -------
    TrainingInputBatch
        SkyRL's, or where that is not installed, a dict with the same keys and the attribute
        ``metadata``: ``sequences`` and ``attention_mask``, int64 (B, W); ``loss_mask``, int64
        (B, A), where A is the largest ``num_actions``, the masks being right-aligned;
        ``pixel_values`` and ``image_grid_thw``, a ``TensorList`` (or list) of B tensors or None.
        ``metadata["response_length"]`` is A.

    Raises
    ------
    ValueError
        No examples; images in some of them only; a list of another length than its example has
        tokens, or ``num_actions`` says.
    KeyError
        An example without one of the keys.
    TypeError
        A value that is no number; no padding token where one is needed.

    Notes
    -----
    Written against SkyRL 0.3.0: ``collate_sft_batch`` of ``skyrl.train.sft_trainer``. As there,
    floats are cut off to integers, so that a weight of 0.5 trains nothing. Other than there, arrays
    and tuples will do in place of lists; lists of wrong lengths are errors even where all of them
    are wrong alike; and what is no finite number is a ValueError or TypeError, not a RuntimeError.
    """
    if len(examples) == 0:
        raise ValueError("examples is empty; pass at least one")
    ids = [example["input_ids"] for example in examples]
    lengths = list(map(len, ids))
    actions = [example["num_actions"] for example in examples]
    with_images = _check_images(examples)
    attention_masks = [example["attention_mask"] for example in examples]
    loss_masks = [example["loss_mask"] for example in examples]
    for row, (length, count) in enumerate(zip(lengths, actions, strict=True)):
        if not 0 <= count <= length:
            raise ValueError(
                f"examples[{row}]['num_actions'] is {count}, but the example has {length} tokens"
            )
        _check_length(row, "attention_mask", attention_masks[row], length, "input_ids")
        _check_length(row, "loss_mask", loss_masks[row], count, "num_actions")

    pad_token_id = tokenizer.pad_token_id
    if pad_token_id is None and min(lengths) == max(lengths):
        pad_token_id = 0  # which is nowhere
    data = {
        "sequences": _left_padded("input_ids", ids, pad_token_id),
        "attention_mask": _left_padded("attention_mask", attention_masks, 0),
        "loss_mask": _left_padded("loss_mask", loss_masks, 0),
        **dict.fromkeys(IMAGES),
    }
    if with_images:
        import torch

        for key in IMAGES:
            data[key] = [torch.as_tensor(example[key]) for example in examples]
    return training_batch(data, {"response_length": max(actions)})


class DefaultCollator:
    """Left-pad examples, and divide the loss mask by the number of tokens to train on.

    So the sum of all losses is their mean over the batch's tokens, however these are spread over
    ranks and micro-batches.

    Parameters
    ----------
    tokenizer
        What has the ``pad_token_id``.
    micro_train_batch_size_per_gpu
        Kept as an attribute; nothing depends on it.

    Notes
    -----
    Written against SkyRL 0.3.0: ``DefaultCollator`` of ``skyrl.train.dataset.collators``.
    """

    def __init__(self, tokenizer: Any, micro_train_batch_size_per_gpu: int) -> None:
        self.tokenizer = tokenizer
        self.micro_train_batch_size_per_gpu = micro_train_batch_size_per_gpu

    def __call__(self, examples: Examples, batch_size: int) -> Any:
        """Return what :func:`collate_sft_batch` does, with a float32 loss mask that is divided.

        Parameters
        ----------
        examples
            As of :func:`collate_sft_batch`.
        batch_size
            Not looked at, as in SkyRL.
        """
        batch = collate_sft_batch(examples, self.tokenizer)
        total = max(batch["loss_mask"].sum().item(), 1)
        batch["loss_mask"] = batch["loss_mask"].float() / total
        return batch


def _check_images(examples: Examples) -> bool:
    """Say whether examples have images, which all have or none."""
    count = sum("pixel_values" in example for example in examples)
    if 0 < count < len(examples):
        raise ValueError(
            f"{count} of {len(examples)} examples have pixel_values; text with images and text "
            "alone cannot be in one batch"
        )
    return count > 0


def _check_length(row: int, key: str, values: Any, expected: int, source: str) -> None:
    if len(values) != expected:
        raise ValueError(
            f"examples[{row}][{key!r}] has {len(values)} items, but {source} is of {expected}"
        )


def _left_padded(key: str, rows: list[Any], fill: Any) -> Any:
    """Return rows as one int64 tensor, right-aligned."""

    def collated(rows: list[Any]) -> Any:
        # As responses without prompts: slicing lists would take longer than all the rest.
        empty: list[Any] = [()] * len(rows)
        return collate_fields(empty, rows, fill, [], "torch", outputs=BOOL_MASKS)["input_ids"]

    try:
        try:
            return collated(rows)
        except TypeError as error:
            return collated(_cut_off(rows, error))
    except (TypeError, ValueError) as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(_named(error, key)) from error


def _cut_off(rows: list[Any], error: TypeError) -> list[Any]:
    """Return rows without what their numbers have behind the point, or raise the error."""
    import torch

    cut = []
    for row, values in enumerate(rows):
        try:
            cut.append(torch.as_tensor(values, dtype=torch.int64))
        except TypeError:
            raise error from None
        except (ValueError, RuntimeError) as refusal:  # NaN, or beyond int64
            raise ValueError(f"responses[{row}] cannot be read: {refusal}") from refusal
    return cut


def _named(error: Exception, key: str) -> str:
    """Return a message about responses as one about a key of the examples."""
    return re.sub(r"\bresponses(\[\d+\])", rf"examples\1[{key!r}]", str(error)).replace(
        "responses", key
    )
