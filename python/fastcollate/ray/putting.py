"""Putting turns into the object store, in the worker that holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from fastcollate.blocks.sharing import BlockShare, check_share
from fastcollate.blocks.storing import PART_BYTES, BlockTable, store
from fastcollate.builder import BatchBuilder
from fastcollate.common.arguments import check_count, suggests_names, tally
from fastcollate.common.arrays import describe
from fastcollate.common.row_columns import COLUMNS
from fastcollate.plan.merge import Merge, Policy
from fastcollate.plan.merging import MergePlan, check_merge


@dataclass(frozen=True, eq=False)
class Block:
    """A handle to the rows that one worker has put: references, and a table without tokens.

    Small, and pickled by Ray: return it from a task or an actor's method. The rows stay in the
    object store as long as a handle, a plan of it or a shard of that plan is alive, and as long as
    the process that put them is: Ray's objects die with their owner.

    Attributes
    ----------
    name : str
        The name of the block in errors.
    table : BlockTable
        Lengths, ids, flags and turns of the rows.
    refs : tuple of ray.ObjectRef
        The columns, in parts of contiguous rows.
    """

    name: str
    table: BlockTable
    refs: tuple[ray.ObjectRef[Any], ...]

    @property
    def num_rows(self) -> int:
        """Number of rows after merging."""
        return len(self.table.plan["source"])

    @property
    def num_turns(self) -> int:
        """Number of turns."""
        return len(self.table.plan["turn_prompt_lens"])

    @property
    def num_bytes(self) -> int:
        """Bytes of the columns in the object store."""
        return self.table.num_bytes

    def __repr__(self) -> str:
        rows, turns = tally(self.num_rows, "row"), tally(self.num_turns, "turn")
        parts = tally(len(self.refs), "object")
        return f"Block {self.name!r}: {rows} of {turns}, {self.num_bytes / 1e6:.1f} MB in {parts}"


@suggests_names
def put_turns(
    turns: BatchBuilder | Mapping[str, Any],
    *,
    merge: Policy | Merge | MergePlan | None = None,
    share: BlockShare | None = None,
    same_inputs: Sequence[Any] | None = None,
    name: str | None = None,
    part_bytes: int = PART_BYTES,
) -> Block:
    """Merge turns in their worker, and put the resulting rows into Ray's object store.

    Rows are stored without padding: ids in 32 bits if they fit, loss masks of 0 and 1 in one byte,
    other fields in their output dtype. They are pickled out of band, so that readers on the same
    node view them, and copied once to other nodes.

    Parameters
    ----------
    turns
        A builder, which is empty afterwards, or columns: a mapping with ``prompts`` and
        ``responses``, or ``sequences`` and ``prompt_lens``, and any of ``rewards``, ``loss_mask``,
        ``logprobs``, ``advantages``, ``fields``, ``uids``, ``trajectory_ids`` and
        ``is_last_step``, each as :func:`fastcollate.build_batch` takes it. All turns of a
        trajectory must be in one block. Of a builder's options, only `merge` applies: the
        layout is chosen when rows are collated.
    merge
        As in ``build_batch``. None uses the builder's.
    share
        The rule by which rows share tokens, for a step with the layout :class:`fastcollate.Tree`.
        ``"group"``: common prefixes of rows of the same uid; a group must be in one block.
        ``"prompts"``: equal whole prompts, over all blocks. There is no ``"all"``, since workers do
        not see each other's tokens. It adds two integers per row to the block's handle.
    same_inputs
        With `share`, one id per turn for its inputs other than tokens, such as images, as in
        :func:`fastcollate.planning.prefix_tree`: rows with different ones share nothing. Without
        ids, rows with fields of ``PerRow(concat=True)`` share nothing.
    name
        The name of the block in errors; if None, the actor or task that puts it, and its node.
    part_bytes
        Approximate bytes of one object. A reader fetches whole objects.

    Returns
    -------
    Block
        A small handle.

    Raises
    ------
    ValueError, TypeError
        As ``build_batch``, for invalid turns; a mapping with other keys; a `merge` that is
        not the builder's; ``share="all"``, ``share="group"`` without uids,
        or `same_inputs` without `share`.

    Notes
    -----
    The object store's objects belong to the process that puts them. Keep rollout workers alive
    until the step is trained; the objects of a dead one are lost, and :func:`collate` raises. An
    actor ends when its last handle is dropped, so keep that too. The process of a task stays alive
    as long as its blocks are referenced.
    """
    merge = None if merge is None else check_merge(merge)
    part_bytes = check_count("part_bytes", part_bytes, "a number of bytes")
    check_share(share, same_inputs)
    name = _own_name() if name is None else str(name)

    def put(**columns: Any) -> Block:
        table, parts = store(**columns, share=share, same_inputs=same_inputs, part_bytes=part_bytes)
        return Block(name, table, tuple(map(ray.put, parts)))

    if isinstance(turns, BatchBuilder):
        own = turns._options.merge
        if merge is not None and own is not None and merge != own:
            raise ValueError(
                f"merge is {merge!r}, but the BatchBuilder has merge={own!r}; leave merge out, or "
                "give the builder the same"
            )
        return turns._build_by(put, merge=own if merge is None else merge)
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
    return put(**turns, merge=merge)


def _own_name() -> str:
    """Return the name of this actor or task, and its node."""
    context = ray.get_runtime_context()
    node = f"on node {context.get_node_id()[:8]}"
    if context.worker.mode != ray.WORKER_MODE:  # has neither, and warns on access
        return f"put by the driver {node}"
    if (actor := context.get_actor_id()) is not None:
        return f"put by actor {context.get_actor_name() or actor[:8]} {node}"
    return f"put by task {str(context.get_task_id())[:8]} {node}"
