"""Ports of SkyRL's functions."""

from frameworks.skyrl.batch_tensors import convert_prompts_responses_to_batch_tensors
from frameworks.skyrl.mini_batches import compute_prompt_boundaries
from frameworks.skyrl.stepwise import merge_stepwise_output

__all__ = [
    "compute_prompt_boundaries",
    "convert_prompts_responses_to_batch_tensors",
    "merge_stepwise_output",
]
