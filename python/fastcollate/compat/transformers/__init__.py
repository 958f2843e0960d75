"""Drop-in replacement for the collator of transformers that joins examples without padding."""

from fastcollate.compat.transformers.flattening import DataCollatorWithFlattening
from fastcollate.compat.transformers.patches import patch, unpatch

__all__ = ["DataCollatorWithFlattening", "patch", "unpatch"]
