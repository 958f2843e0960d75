"""Steps over blocks: planned on the driver, collated in training workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import ray

from fastcollate.batch import Batch
from fastcollate.blocks.joining import JoinedBlocks, join
from fastcollate.blocks.reading import build, parts_of
from fastcollate.blocks.trees import join_trees
from fastcollate.build import build_batch
from fastcollate.common.arguments import (
    check_seconds,
    spells_out,
    suggests_names,
    tally,
    wrong_name,
)
from fastcollate.common.arrays import describe
from fastcollate.common.row_columns import COLUMNS, IDS
from fastcollate.ops.normalize import LossNormalizers
from fastcollate.options import Options, ShardOptions
from fastcollate.plan import stepping
from fastcollate.plan.dtypes import ArrayType
from fastcollate.plan.layouts import LayoutArgument, Tree, check_layout
from fastcollate.plan.merging import MergePlan
from fastcollate.plan.shard import Shard
from fastcollate.plan.step_plan import StepPlan
from fastcollate.ray.fetching import TIMEOUT, fetch
from fastcollate.ray.putting import Block

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from typing_extensions import Unpack


class ShardNormalizers(NamedTuple):
    """The loss normalizers of a mini-batch, the same on each of its ranks. None is 0.

    Attributes
    ----------
    tokens : float
        Sum of the loss mask over the real rows of all ranks; 1 instead of 0.
    rows : int
        Number of real rows of all ranks; 1 instead of 0.
    """

    tokens: float
    rows: int


@suggests_names
@dataclass(frozen=True, eq=False)
class BlockShard:
    """The rows of one rank in one mini-batch: references to the objects that hold them.

    Small, and pickled by Ray: pass it to the worker that trains. Nothing is consumed: the same
    shard has the same rows, and collating it twice gives the same bytes.

    Attributes
    ----------
    mini_batch, rank : int
        The position of the shard in the plan.
    shard : Shard
        Its rows.
    loss_normalizers : ShardNormalizers
        ``tokens`` and ``rows`` of the whole mini-batch, over all ranks, as in
        :meth:`BlockStepPlan.loss_normalizers`.
    """

    mini_batch: int
    rank: int
    shard: Shard
    loss_normalizers: ShardNormalizers
    step: ray.ObjectRef[JoinedBlocks]
    parts: Mapping[int, ray.ObjectRef[Any]]

    @property
    def name(self) -> str:
        """The name of the shard in errors."""
        return f"the shard of mini-batch {self.mini_batch} and rank {self.rank}"

    def __len__(self) -> int:
        return len(self.shard)

    def micro_batches(self, count: int | None = None) -> list[BlockShard]:
        """Split the rows into micro-batches, as :meth:`fastcollate.planning.Shard.micro_batches`.

        Each has the ``loss_normalizers`` of the mini-batch. :func:`collate` fetches only the
        objects of its own rows.
        """
        return [replace(self, shard=part) for part in self.shard.micro_batches(count)]

    def narrow(self) -> BlockShard:
        """Return the shard with batches as wide as its own rows (:meth:`Shard.narrow`)."""
        return replace(self, shard=self.shard.narrow())

    def __repr__(self) -> str:
        rows, parts = tally(len(self), "row"), tally(len(self.parts), "object")
        return f"BlockShard of mini-batch {self.mini_batch} and rank {self.rank}: {rows} in {parts}"


class BlockStepPlan:
    """The blocks' rows in each mini-batch and on each rank.

    Made by :func:`plan_step`. The step has the rows of all blocks, in order.

    Attributes
    ----------
    step : StepPlan
        The plan of the rows.
    blocks : tuple of Block
        The blocks, which the plan keeps alive in the object store.
    """

    def __init__(self, step: StepPlan, blocks: Sequence[Block], tables: JoinedBlocks) -> None:
        self.step = step
        self.blocks = tuple(blocks)
        self._tables = tables
        self._refs = [ref for block in blocks for ref in block.refs]
        self._ref: ray.ObjectRef[JoinedBlocks] | None = None
        self._loss_normalizers = tables.loss_normalizers(step)

    @property
    def num_mini_batches(self) -> int:
        """Number of mini-batches: optimizer steps."""
        return self.step.num_mini_batches

    @property
    def merge_plan(self) -> MergePlan | None:
        """The merging of all blocks' turns with its report, if any."""
        return self._tables.merge_plan

    def loss_normalizers(self) -> LossNormalizers:
        """Return the loss normalizers of each mini-batch; padding does not count.

        Returns
        -------
        LossNormalizers
            As :meth:`fastcollate.Batch.loss_normalizers` of a batch of all rows with a float32 loss
            mask. Each shard has its mini-batch's.
        """
        return self._loss_normalizers

    def shard(self, mini_batch: int, rank: int) -> BlockShard:
        """Return a rank's shard of a mini-batch.

        Raises
        ------
        IndexError
            There is no such mini-batch or rank; both are counted from 0.
        """
        shard = self.step.shard(mini_batch, rank)
        if self._ref is None:
            self._ref = ray.put(self._tables)
        parts = {part: self._refs[part] for part in parts_of(self._tables, shard)}
        tokens, rows = (values[mini_batch].item() for values in self._loss_normalizers)
        return BlockShard(
            int(mini_batch), int(rank), shard, ShardNormalizers(tokens, rows), self._ref, parts
        )

    def __repr__(self) -> str:
        megabytes = sum(block.num_bytes for block in self.blocks) / 1e6
        return f"{self.step!r}, from {tally(len(self.blocks), 'block')} of {megabytes:.1f} MB"


