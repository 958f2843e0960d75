"""Plain implementations of fastcollate's contracts: slow or simple, and right.

They were written independently of the Rust code, and do not validate their input, as
`fastcollate.build_batch` does.
"""

from fastcollate.common.names import list_names_of
from fastcollate.testing.reference.comparing import assert_same
from fastcollate.testing.reference.loops import build_batch_loops
from fastcollate.testing.reference.merging import build_merged_batch_loops, merge_turns_loops
from fastcollate.testing.reference.packing import pack_loops
from fastcollate.testing.reference.partitioning import micro_batches_loops
from fastcollate.testing.reference.samples import collate_loops
from fastcollate.testing.reference.shards import build_shard_loops
from fastcollate.testing.reference.sharing import prefix_tree_loops
from fastcollate.testing.reference.stepping import plan_step_loops
from fastcollate.testing.reference.way_back import gather_loops

__all__ = [
    "assert_same",
    "build_batch_loops",
    "build_merged_batch_loops",
    "build_shard_loops",
    "collate_loops",
    "gather_loops",
    "merge_turns_loops",
    "micro_batches_loops",
    "pack_loops",
    "plan_step_loops",
    "prefix_tree_loops",
]

list_names_of(__name__)
