"""Plain implementations of fastcollate's contracts: slow or simple, and right.

`build_batch_loops` and `build_batch_numpy` were written independently of each other and of the Rust
code, so a result on which all three agree is unlikely to be wrong. They do not validate their
input, as `fastcollate.build_batch` does.
"""

from fastcollate.testing.reference.advantages import (
    broadcast_last_step_loops,
    drop_padding_loops,
    loss_normalizers_loops,
    normalize_loops,
)
from fastcollate.testing.reference.comparing import assert_same
from fastcollate.testing.reference.context_parallel import (
    cp_columns_loops,
    cp_merge_loops,
    cp_split_loops,
)
from fastcollate.testing.reference.loops import build_batch_loops
from fastcollate.testing.reference.merging import (
    build_merged_batch_loops,
    count_masked_rewards_loops,
    merge_columns_loops,
    merge_turns_loops,
)
from fastcollate.testing.reference.packed import Part, make_packed_grids, packing_of, parts_of
from fastcollate.testing.reference.packed_peer import build_packed_numpy
from fastcollate.testing.reference.packing import (
    adjust_bin_count_loops,
    concat_loops,
    pack_loops,
)
from fastcollate.testing.reference.partitioning import (
    karmarkar_karp_loops,
    lpt_loops,
    lpt_swap_loops,
    micro_batches_loops,
)
from fastcollate.testing.reference.peer import build_batch_numpy
from fastcollate.testing.reference.samples import collate_loops
from fastcollate.testing.reference.shards import build_shard_loops
from fastcollate.testing.reference.sharing import PrefixTrie, prefix_tree_loops
from fastcollate.testing.reference.stepping import Step, plan_step_loops, prompt_boundaries_loops
from fastcollate.testing.reference.way_back import (
    broadcast_loops,
    gather_loops,
    gather_merged_loops,
)

__all__ = [
    "Part",
    "PrefixTrie",
    "Step",
    "adjust_bin_count_loops",
    "assert_same",
    "broadcast_last_step_loops",
    "broadcast_loops",
    "build_batch_loops",
    "build_batch_numpy",
    "build_merged_batch_loops",
    "build_packed_numpy",
    "build_shard_loops",
    "collate_loops",
    "concat_loops",
    "count_masked_rewards_loops",
    "cp_columns_loops",
    "cp_merge_loops",
    "cp_split_loops",
    "drop_padding_loops",
    "gather_loops",
    "gather_merged_loops",
    "karmarkar_karp_loops",
    "loss_normalizers_loops",
    "lpt_loops",
    "lpt_swap_loops",
    "make_packed_grids",
    "merge_columns_loops",
    "merge_turns_loops",
    "micro_batches_loops",
    "normalize_loops",
    "pack_loops",
    "packing_of",
    "parts_of",
    "plan_step_loops",
    "prefix_tree_loops",
    "prompt_boundaries_loops",
]
