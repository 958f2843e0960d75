"""What SkyRL's trainers take, with or without SkyRL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastcollate.compat.skyrl.installed import skyrl_module


class TrainingBatch(dict[str, Any]):
    """What a batch is where SkyRL is not installed: tensors and lists of tensors by their keys.

    Attributes
    ----------
    metadata : dict
        What belongs to the whole batch.
    """

    metadata: dict[str, Any]


def training_batch(data: Mapping[str, Any], metadata: dict[str, Any]) -> Any:
    """Return a ``TrainingInputBatch`` of SkyRL, or without SkyRL a mapping with the same keys.

    Lists of tensors become a ``TensorList``, or stay lists.
    """
    module: Any = skyrl_module("skyrl.backends.skyrl_train.training_batch")
    if module is None:
        batch: Any = TrainingBatch(data)
    else:
        batch = module.TrainingInputBatch(
            {
                key: module.TensorList(value) if isinstance(value, list) else value
                for key, value in data.items()
            }
        )
    batch.metadata = metadata
    return batch
