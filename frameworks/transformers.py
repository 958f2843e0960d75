"""Port of transformers' collator that flattens a batch, token by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def flatten_features(
    features: Sequence[Mapping[str, Any]],
    *,
    return_position_ids: bool = True,
    separator_id: int = -100,
    return_flash_attn_kwargs: bool = False,
    return_seq_idx: bool = False,
    position_ids_start: int = 0,
) -> dict[str, Any]:
    """Return the batch of transformers' ``DataCollatorWithFlattening``, as NumPy arrays.

    Parameters
    ----------
    features
        Dicts of ``input_ids`` and, all or none, ``labels``, which are lists.
    return_position_ids, separator_id, return_flash_attn_kwargs, return_seq_idx, position_ids_start
        As of the collator.

    Returns
    -------
    dict
        ``input_ids``, ``labels`` and ``position_ids``, int64 (1, T); ``seq_idx``, int32 (1, T);
        ``cu_seq_lens_q`` and ``cu_seq_lens_k``, int32 (N + 1,); ``max_length_q`` and
        ``max_length_k``, ints.

    Notes
    -----
    transformers 5.24.0, ``data/data_collator.py``.
    """
    import numpy as np

    ids: list[int] = []
    labels: list[int] = []
    positions: list[int] = []
    sequences: list[int] = []
    ends = [0]
    for index, feature in enumerate(features):
        source = feature["labels"] if "labels" in features[0] else feature["input_ids"]
        for position, (token, label) in enumerate(zip(feature["input_ids"], source, strict=True)):
            ids.append(token)
            labels.append(separator_id if position == 0 else label)
            positions.append(position_ids_start + position)
            sequences.append(index)
        ends.append(len(ids))
    batch: dict[str, Any] = {"input_ids": np.array([ids], np.int64)}
    batch["labels"] = np.array([labels], np.int64)
    if return_position_ids:
        batch["position_ids"] = np.array([positions], np.int64)
    if return_seq_idx:
        batch["seq_idx"] = np.array([sequences], np.int32)
    if return_flash_attn_kwargs:
        for key in ("cu_seq_lens_q", "cu_seq_lens_k"):
            batch[key] = np.array(ends, np.int32)
        for key in ("max_length_q", "max_length_k"):
            batch[key] = max(len(feature["input_ids"]) for feature in features)
    return batch
