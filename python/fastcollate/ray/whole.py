"""Shards of a batch that one process holds: put by the driver, viewed in training workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray

from fastcollate.arguments import check_bool
from fastcollate.arrays import describe, dtype_name, is_only_torch, is_tensor, to_array, to_tensor
from fastcollate.batch import Batch
from fastcollate.blocks.storing import tensor_of_bits
from fastcollate.ray.fetching import TIMEOUT, checked_timeout, fetched
from fastcollate.step_plan import StepPlan


@dataclass(frozen=True)
class ShardRef:
    """A reference to a shard in the object store: small, and pickled by Ray.

    Attributes
    ----------
    mini_batch, rank : int
        Which of the plan's shards it is.
    ref : ray.ObjectRef
        The object.
    """

    mini_batch: int
    rank: int
    ref: ray.ObjectRef[Any]

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"the shard of mini-batch {self.mini_batch} and rank {self.rank}"


@dataclass(frozen=True)
class _Carried:
    """A tensor as an array, which Ray carries out of band; torch would copy it into a pickle."""

    array: Any
    dtype: str

    def tensor(self, copy: bool) -> Any:
        array = self.array.copy() if copy else self.array
        return tensor_of_bits(array, self.dtype) if is_only_torch(self.dtype) else to_tensor(array)


def put_shards(batch: Batch, plan: StepPlan) -> list[list[ShardRef]]:
    """Put every shard of a batch into Ray's object store.

    Rows that follow each other are copied there from the batch itself.

    Parameters
    ----------
    batch
        All rows of the step.
    plan
        What :func:`fastcollate.plan_step` made of it.

    Returns
    -------
    list[list[ShardRef]]
        By mini-batch and rank: ``refs[mini_batch][rank]``. The shards stay in the object store as
        long as these, and this process, are there.

    Raises
    ------
    ValueError
        The plan was made for another batch.
    TypeError
        What is no batch, or no plan.
    """
    if not isinstance(batch, Batch):
        raise TypeError(f"batch is {describe(batch)}; pass a Batch")
    if not isinstance(plan, StepPlan):
        raise TypeError(f"plan is {describe(plan)}; pass a plan of fastcollate.plan_step")
    return [
        [_put(batch.select(plan.shard(index, rank)), index, rank) for rank in range(plan.dp_size)]
        for index in range(plan.num_mini_batches)
    ]


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
    found: Batch = fetched(shard.name, refs, lambda _: "its object", checked_timeout(timeout))[0]
    found._data = {key: _received(value, copy) for key, value in found.items()}
    return found


def _put(batch: Batch, mini_batch: int, rank: int) -> ShardRef:
    names = (batch.uids, batch.trajectory_ids, batch.is_last_step)
    carried = Batch(
        {key: _carried(value) for key, value in batch.items()},
        batch.plan,
        batch.recipe,
        *names,
        batch.merge_plan,
        batch.is_padding,
    )
    return ShardRef(mini_batch, rank, ray.put(carried))


def _carried(value: Any) -> Any:
    if is_tensor(value):
        return _Carried(to_array(value), dtype_name(value.dtype))
    return [_carried(one) for one in value] if isinstance(value, list) else value


def _received(value: Any, copy: bool) -> Any:
    if isinstance(value, _Carried):
        return value.tensor(copy)
    if isinstance(value, list):
        return [_received(one, copy) for one in value]
    return value.copy() if copy and hasattr(value, "copy") else value
