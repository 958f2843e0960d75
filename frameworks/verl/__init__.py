"""Ports of verl's functions."""

from frameworks.verl.rollouts import clipped_losses, grpo_loops, rollout_loops
from frameworks.verl.seqlen_balancing import group_balanced_loops, rearrange_loops
from frameworks.verl.upsampling import construct_minimal_padding_template, upsample_batch

__all__ = [
    "clipped_losses",
    "construct_minimal_padding_template",
    "group_balanced_loops",
    "grpo_loops",
    "rearrange_loops",
    "rollout_loops",
    "upsample_batch",
]
