"""Training batches for SkyRL, with or without SkyRL installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from fastcollate.compat.skyrl.installed import skyrl_module

if TYPE_CHECKING:
    import torch


class BatchColumns(TypedDict, total=False):
    """The columns of SkyRL's batches of examples, B left-padded rows or rows of packed examples."""

    sequences: torch.Tensor  # ids, int64 (B, W)
    attention_mask: torch.Tensor  # int64 (B, W)
    # Left-padded: of the last A tokens of each row, int64 (B, A), or divided by its sum in float32.
    # Packed: divided float32 (B, W - 1), where position p is about the token at p + 1.
    loss_mask: torch.Tensor
    pixel_values: list[torch.Tensor] | None  # only if left-padded
    image_grid_thw: list[torch.Tensor] | None
    sub_seq_lengths: list[torch.Tensor]  # only if packed: tokens of each example in a row, int64


class TrainingBatch(dict[str, Any]):
    """A batch if SkyRL is not installed: tensors and lists of tensors by key.

    Attributes
    ----------
    metadata : dict
        Values of the whole batch.
    """

    metadata: dict[str, Any]


def training_batch(columns: BatchColumns, response_length: int) -> Any:
    """Return a ``TrainingInputBatch`` of SkyRL, or without SkyRL a mapping with the same keys.

    Lists of tensors become a ``TensorList``, or stay lists. `response_length`, the width of the
    loss mask, is SkyRL's only metadata of such a batch.
    """
    module: Any = skyrl_module("skyrl.backends.skyrl_train.training_batch")
    if module is None:
        batch: Any = TrainingBatch(columns)
    else:
        batch = module.TrainingInputBatch(
            {
                key: module.TensorList(value) if isinstance(value, list) else value
                for key, value in columns.items()
            }
        )
    batch.metadata = {"response_length": response_length}
    return batch
