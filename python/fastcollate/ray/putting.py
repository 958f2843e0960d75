"""Putting turns into the object store, in the worker that has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from fastcollate.arguments import checked_count, counted, suggests_names
from fastcollate.arrays import describe
from fastcollate.blocks.sharing import BlockShare, check_share
from fastcollate.blocks.storing import PART_BYTES, PLAIN, BlockTable, stored
from fastcollate.builder import BatchBuilder
from fastcollate.ops.relayout import ROW_NAMES
from fastcollate.plan.merging import MergePlan, MergeRewards, Policy, check_merge_arguments

COLUMNS = ("prompts", "responses", "sequences", "prompt_lens", *PLAIN, "fields", *ROW_NAMES)


@dataclass(frozen=True, eq=False)
class Block:
    """A handle of the rows that one worker has put: references and what is known without tokens.

    Small, and pickled by Ray: return it from a task or an actor's method. The rows stay in the
    object store as long as a handle, a plan of it or a shard of that plan is alive, and as long as
    the process that put them is: Ray's objects die with their owner.

    Attributes
    ----------
    name : str
        What errors call it.
    table : BlockTable
        Lengths, ids, flags, and what rows are made of.
    refs : tuple of ray.ObjectRef
        The columns, in parts of rows that follow each other.
    """

    name: str
    table: BlockTable
    refs: tuple[ray.ObjectRef[Any], ...]

    @property
    def num_rows(self) -> int:
        """Number of rows that the turns make."""
        return len(self.table.plan["source"])

    @property
    def num_turns(self) -> int:
        """Number of turns."""
        return len(self.table.plan["turn_prompt_lens"])

    @property
    def num_bytes(self) -> int:
        """Bytes of the columns in the object store."""
        return self.table.num_bytes

    @property
    def prompt_lens(self) -> NDArray[np.int64]:
        """Prompt tokens of each row, (rows,)."""
        return self.table.plan["prompt_lens"]

    @property
    def response_lens(self) -> NDArray[np.int64]:
        """Response tokens of each row, observations included, (rows,)."""
        return self.table.plan["response_lens"]

    @property
    def uids(self) -> list[Any] | None:
        """What names each row's prompt, if that was given."""
        return self.table.names.get("uids")

    @property
    def merge_plan(self) -> MergePlan | None:
        """How turns were merged, if they were."""
        return self.table.merge_plan

    def __repr__(self) -> str:
        rows, turns = counted(self.num_rows, "row"), counted(self.num_turns, "turn")
        parts = counted(len(self.refs), "object")
        return f"Block {self.name!r}: {rows} of {turns}, {self.num_bytes / 1e6:.1f} MB in {parts}"


@suggests_names
def put_turns(
    turns: BatchBuilder | Mapping[str, Any],
    *,
    merge: Policy | MergePlan | None = None,
    merge_rewards: MergeRewards | None = None,
    share: BlockShare | None = None,
    same_inputs: Sequence[Any] | None = None,
    name: str | None = None,
    part_bytes: int = PART_BYTES,
) -> Block:
    """Merge turns where they are, and put the rows that they make into Ray's object store.

    Rows are stored without padding: ids in 32 bits where they fit, loss masks of 0 and 1 in one
    byte, other fields as they are to be written. They are pickled out of band, so that readers on
    the same node view them, and copied once to other nodes.

    Parameters
    ----------
    turns
        A builder, which is empty afterwards, or columns: a mapping with ``prompts`` and
        ``responses``, or ``sequences`` and ``prompt_lens``, and any of ``rewards``, ``loss_mask``,
        ``logprobs``, ``fields``, ``uids``, ``trajectory_ids`` and ``is_last_step``, each as
        :func:`fastcollate.build_batch` takes it. All turns of a trajectory have to be in one block.
        Of a builder's options, only `merge` and `merge_rewards` count: how rows are laid out is
        said where they are collated.
    merge, merge_rewards
        As ``build_batch``. None is what the builder was told.
    share
        Which tokens rows share, for a step whose layout is :class:`fastcollate.Tree`. ``"group"``:
        all that rows of the same uid begin with in common; a group has to be in one block.
        ``"prompts"``: whole prompts that are equal, of all blocks. Workers do not see each other's
        tokens, so there is no ``"all"``. The block's handle has two integers a row for it.
    same_inputs
        With `share`, one id per turn for its inputs beside tokens, such as images, as
        :func:`fastcollate.planning.prefix_tree`: rows with different ones share nothing. Without
        ids, rows with fields of ``PerRow(concat=True)`` share nothing.
    name
        What errors call the block; if None, the actor or task that puts it, and its node.
    part_bytes
        About how many bytes one object has. A reader fetches whole objects.

    Returns
    -------
    Block
        A small handle.

    Raises
    ------
    ValueError, TypeError
        As ``build_batch``, for what is wrong with the turns; a mapping with other keys; a `merge`
        or `merge_rewards` that is not the builder's; ``share="all"``, ``share="group"`` without
        uids, or `same_inputs` without `share`.

    Notes
    -----
    The object store's objects belong to the process that puts them. Keep rollout workers alive
    until the step is trained; what a dead one has put is lost, and :func:`collate` says so. An
    actor ends when its last handle is dropped, so keep that too. The process of a task stays as
    long as somebody has its blocks.
    """
    part_bytes = checked_count("part_bytes", part_bytes, "a number of bytes")
    check_share(share, same_inputs)
    name = _own_name() if name is None else str(name)

    def put(**columns: Any) -> Block:
        table, parts = stored(
            **columns, share=share, same_inputs=same_inputs, part_bytes=part_bytes
        )
        return Block(name, table, tuple(map(ray.put, parts)))

    if isinstance(turns, BatchBuilder):
        told = _told(turns, merge=merge, merge_rewards=merge_rewards)
        check_merge_arguments(told["merge"], told["merge_rewards"])
        return turns._build_by(put, **told)
    check_merge_arguments(merge, merge_rewards)
    if not isinstance(turns, Mapping):
        raise TypeError(
            f"turns is {describe(turns)}; pass a BatchBuilder, or a mapping with prompts and "
            "responses, or sequences and prompt_lens, and more columns of build_batch"
        )
    if unknown := [key for key in turns if key not in COLUMNS]:
        raise TypeError(
            f"turns has the key {unknown[0]!r}, but the columns are {', '.join(COLUMNS)}; put "
            "others into fields, and pass options of build_batch to fastcollate.ray.collate"
        )
    return put(**turns, merge=merge, merge_rewards=merge_rewards)


def _told(builder: BatchBuilder, **options: Any) -> dict[str, Any]:
    """Return options of a builder, and what was passed where it has none."""
    told = {name: builder._options[name] for name in options}
    for name, value in options.items():
        if value is not None and told[name] is not None and value != told[name]:
            raise ValueError(
                f"{name} is {value!r}, but the BatchBuilder has {name}={told[name]!r}; "
                f"leave {name} out, or give the builder the same"
            )
    return {name: options[name] if value is None else value for name, value in told.items()}


def _own_name() -> str:
    """Name the actor or task that this is, and its node."""
    context = ray.get_runtime_context()
    node = f"on node {context.get_node_id()[:8]}"
    if context.worker.mode != ray.WORKER_MODE:  # has neither, and warns if it is asked
        return f"put by the driver {node}"
    if (actor := context.get_actor_id()) is not None:
        return f"put by actor {context.get_actor_name() or actor[:8]} {node}"
    return f"put by task {str(context.get_task_id())[:8]} {node}"
