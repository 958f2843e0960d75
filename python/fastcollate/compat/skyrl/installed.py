"""Modules of SkyRL, with or without SkyRL."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple


def skyrl_module(name: str) -> ModuleType | None:
    """Return a module of the installed SkyRL; None if SkyRL or the module is missing."""
    if "skyrl" not in sys.modules and not _is_installed():
        return None
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@functools.cache
def _is_installed() -> bool:
    """Return True if SkyRL is installed. A failed import takes 0.2 ms each time."""
    return importlib.util.find_spec("skyrl") is not None


MODULE = "skyrl.backends.skyrl_train.distributed.megatron.packing_utils"
FUNCTION = "get_packed_seq_align_size"


def packed_align_size(
    tp_size: int, cp_size: int, *, fp8_enabled: bool, fp8_recipe: str | None
) -> int:
    """Return the multiple of packed examples' lengths: the installed SkyRL's, or else 0.4.0's.

    Workers compute the offsets again: with another multiple they would silently read other tokens.

    Raises
    ------
    ValueError
        The spec ``"auto"``.
    RuntimeError
        The installed SkyRL has no function that returns it.
    """
    module = skyrl_module(MODULE)
    if module is None:
        return _align_size(tp_size, cp_size, fp8_enabled, fp8_recipe)
    function: Any = getattr(module, FUNCTION, None)
    if function is None:
        raise RuntimeError(
            f"{MODULE} has no {FUNCTION}, so the installed SkyRL aligns examples in another way; "
            "use its own collator"
        )
    size: int = function(tp_size, cp_size, fp8_enabled=fp8_enabled, fp8_recipe=fp8_recipe)
    return size


def _align_size(tp_size: int, cp_size: int, fp8_enabled: bool, fp8_recipe: str | None) -> int:
    size = 2 * tp_size * cp_size if cp_size > 1 else tp_size
    if not fp8_enabled:
        return size
    spec = (fp8_recipe or "").strip().lower()
    if spec == "auto":
        raise ValueError(
            "fp8_recipe is 'auto', which workers may resolve in another way than the collator; "
            "pass 'blockwise' or 'mxfp8'"
        )
    if spec == "mxfp8":
        return math.lcm(size, 32 * tp_size * cp_size)
    return math.lcm(size, 128 * tp_size * cp_size if tp_size > 1 else 16 * cp_size)


class PackedTensor(NamedTuple):
    """A packed tensor if SkyRL is not installed."""

    values: Any
    """The values of all rows, one after the other."""
    cu_seqlens: Any
    """Row offsets in the values, int32 (rows + 1,)."""


def packed_tensor(values: Any, cu_seqlens: Any) -> Any:
    """Return a ``PackedTensor`` of SkyRL, or without SkyRL a named tuple of its attributes."""
    module: Any = skyrl_module("skyrl.backends.skyrl_train.utils.packed_tensor")
    return (PackedTensor if module is None else module.PackedTensor)(values, cu_seqlens)


class TrainingBatch(dict[str, Any]):
    """A batch if SkyRL is not installed: tensors and lists of tensors by key.

    Attributes
    ----------
    metadata : dict
        Values of the whole batch.
    """

    metadata: dict[str, Any]


def training_batch(columns: Mapping[str, Any], response_length: int) -> Any:
    """Return a ``TrainingInputBatch`` of SkyRL, or without SkyRL a mapping with the same keys.

    Lists of tensors become a ``TensorList``, or stay lists. `response_length`, the width of the
    loss mask, is SkyRL's only metadata of such a batch.

    Parameters
    ----------
    columns
        ``sequences`` and ``attention_mask``, int64 (B, W), of left-padded rows or of rows of packed
        examples, and ``loss_mask``. Left-padded, the mask is of the last A tokens of each row,
        int64 (B, A), or divided by its sum in float32; there may be ``pixel_values`` and
        ``image_grid_thw``, a list of a tensor per row, or None. Packed, it is divided, float32
        (B, W - 1), and position p is about the token at p + 1; ``sub_seq_lengths`` has the tokens
        of each example of a row, a list of int64 tensors.
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