@suggests_names
def plan_step(
    blocks: Sequence[Block], *, layout: LayoutArgument | None = None, **options: Any
) -> BlockStepPlan:
    """Plan an optimizer step of rows held by many workers, from lengths and ids alone.

    Time and memory grow with rows and turns, not with tokens.

    Parameters
    ----------
    blocks
        The results of :func:`put_turns` in each worker. The step has the rows of all blocks, in
        this order.
    layout
        As in :func:`fastcollate.plan_step`: the layout of all shards. Unless it fixes widths, they
        are as wide as the step's longest rows. With :class:`fastcollate.Tree`, rows share tokens by
        the ``share`` of ``put_turns``.
    **options
        Options of :func:`fastcollate.plan_step`, such as ``prompts_per_mini_batch``, ``dp_size``,
        ``pad_rows`` and ``shard_by``, except ``uids``, ``trajectory_ids`` and ``is_last_step``,
        which come from the blocks.

    Returns
    -------
    BlockStepPlan
        Deterministic for the same blocks in the same order.

    Raises
    ------
    ValueError
        As ``fastcollate.plan_step``; no blocks, or one of them twice; a trajectory that is in two
        blocks; a prompt that is in two with others in between; blocks with other columns than
        the first; with a tree layout, blocks without ``share`` or with different ones, or a group
        that is in two. The message names both blocks. A block that has changed since it was put.
    TypeError
        An item of `blocks` is not a block, for instance a reference to one: ``ray.get`` it first.
    """
    blocks = _check_blocks(blocks)
    for name in IDS:
        if name in options:
            raise TypeError(f"{name} is not an argument of plan_step; pass it to put_turns")
    of_blocks, names = [block.table for block in blocks], [block.name for block in blocks]
    tables = join(of_blocks, names)
    rows: Any = tables.merge_plan
    layout = None if layout is None else check_layout(layout)
    if isinstance(layout, Tree):
        _check_tree(layout)
        rows, inputs = join_trees(of_blocks, names)
        layout = replace(layout, same_inputs=inputs)
        options |= tables.names
    elif rows is None:
        rows = tables.plan.prompt_lens, tables.plan.response_lens
        options |= tables.names
    elif "uids" in tables.names:
        options["uids"] = tables.names["uids"]
    step = stepping.plan_step(rows, layout=layout, **options)
    return BlockStepPlan(step, blocks, tables)


