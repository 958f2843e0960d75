"""Drop-in replacement for TRL's packing of datasets."""

from fastcollate.compat.patching import Patcher, Replacement
from fastcollate.compat.trl.packing import pack_dataset

__all__ = ["pack_dataset", "patch", "unpatch"]

PATCHER = Patcher(
    "TRL",
    package="trl",
    compat=__name__,
    replacements=Replacement.each(
        "trl.data_utils",
        pack_dataset,
        bound_in=("trl", "trl.trainer.sft_trainer", "trl.experimental.gold.gold_trainer"),
    ),
)

patch, unpatch = PATCHER.patch, PATCHER.unpatch
