"""TRL's functions replaced by those here, in its own modules."""

from __future__ import annotations

from fastcollate.compat.patching import Patcher, Replacement
from fastcollate.compat.trl.packing import pack_dataset

PATCHER = Patcher(
    "TRL",
    package="trl",
    compat="fastcollate.compat.trl",
    replacements=[
        Replacement(
            "trl.data_utils",
            "pack_dataset",
            pack_dataset,
            bound_in=("trl", "trl.trainer.sft_trainer", "trl.experimental.gold.gold_trainer"),
        ),
    ],
)

patch, unpatch = PATCHER.patch, PATCHER.unpatch
