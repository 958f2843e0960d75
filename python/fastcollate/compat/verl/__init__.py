"""Drop-in replacements for functions of verl.

Samples and batches are verl's own TensorDicts where tensordict is installed, and plain dicts
everywhere.
"""

from fastcollate.compat.verl.dynamic_batches import prepare_dynamic_batch, restore_dynamic_batch
from fastcollate.compat.verl.padding import left_right_2_no_padding, no_padding_2_padding
from fastcollate.compat.verl.patches import patch, unpatch
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
