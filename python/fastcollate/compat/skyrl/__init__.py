"""Drop-in replacements for functions of SkyRL (``skyrl.train``)."""

from fastcollate.compat.skyrl.batch_tensors import (
    convert_prompts_responses_to_batch_tensors,
    make_router_padding_mask,
)
from fastcollate.compat.skyrl.mini_batches import (
    compute_prompt_boundaries,
    compute_prompt_mini_batch_boundaries,
)
from fastcollate.compat.skyrl.patches import patch, unpatch
from fastcollate.compat.skyrl.seq_packing import (
    PackingStrategy,
    SeqPacker,
    make_seq_packer,
)
from fastcollate.compat.skyrl.sft import (
    DefaultCollator,
    PackedDataCollator,
    collate_sft_batch,
)
from fastcollate.compat.skyrl.stepwise import merge_stepwise_output

__all__ = [
    "DefaultCollator",
    "PackedDataCollator",
    "PackingStrategy",
    "SeqPacker",
    "collate_sft_batch",
    "compute_prompt_boundaries",
    "compute_prompt_mini_batch_boundaries",
    "convert_prompts_responses_to_batch_tensors",
    "make_router_padding_mask",
    "make_seq_packer",
    "merge_stepwise_output",
    "patch",
    "unpatch",
]
