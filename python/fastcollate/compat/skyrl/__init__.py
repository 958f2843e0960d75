"""Drop-in replacements for functions of SkyRL (``skyrl.train``)."""

from fastcollate.common.names import list_names_of
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
from fastcollate.compat.skyrl.sft import DefaultCollator, PackedDataCollator, collate_sft_batch
from fastcollate.compat.skyrl.stepwise import merge_stepwise_output

__all__ = [
    "DefaultCollator",
    "PackedDataCollator",
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

_PREPROCESS = "skyrl.train.dataset.preprocess"
_PACKING = "skyrl.train.dataset.bin_packing"
_COLLATORS = "skyrl.train.dataset.collators"
_TRAINER = ("skyrl.train.trainer",)
_WORKERS = "skyrl.backends.skyrl_train.workers.worker_utils"

PATCHER = Patcher(
    "SkyRL",
    package="skyrl",
    compat=__name__,
    python="3.12",
    replacements=[
        *Replacement.each(
            _PREPROCESS,
            convert_prompts_responses_to_batch_tensors,
            compute_prompt_boundaries,
            compute_prompt_mini_batch_boundaries,
            bound_in=_TRAINER,
        ),
        Replacement(
            _PREPROCESS, "make_router_padding_mask", make_router_padding_mask, _TRAINER, ("0.4.0",)
        ),
        *Replacement.each("skyrl.train.generators.utils", merge_stepwise_output, bound_in=_TRAINER),
        *Replacement.each(_PACKING, make_seq_packer, bound_in=(_COLLATORS, _WORKERS)),
        *Replacement.each(_COLLATORS, DefaultCollator, PackedDataCollator),
        *Replacement.each("skyrl.train.sft_trainer", collate_sft_batch),
    ],
)

patch, unpatch = PATCHER.patch, PATCHER.unpatch

list_names_of(__name__)
