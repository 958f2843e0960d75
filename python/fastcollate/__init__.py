"""Collation for LLM post-training: ragged rollouts to training tensors in one call.

>>> import fastcollate as fc
>>> batch = fc.build_batch([[5, 6], [7]], [[8], [9, 10]], pad_token_id=0, array_type="numpy")
>>> batch.input_ids
array([[ 5,  6,  8],
       [ 7,  9, 10]])
"""

import logging

from fastcollate._fastcollate import Plan, __version__
from fastcollate.advantages import LossNormalizers, broadcast_last_step, drop_padding
from fastcollate.batch import Batch, MissingPlanError
from fastcollate.building import BatchBuilder
from fastcollate.collating import build_batch
from fastcollate.collator import Collator
from fastcollate.context_parallel import cp_merge, cp_split
from fastcollate.handover.device_padding import pad_on_device
from fastcollate.handover.prefetching import Prefetcher, prefetch
from fastcollate.ingest.column_input import ragged
from fastcollate.ingest.columns import Ragged
from fastcollate.ingest.fields import Field, PerRow, RoutedExperts
from fastcollate.memory import BufferPool, get_default_pool, set_default_pool
from fastcollate.plan.bin_plan import BinPlan
from fastcollate.plan.boundaries import PromptBoundaries
from fastcollate.plan.merge_report import Break, MergeReport
from fastcollate.plan.merging import MergePlan, merge_turns
from fastcollate.plan.packing import pack
from fastcollate.plan.partitioning import MicroBatches, micro_batches, partition
from fastcollate.plan.step_plan import Shard, StepPlan
from fastcollate.plan.stepping import plan_step, prompt_boundaries

__all__ = [
    "Batch",
    "BatchBuilder",
    "BinPlan",
    "Break",
    "BufferPool",
    "Collator",
    "Field",
    "LossNormalizers",
    "MergePlan",
    "MergeReport",
    "MicroBatches",
    "MissingPlanError",
    "PerRow",
    "Plan",
    "Prefetcher",
    "PromptBoundaries",
    "Ragged",
    "RoutedExperts",
    "Shard",
    "StepPlan",
    "__version__",
    "broadcast_last_step",
    "build_batch",
    "cp_merge",
    "cp_split",
    "drop_padding",
    "get_default_pool",
    "merge_turns",
    "micro_batches",
    "pack",
    "pad_on_device",
    "partition",
    "plan_step",
    "prefetch",
    "prompt_boundaries",
    "ragged",
    "set_default_pool",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())
