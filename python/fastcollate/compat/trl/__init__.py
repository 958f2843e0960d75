"""Drop-in replacements for TRL's packing of datasets, and of samples in trees."""

from fastcollate.compat.patching import Patcher, Replacement
from fastcollate.compat.trl.packing import pack_dataset
from fastcollate.compat.trl.tree_rows import TreeRow

__all__ = ["TreeRow", "pack_dataset", "patch", "unpatch"]

PATCHER = Patcher(
    "TRL",
    package="trl",
    compat=__name__,
    replacements=[
        *Replacement.each(
            "trl.data_utils",
            pack_dataset,
            bound_in=("trl", "trl.trainer.sft_trainer", "trl.experimental.gold.gold_trainer"),
        ),
        *Replacement.each(
            "trl.experimental.async_grpo.packing",
            TreeRow,
            bound_in=("trl.experimental.async_grpo.async_grpo_trainer",),
        ),
    ],
)

patch, unpatch = PATCHER.patch, PATCHER.unpatch
