"""Ports of SkyRL's collators for supervised fine-tuning, token by token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastcollate.testing.reference import pack_loops

Examples = Sequence[Mapping[str, Any]]


def collate_sft_batch(examples: Examples, pad_token_id: Any) -> dict[str, Any]:
    """Return a left-padded batch, as SkyRL's function of this name.

    Parameters
    ----------
    examples
        Dicts of ``input_ids``, ``attention_mask``, ``num_actions`` and ``loss_mask``: lists, but
        for the number, and of the images ``pixel_values`` and ``image_grid_thw`` of all or none.
    pad_token_id
        The id in front of the shorter examples.

    Returns
    -------
    dict
        ``sequences`` and ``attention_mask``, int64 (B, W), ``loss_mask``, int64 (B, A),
        ``pixel_values`` and ``image_grid_thw``, lists or None, and ``response_length``, which SkyRL
        keeps as metadata.

    Raises
    ------
    ValueError
        If there are no examples, some only have images, or lists are of other lengths than they
        say.
    KeyError
        If an example lacks something.
    TypeError
        If there is no padding token and one is needed, or a value is no number.

    Notes
    -----
    SkyRL 0.4.0, ``skyrl/train/sft_trainer.py``; the other functions are those of
    ``skyrl/train/dataset/collators.py``.
    """
    import torch

    width = max(len(example["input_ids"]) for example in examples)
    actions = max(example["num_actions"] for example in examples)
    images = sum("pixel_values" in example for example in examples)
    if 0 < images < len(examples):
        raise ValueError(f"{images} of {len(examples)} examples have images")
    rows: dict[str, list[list[Any]]] = {"sequences": [], "attention_mask": [], "loss_mask": []}
    for example in examples:
        missing = width - len(example["input_ids"])
        rows["sequences"].append([pad_token_id] * missing + list(example["input_ids"]))
        rows["attention_mask"].append([0] * missing + list(example["attention_mask"]))
        missing = actions - example["num_actions"]
        rows["loss_mask"].append([0] * missing + list(example["loss_mask"]))
    batch: dict[str, Any] = {
        key: torch.tensor(values, dtype=torch.int64) for key, values in rows.items()
    }
    for key in ("pixel_values", "image_grid_thw"):
        batch[key] = [torch.as_tensor(e[key]) for e in examples] if images else None
    return {**batch, "response_length": actions}


def collate_default(examples: Examples, pad_token_id: Any) -> dict[str, Any]:
    """Return the batch of SkyRL's ``DefaultCollator``: the loss mask is divided by its sum.

    Returns
    -------
    dict
        As `collate_sft_batch`, but ``loss_mask`` is float32.
    """
    import torch

    batch = collate_sft_batch(examples, pad_token_id)
    count = max(int(batch["loss_mask"].sum()), 1)
    batch["loss_mask"] = batch["loss_mask"].to(torch.float32) / count
    return batch


def collate_packed(
    examples: Examples,
    pad_token_id: int | None,
    capacity: int,
    align_size: int,
    dp_size: int,
    fp8_enabled: bool = False,
) -> dict[str, Any]:
    """Return the training batch of SkyRL's ``PackedDataCollator``.

    Parameters
    ----------
    examples
        As of `collate_sft_batch`, without images.
    pad_token_id
        The id between and after examples.
    capacity
        Most tokens of a row; with fp8, most positions, at least the place of one example.
    align_size
        The multiple that an example's place in a row is rounded up to: `packed_align_size`.
    dp_size
        Ranks.
    fp8_enabled
        True for fp8.

    Returns
    -------
    dict
        ``sequences`` and ``attention_mask``, int64 (N, W), ``loss_mask``, float32 (N, W - 1),
        ``sub_seq_lengths``, a list of N int64 tensors, and ``response_length``.

    Raises
    ------
    ValueError
        If an example exceeds the capacity, there are fewer than ranks, or none has a token.
    AssertionError
        If a loss mask and the tokens before it are not as many as the tokens.
    TypeError
        If there is no padding token.
    """
    import torch

    masks = []
    for example in examples:
        before = len(example["input_ids"]) - example["num_actions"]
        mask = [0] * before + list(example["loss_mask"])
        if len(mask) != len(example["input_ids"]):
            raise AssertionError("loss_mask")
        masks.append(mask)
    lengths = [len(example["input_ids"]) for example in examples]
    packed = lengths
    if fp8_enabled:
        packed = [-(-length // align_size) * align_size for length in lengths]
        capacity = max(capacity, align_size)
    if any(length > capacity for length in packed):
        raise ValueError("an example exceeds the capacity")
    pieces = pack_loops(
        packed, capacity, min_bins=dp_size, bins_multiple_of=dp_size, oversize="error"
    )
    members = [[item for item, *_ in contents] for contents in pieces]
    bins = [contents for rank in range(dp_size) for contents in members[rank::dp_size]]

    places = [[-(-lengths[item] // align_size) * align_size for item in bin] for bin in bins]
    width = max(sum(row) for row in places)
    if pad_token_id is None:
        raise TypeError("there is no padding token")
    if width == 0:
        raise ValueError("no example has a token")
    rows: dict[str, list[list[Any]]] = {"sequences": [], "attention_mask": [], "loss_mask": []}
    for bin, row_places in zip(bins, places, strict=True):
        sequence, attended, trained = [], [], []
        for item, place in zip(bin, row_places, strict=True):
            missing = place - lengths[item]
            sequence += list(examples[item]["input_ids"]) + [pad_token_id] * missing
            attended += [1] * lengths[item] + [0] * missing
            # Each token stands beside the one before it, but for the first.
            trained += [*masks[item][1:], 0][: lengths[item]] + [0] * missing
        rows["sequences"].append(sequence + [pad_token_id] * (width - len(sequence)))
        rows["attention_mask"].append(attended + [0] * (width - len(sequence)))
        rows["loss_mask"].append((trained + [0] * (width - len(sequence)))[:-1])
    sequences = torch.tensor(rows["sequences"], dtype=torch.int64)
    attention_mask = torch.tensor(rows["attention_mask"], dtype=torch.int64)
    loss_mask = torch.tensor(rows["loss_mask"], dtype=torch.float32)
    loss_mask *= 1 / max(int(loss_mask.sum().item()), 1)
    return {
        "sequences": sequences,
        "attention_mask": attention_mask,
        "loss_mask": loss_mask,
        "sub_seq_lengths": [torch.tensor([lengths[item] for item in bin]) for bin in bins],
        "response_length": width - 1,
    }


def packed_align_size(
    tp_size: int, cp_size: int, fp8_enabled: bool = False, fp8_recipe: str | None = None
) -> int:
    """Return the number whose multiples SkyRL rounds the length of an example's place up to.

    Returns
    -------
    int
        ``tp``, or ``2 * tp * cp`` where contexts are split over ranks, and with fp8 the least
        multiple of that and of what the recipe asks of every rank's share.

    Notes
    -----
    ``get_packed_seq_align_size`` of
    ``skyrl/backends/skyrl_train/distributed/megatron/packing_utils.py``, SkyRL 0.4.0.
    """
    size = 2 * tp_size * cp_size if cp_size > 1 else tp_size
    if not fp8_enabled:
        return size
    if fp8_recipe == "mxfp8":
        share = 32 * tp_size
    elif tp_size > 1:
        share = 128 * tp_size
    else:
        share = 16
    return math.lcm(size, share * cp_size)
