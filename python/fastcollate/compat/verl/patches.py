"""verl's functions replaced by those here, in its own modules."""

from __future__ import annotations

from fastcollate.compat.patching import Patcher, Replacement
from fastcollate.compat.verl.dynamic_batches import prepare_dynamic_batch, restore_dynamic_batch
from fastcollate.compat.verl.padding import left_right_2_no_padding, no_padding_2_padding
from fastcollate.compat.verl.seqlen_balancing import (
    calculate_workload,
    get_group_balanced_partitions,
    get_seqlen_balanced_partitions,
    karmarkar_karp,
    rearrange_micro_batches,
)

BALANCING = "verl.utils.seqlen_balancing"
PADDING = "verl.workers.utils.padding"

RAY_TRAINER = "verl.trainer.ppo.ray_trainer"
ENGINE = "verl.workers.engine.utils"
TRAINERS = (RAY_TRAINER, "verl.trainer.ppo.v1.trainer_base", "verl.trainer.sft_trainer_ray")
LOSSES = (
    "verl.workers.utils.losses",
    "verl.trainer.distillation.losses",
    "verl.trainer.distillation",  # imports all names of its losses
)

# Not the functions of padding rows: rows of verl's own have fields of other lengths. Data-parallel
# ranks agree on the number of micro-batches by fewer messages than verl, so all have to patch.
PATCHER = Patcher(
    "verl",
    package="verl",
    compat="fastcollate.compat.verl",
    replacements=[
        Replacement(BALANCING, "calculate_workload", calculate_workload, TRAINERS),
        Replacement(BALANCING, "karmarkar_karp", karmarkar_karp),
        Replacement(
            BALANCING, "get_seqlen_balanced_partitions", get_seqlen_balanced_partitions, TRAINERS
        ),
        Replacement(BALANCING, "get_group_balanced_partitions", get_group_balanced_partitions),
        Replacement(BALANCING, "rearrange_micro_batches", rearrange_micro_batches, (ENGINE,)),
        Replacement(BALANCING, "prepare_dynamic_batch", prepare_dynamic_batch),
        Replacement(
            BALANCING,
            "restore_dynamic_batch",
            restore_dynamic_batch,
            (ENGINE, "verl.workers.engine.megatron.transformer_impl"),
        ),
        Replacement(PADDING, "left_right_2_no_padding", left_right_2_no_padding, (RAY_TRAINER,)),
        Replacement(PADDING, "no_padding_2_padding", no_padding_2_padding, (RAY_TRAINER, *LOSSES)),
    ],
)

patch, unpatch = PATCHER.patch, PATCHER.unpatch
