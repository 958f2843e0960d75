"""The collator of transformers replaced by the one here, in its own modules."""

from __future__ import annotations

from fastcollate.compat.patching import Patcher, Replacement
from fastcollate.compat.transformers.flattening import DataCollatorWithFlattening

PATCHER = Patcher(
    "transformers",
    package="transformers",
    compat="fastcollate.compat.transformers",
    replacements=[
        Replacement(
            "transformers.data.data_collator",
            "DataCollatorWithFlattening",
            DataCollatorWithFlattening,
            bound_in=("transformers", "transformers.data"),
        ),
    ],
)

patch, unpatch = PATCHER.patch, PATCHER.unpatch
