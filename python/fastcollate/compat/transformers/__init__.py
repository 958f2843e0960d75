"""Drop-in replacement for the collator of transformers that joins examples without padding."""

from fastcollate.compat.patching import Patcher, Replacement
from fastcollate.compat.transformers.flattening import DataCollatorWithFlattening

__all__ = ["DataCollatorWithFlattening", "patch", "unpatch"]

PATCHER = Patcher(
    "transformers",
    package="transformers",
    compat=__name__,
    replacements=Replacement.each(
        "transformers.data.data_collator",
        DataCollatorWithFlattening,
        bound_in=("transformers", "transformers.data"),
    ),
)

patch, unpatch = PATCHER.patch, PATCHER.unpatch
