"""Drop-in replacements for functions of verl.

Samples and batches are verl's own TensorDicts where tensordict is installed, and plain dicts
everywhere.
"""

from fastcollate.compat.verl.padding import left_right_2_no_padding, no_padding_2_padding
from fastcollate.compat.verl.seqlen_balancing import (
    get_seqlen_balanced_partitions,
    karmarkar_karp,
    rearrange_micro_batches,
)
from fastcollate.compat.verl.upsampling import (
    build_padding_position_ids,
    build_padding_routed_experts,
    construct_minimal_padding_template,
    upsample_batch,
)

__all__ = [
    "build_padding_position_ids",
    "build_padding_routed_experts",
    "construct_minimal_padding_template",
    "get_seqlen_balanced_partitions",
    "karmarkar_karp",
    "left_right_2_no_padding",
    "no_padding_2_padding",
    "rearrange_micro_batches",
    "upsample_batch",
]
