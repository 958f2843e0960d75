"""Training batches for SkyRL, with or without SkyRL installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastcollate.compat.skyrl.installed import skyrl_module


class TrainingBatch(dict[str, Any]):
    """A batch if SkyRL is not installed: tensors and lists of tensors by key.

    Attributes
    ----------
    metadata : dict
        Values of the whole batch.
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
