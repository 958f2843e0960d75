"""SkyRL's functions replaced by those here, in its own modules."""

from __future__ import annotations

from fastcollate.compat.patching import Patcher, Replacement
from fastcollate.compat.skyrl.batch_tensors import (
    convert_prompts_responses_to_batch_tensors,
    make_router_padding_mask,
)
from fastcollate.compat.skyrl.mini_batches import (
    compute_prompt_boundaries,
    compute_prompt_mini_batch_boundaries,
)
from fastcollate.compat.skyrl.seq_packing import make_seq_packer
from fastcollate.compat.skyrl.sft import (
    DefaultCollator,
    PackedDataCollator,
    collate_sft_batch,
)
from fastcollate.compat.skyrl.stepwise import merge_stepwise_output

PREPROCESS = "skyrl.train.dataset.preprocess"
COLLATORS = "skyrl.train.dataset.collators"
TRAINER = ("skyrl.train.trainer",)

PATCHER = Patcher(
    "SkyRL",
    package="skyrl",
    compat="fastcollate.compat.skyrl",
    replacements=[
        Replacement(
            PREPROCESS,
            "convert_prompts_responses_to_batch_tensors",
            convert_prompts_responses_to_batch_tensors,
            bound_in=TRAINER,
        ),
        Replacement(
            PREPROCESS, "compute_prompt_boundaries", compute_prompt_boundaries, bound_in=TRAINER
        ),
        Replacement(
            PREPROCESS,
            "compute_prompt_mini_batch_boundaries",
            compute_prompt_mini_batch_boundaries,
            bound_in=TRAINER,
        ),
        Replacement(
            PREPROCESS,
            "make_router_padding_mask",
            make_router_padding_mask,
            bound_in=TRAINER,
            versions=("0.4.0",),
        ),
        Replacement(
            "skyrl.train.generators.utils",
            "merge_stepwise_output",
            merge_stepwise_output,
            bound_in=TRAINER,
        ),
        Replacement(
            "skyrl.train.dataset.bin_packing",
            "make_seq_packer",
            make_seq_packer,
            bound_in=(COLLATORS, "skyrl.backends.skyrl_train.workers.worker_utils"),
        ),
        Replacement(COLLATORS, "DefaultCollator", DefaultCollator),
        Replacement(COLLATORS, "PackedDataCollator", PackedDataCollator),
        Replacement("skyrl.train.sft_trainer", "collate_sft_batch", collate_sft_batch),
    ],
)

patch, unpatch = PATCHER.patch, PATCHER.unpatch
