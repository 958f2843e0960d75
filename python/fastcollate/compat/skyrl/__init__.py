"""Drop-in replacements for functions of SkyRL (``skyrl.train``)."""

from fastcollate.compat.skyrl.batch_tensors import (
    convert_prompts_responses_to_batch_tensors,
    make_router_padding_mask,
)
from fastcollate.compat.skyrl.stepwise import merge_stepwise_output

__all__ = [
    "convert_prompts_responses_to_batch_tensors",
    "make_router_padding_mask",
    "merge_stepwise_output",
]
