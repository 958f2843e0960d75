"""Drop-in replacements for functions of verl.

Samples and batches are verl's own TensorDicts where tensordict is installed, and plain dicts
everywhere.
"""

from fastcollate.common.names import list_names_of
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
from fastcollate.compat.verl.tensordicts import to_tensordict
from fastcollate.compat.verl.upsampling import (
    build_padding_position_ids,
    build_padding_routed_experts,
    construct_minimal_padding_template,
    upsample_batch,
)

__all__ = [
    "build_padding_position_ids",
    "build_padding_routed_experts",
    "calculate_workload",
    "construct_minimal_padding_template",
    "get_group_balanced_partitions",
    "get_seqlen_balanced_partitions",
    "karmarkar_karp",
    "left_right_2_no_padding",
    "no_padding_2_padding",
    "patch",
    "prepare_dynamic_batch",
    "rearrange_micro_batches",
    "restore_dynamic_batch",
    "to_tensordict",
    "unpatch",
    "upsample_batch",
]

_BALANCING = "verl.utils.seqlen_balancing"
_PADDING = "verl.workers.utils.padding"
_RAY_TRAINER = "verl.trainer.ppo.ray_trainer"
_ENGINE = "verl.workers.engine.utils"
_MEGATRON = "verl.workers.engine.megatron.transformer_impl"
_TRAINERS = (_RAY_TRAINER, "verl.trainer.ppo.v1.trainer_base", "verl.trainer.sft_trainer_ray")
_LOSSES = (
    "verl.workers.utils.losses",
    "verl.trainer.distillation.losses",
    "verl.trainer.distillation",  # imports all names of its losses
)

# Not the functions of padding rows: rows of verl's own have fields of other lengths. Data-parallel
# ranks agree on the number of micro-batches by fewer messages than verl, so all have to patch.
PATCHER = Patcher(
    "verl",
    package="verl",
    compat=__name__,
    replacements=[
        *Replacement.each(
            _BALANCING, calculate_workload, get_seqlen_balanced_partitions, bound_in=_TRAINERS
        ),
        *Replacement.each(
            _BALANCING, karmarkar_karp, get_group_balanced_partitions, prepare_dynamic_batch
        ),
        *Replacement.each(_BALANCING, rearrange_micro_batches, bound_in=(_ENGINE,)),
        *Replacement.each(_BALANCING, restore_dynamic_batch, bound_in=(_ENGINE, _MEGATRON)),
        *Replacement.each(_PADDING, left_right_2_no_padding, bound_in=(_RAY_TRAINER,)),
        *Replacement.each(_PADDING, no_padding_2_padding, bound_in=(_RAY_TRAINER, *_LOSSES)),
    ],
)

patch, unpatch = PATCHER.patch, PATCHER.unpatch

list_names_of(__name__)
