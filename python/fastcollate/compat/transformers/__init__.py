"""For transformers: attention over trees, log-probabilities in bins and trees, and its collator."""

from fastcollate.common.names import list_names_of
from fastcollate.compat.patching import Patcher, Replacement
from fastcollate.compat.transformers.attention import register_tree_attention
from fastcollate.compat.transformers.flattening import DataCollatorWithFlattening
from fastcollate.compat.transformers.token_logprobs import token_logprobs

__all__ = [
    "DataCollatorWithFlattening",
    "patch",
    "register_tree_attention",
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

list_names_of(__name__)
