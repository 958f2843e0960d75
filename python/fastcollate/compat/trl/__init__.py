"""Drop-in replacement for TRL's packing of datasets."""

from fastcollate.compat.trl.packing import pack_dataset
from fastcollate.compat.trl.patches import patch, unpatch

__all__ = ["pack_dataset", "patch", "unpatch"]
