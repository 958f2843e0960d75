"""Shards of a batch that one process holds: put by the driver, viewed in training workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray

from fastcollate.arguments import check_bool, checked_count, suggests_names
from fastcollate.arrays import describe
from fastcollate.batch import Batch
from fastcollate.blocks.sharing import Shards, packed, unpacked
from fastcollate.plan.step_plan import StepPlan
from fastcollate.ray.fetching import TIMEOUT, checked_timeout, fetched


@dataclass(frozen=True)
class ShardRef:
    """A reference to a shard in the object store: small, and pickled by Ray.

    Attributes
    ----------
    mini_batch, rank : int
        Which of the plan's shards it is.
    ref : ray.ObjectRef
        The object, which shards of other ranks may share.
    index : int
        Which of the object's shards it is.
    """

    mini_batch: int
    rank: int
    ref: ray.ObjectRef[Any]
    index: int = 0

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"the shard of mini-batch {self.mini_batch} and rank {self.rank}"


@suggests_names
def put_shards(
    batch: Batch, plan: StepPlan, *, ranks_per_node: int | None = None
) -> list[list[ShardRef]]:
    """Put every shard of a batch into Ray's object store.

    Rows that follow each other are copied there from the batch itself.

    Parameters
    ----------
    batch
        All rows of the step.
    plan
        What :func:`fastcollate.plan_step` made of it.
    ranks_per_node
        How many ranks that follow each other are on one node. Their shards of a mini-batch are one
        object then: putting one takes time beside that of its bytes, and a node fetches whole
        objects. If None, all of them in a cluster of one node, else 1.

    Returns
    -------
    list[list[ShardRef]]
        By mini-batch and rank: ``refs[mini_batch][rank]``. The shards stay in the object store as
        long as these, and this process, are there.

    Raises
    ------
    ValueError
        The plan was made for another batch; a number of ranks below 1.
    TypeError
        What is no batch, plan or number.
    """
    if not isinstance(batch, Batch):
        raise TypeError(f"batch is {describe(batch)}; pass a Batch")
    if not isinstance(plan, StepPlan):
        raise TypeError(f"plan is {describe(plan)}; pass a plan of fastcollate.plan_step")
    if ranks_per_node is None:
        ranks_per_node = plan.dp_size if _num_nodes() == 1 else 1
    size = checked_count("ranks_per_node", ranks_per_node, "a number of ranks")
    refs: list[list[ShardRef]] = []
    for mini_batch in range(plan.num_mini_batches):
        refs.append([])
        for first in range(0, plan.dp_size, size):
            ranks = range(first, min(first + size, plan.dp_size))
            shards = [batch.select(plan.shard(mini_batch, rank)) for rank in ranks]
            ref = ray.put(packed(batch, shards))
            refs[-1] += (ShardRef(mini_batch, rank, ref, rank - first) for rank in ranks)
    return refs


@suggests_names
def get_shard(shard: ShardRef, *, copy: bool = False, timeout: float = TIMEOUT) -> Batch:
    """Get a shard from Ray's object store.

    Parameters
    ----------
    shard
        Of :func:`put_shards`.
    copy
        Whether its outputs are copies. If not, they are views of the object store's memory, which
        all processes of the node share: do not write into them. NumPy arrays refuse that; torch
        has no read-only tensors, so that an in-place operation would change what others read.
    timeout
        How many seconds to wait for the object.

    Returns
    -------
    Batch
        As ``batch.select`` gave it. Asked for twice, it is the same.

    Raises
    ------
    ShardError
        The object, or the process that put it, is lost.
    ShardTimeoutError
        It did not arrive in time.
    TypeError
        What is no reference to a shard.
    """
    if not isinstance(shard, ShardRef):
        raise TypeError(f"shard is {describe(shard)}; pass one of what put_shards returned")
    check_bool("copy", copy)
    refs = {0: shard.ref}
    found: Shards = fetched(shard.name, refs, lambda _: "its object", checked_timeout(timeout))[0]
    return unpacked(found, shard.index, copy)


def _num_nodes() -> int:
    """Count the nodes of the cluster."""
    untyped: Any = ray
    return len([node for node in untyped.nodes() if node["Alive"]])
