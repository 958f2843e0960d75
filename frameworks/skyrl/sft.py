"""Ports of SkyRL's collators for supervised fine-tuning, token by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
