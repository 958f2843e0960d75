"""The collator of transformers that joins examples, and log-probabilities in bins and trees."""

from fastcollate.compat.patching import Patcher, Replacement
from fastcollate.compat.transformers.flattening import DataCollatorWithFlattening
from fastcollate.compat.transformers.token_logprobs import TokenLogprobs, token_logprobs

__all__ = [
    "DataCollatorWithFlattening",
    "TokenLogprobs",
    "patch",
    "token_logprobs",
    "unpatch",
]

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
