"""Shards of one process's batch: put by the driver, viewed in training workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import ray

from fastcollate.batch import Batch
from fastcollate.blocks.slicing import check_rows, rows_of, shards_of
from fastcollate.blocks.spans import Shards, pack_arrays, unpack
from fastcollate.common.arguments import (
    check_bool,
    check_count,
    check_seconds,
    suggests_names,
    tally,
)
from fastcollate.common.arrays import describe
from fastcollate.plan.shard import Shard
from fastcollate.plan.step_plan import StepPlan
from fastcollate.ray.fetching import TIMEOUT, fetch


@dataclass(frozen=True)
class ShardRef:
    """A reference to a shard in the object store: small, and pickled by Ray.

    Attributes
    ----------
    mini_batch, rank : int
        The position of the shard in the plan.
    ref : ray.ObjectRef
        The object, which shards of other ranks may share.
    index : int
        The position of the shard in the object.
    """

    mini_batch: int
    rank: int
    ref: ray.ObjectRef[Any]
    index: int = 0

    @property
    def name(self) -> str:
        """The name of the shard in errors."""
        return f"the shard of mini-batch {self.mini_batch} and rank {self.rank}"


@suggests_names
def put_shards(
    batch: Batch | Mapping[str, Any],
    plan: StepPlan | None = None,
    *,
    boundaries: Any | None = None,
    dp_size: int | None = None,
    pad_rows: Literal["error", "copy_first"] = "error",
    masks: Collection[str] = ("loss_mask",),
    ranks_per_node: int | None = None,
) -> list[list[ShardRef]]:
    """Put every shard of a batch, or of a mapping of tensors, into Ray's object store.

    Contiguous rows are copied there directly from the batch.

    Parameters
    ----------
    batch
        All rows of the step: a :class:`Batch`, or a mapping of tensors or arrays with rows first,
        on the host. A mapping may also hold lists of one item per row, and None, which all shards
        have.
    plan
        Its plan, by :func:`fastcollate.plan_step`. For a mapping, without synthetic rows and bins.
    boundaries, dp_size
        In place of `plan`, for a mapping: a pair of the first row and one past the last for each
        mini-batch, (mini_batches, 2), and the number of ranks. Every rank gets the same number of
        rows, which are contiguous.
    pad_rows
        The rows that pad a mini-batch of `boundaries` that cannot be divided among the ranks:
        ``"error"``, none; ``"copy_first"``, copies of its first row, after all others.
    masks
        Keys of a mapping that are 0 on padding rows, so that these do not train. ``labels`` and
        ``shift_labels`` of tokens are -100 there.
    ranks_per_node
        Number of consecutive ranks on one node. Their shards of a mini-batch become one object:
        putting one has a fixed cost, and a node fetches whole objects. If None, all ranks in a
        cluster of one node, else 1.

    Returns
    -------
    list[list[ShardRef]]
        By mini-batch and rank: ``refs[mini_batch][rank]``. The shards stay in the object store as
        long as these references and this process are alive.

    Raises
    ------
    ValueError
        The plan was made for another batch; values of different numbers of rows; boundaries beyond
        the rows, or of a mini-batch that cannot be divided; rows to fill up, but none of `masks`;
        a number of ranks below 1.
    TypeError
        An argument of another type; both or neither of `plan` and `boundaries`.

    Notes
    -----
    With ``pad_rows="copy_first"``, mini-batches of a mapping equal SkyRL's
    ``MeshDispatch.stage_chunks``, whose metadata is not put.
    """
    shards = _check_shards(batch, plan, boundaries, dp_size, pad_rows)
    num_ranks = len(shards[0]) if shards else 1
    if ranks_per_node is None:
        ranks_per_node = num_ranks if _num_nodes() == 1 else 1
    size = check_count("ranks_per_node", ranks_per_node, "a number of ranks")
    refs: list[list[ShardRef]] = []
    for mini_batch, of_ranks in enumerate(shards):
        refs.append([])
        for first in range(0, num_ranks, size):
            of_node = of_ranks[first : first + size]
            parts: list[Any] = (
                batch._select(of_node)
                if isinstance(batch, Batch)
                else [rows_of(batch, shard, masks) for shard in of_node]
            )
            ref = ray.put(pack_arrays(batch, parts))
            refs[-1] += (ShardRef(mini_batch, first + at, ref, at) for at in range(len(parts)))
    return refs


def _check_shards(
    batch: Any, plan: Any, boundaries: Any, dp_size: Any, pad_rows: Any
) -> list[list[Shard]]:
    """Return the shards of all ranks, by mini-batch."""
    if not isinstance(batch, Mapping):
        raise TypeError(f"batch is {describe(batch)}; pass a Batch or a mapping of tensors")
    if isinstance(batch, Batch) and boundaries is not None:
        raise TypeError("boundaries are given, but batch is a Batch; pass plan, or dict(batch)")
    if boundaries is not None:
        if plan is not None:
            raise TypeError("plan and boundaries are given; pass one of them")
        return shards_of(boundaries, dp_size, pad_rows, check_rows(batch))
    if not isinstance(plan, StepPlan):
        more = "" if isinstance(batch, Batch) else ", or boundaries and dp_size"
        raise TypeError(f"plan is {describe(plan)}; pass a plan of fastcollate.plan_step{more}")
    if dp_size is not None or pad_rows != "error":
        given = "pad_rows" if dp_size is None else "dp_size"
        raise TypeError(f"{given} is given, but plan has it already; leave {given} out")
    if not isinstance(batch, Batch) and (num_rows := check_rows(batch)) != plan.num_real_rows:
        raise ValueError(
            f"batch has {tally(num_rows, 'row')}, but plan was made for {plan.num_real_rows:,}; "
            "pass the rows that were planned"
        )
    return plan.shards()


@suggests_names
def get_shard(
    shard: ShardRef, *, copy: bool = False, timeout: float = TIMEOUT
) -> Batch | dict[str, Any]:
    """Get a shard from Ray's object store.

    Parameters
    ----------
    shard
        A reference of :func:`put_shards`.
    copy
        If True, outputs are copies. If False, they are views of the object store's memory, which
        all processes of the node share: do not write into them. NumPy arrays are read-only; torch
        has no read-only tensors, so that an in-place operation would change other readers' values.
    timeout
        Seconds to wait for the object.

    Returns
    -------
    Batch or dict
        The result of ``batch.select``, or a dict of the rows of a mapping. Repeated calls give the
        same.

    Raises
    ------
    ShardError
        The object, or the process that put it, is lost.
    ShardTimeoutError
        It did not arrive in time.
    ValueError
        The object has changed since it was put.
    TypeError
        `shard` is not a reference to a shard.
    """
    if not isinstance(shard, ShardRef):
        raise TypeError(f"shard is {describe(shard)}; pass one of what put_shards returned")
    check_bool("copy", copy)
    refs = {0: shard.ref}
    found: Shards = fetch(
        shard.name, refs, lambda _: "its object", check_seconds("timeout", timeout)
    )[0]
    return unpack(found, shard.index, copy, shard.name)


def _num_nodes() -> int:
    """Count the nodes of the cluster."""
    untyped: Any = ray
    return len([node for node in untyped.nodes() if node["Alive"]])