@overload
def collate(
    shard: BlockShard,
    *,
    pad_token_id: int,
    timeout: float = TIMEOUT,
    array_type: Literal["torch"] = "torch",
    **options: Unpack[ShardOptions],
) -> Batch[torch.Tensor]: ...
@overload
def collate(
    shard: BlockShard,
    *,
    pad_token_id: int,
    timeout: float = TIMEOUT,
    array_type: Literal["numpy"],
    **options: Unpack[ShardOptions],
) -> Batch[NDArray[Any]]: ...
@suggests_names
@spells_out(ShardOptions.__optional_keys__, build_batch)
def collate(
    shard: BlockShard,
    *,
    pad_token_id: int,
    timeout: float = TIMEOUT,
    array_type: ArrayType = "torch",
    **options: Unpack[ShardOptions],
) -> Batch[Any]:
    """Fetch the columns of a shard's rows, and write its batch.

    Only the objects that hold rows of the shard are fetched: those on this node are viewed in
    place, others are copied to it once. None of them is kept.

    Parameters
    ----------
    shard
        A shard of :meth:`BlockStepPlan.shard`, or one of its micro-batches.
    pad_token_id
        As in :func:`fastcollate.build_batch`.
    timeout
        Seconds to wait for the objects.
    array_type
        As in ``build_batch``.
    **options
        Options of ``build_batch``: ``layout``, ``position_ids``, ``labels``,
        ``dtypes``, ``pool`` and so on, except columns, ``merge`` and ``shard``, which come from the
        blocks and the plan. So does the layout of a step that was planned with one.

    Returns
    -------
    Batch
        Equal to ``build_batch`` of all blocks' columns with this ``shard``, with the same names
        and plans.

    Raises
    ------
    ShardError
        Rows are lost with an object or the worker that put it. The message names the shard and the
        block.
    ShardTimeoutError
        They did not arrive in time.
    ValueError, TypeError
        As ``build_batch``; another layout than the plan's; a dtype with more precision than the
        stored one; an object that has changed since it was put, for instance because a task was run
        again and made other rows.
    """
    if not isinstance(shard, BlockShard):
        raise TypeError(
            f"shard is {describe(shard)}; pass plan.shard(mini_batch, rank) of a plan of "
            "fc.ray.plan_step (others: fc.build_batch(shard=...))"
        )
    timeout = check_seconds("timeout", timeout)
    for name in options:
        if name in (*COLUMNS, "merge", "shard"):
            raise TypeError(f"{name} is not an argument of collate; pass it to put_turns")
    if (message := wrong_name(collate, options)) is not None:
        raise TypeError(message)
    step: JoinedBlocks = fetch(
        shard.name, {0: shard.step}, lambda _: "the plan of the step", timeout
    )[0]
    parts = {part: shard.parts[part] for part in parts_of(step, shard.shard)}
    found = fetch(shard.name, parts, step.part_name, timeout)
    rest: dict[str, Any] = {**options}
    cp = rest.pop("cp", None)
    return build(step, shard.shard, found, Options.check(pad_token_id, array_type, **rest), cp)


def _check_tree(layout: Tree) -> None:
    """Check that a layout does not set options that come from the blocks."""
    for name, default in (("plan", None), ("share", "all"), ("same_inputs", None)):
        if getattr(layout, name) != default:
            raise ValueError(
                f"layout has a {name}, but the blocks have the shared tokens; leave {name} out of "
                "the layout, and pass share and same_inputs to put_turns"
            )


def _check_blocks(blocks: Any) -> list[Block]:
    if isinstance(blocks, Block) or not isinstance(blocks, (list, tuple)):
        raise TypeError(f"blocks is {describe(blocks)}; pass a list of what put_turns returned")
    if len(blocks) == 0:
        raise ValueError("blocks is empty; pass at least one block")
    seen: dict[ray.ObjectRef[Any], int] = {}
    for index, block in enumerate(blocks):
        if not isinstance(block, Block):
            is_reference = isinstance(block, ray.ObjectRef)
            advice = "call ray.get on it first" if is_reference else "pass what put_turns returned"
            raise TypeError(f"blocks[{index}] is {describe(block)}; {advice}")
        first = seen.setdefault(block.refs[0], index)
        if first != index:
            raise ValueError(
                f"blocks[{index}] and blocks[{first}] are the same ({block.name}); "
                "pass each block once"
            )
    return list(blocks)
