"""The tokens that the rows of all blocks share, by ids and hashes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastcollate.blocks.joining import block_name, in_two
from fastcollate.blocks.sharing import Sharing
from fastcollate.blocks.storing import BlockTable
from fastcollate.common.arrays import offsets_of
from fastcollate.common.text import show_id
from fastcollate.plan.grouping import distinct, group_numbers
from fastcollate.plan.tree_plan import TreePlan
from fastcollate.rows.lengths import Integers


def join_trees(
    tables: Sequence[BlockTable], block_names: Sequence[str]
) -> tuple[TreePlan, list[int] | None]:
    """Return the shared tokens of all blocks' rows, and the numbers of their other inputs.

    Raises
    ------
    ValueError
        Blocks without a sharing rule or with different ones; a group that is in two blocks. The
        message names the blocks.
    """
    names = [block_name(index, block_names) for index in range(len(tables))]
    sharings = _check_sharings(tables, names)
    inputs = None
    if sharings[0].same_inputs is not None:
        ids = [one for own in sharings for one in own.same_inputs or []]
        inputs = group_numbers("same_inputs", ids).tolist()
    prompt_lens, response_lens = (
        np.concatenate([table.plan[name] for table in tables])
        for name in ("prompt_lens", "response_lens")
    )
    if sharings[0].share == "group":
        _check_groups(tables, names)
        starts = offsets_of([len(table.plan["prompt_lens"]) for table in tables])
        order = np.concatenate(
            [own.order + start for own, start in zip(sharings, starts, strict=False)]
        )
        shared = np.concatenate([own.shared for own in sharings])
    else:
        others = np.zeros_like(prompt_lens) if inputs is None else np.array(inputs)
        if sharings[0].is_apart:
            others = np.arange(len(prompt_lens))
        hashes = np.concatenate([own.prompt_hashes for own in sharings]).view(np.int64)
        order, shared = _of_prompts(np.column_stack([others, prompt_lens, hashes]))
        shared *= prompt_lens[order]
    tree = TreePlan(
        order=order, shared=shared, prompt_lens=prompt_lens, response_lens=response_lens
    )
    return tree, inputs


def _check_sharings(tables: Sequence[BlockTable], names: Sequence[str]) -> list[Sharing]:
    """Return the blocks' sharings; all must have the same rule."""
    sharings = []
    for table, name in zip(tables, names, strict=True):
        if table.sharing is None:
            raise ValueError(
                f"layout is a tree, but {name} was put without share; pass share='group' or "
                "share='prompts' to put_turns"
            )
        sharings.append(table.sharing)
    first = sharings[0]
    for own, name in zip(sharings[1:], names[1:], strict=True):
        if own.share != first.share:
            raise ValueError(
                f"{name} was put with share={own.share!r}, but {names[0]} with {first.share!r}; "
                "pass the same share in all blocks"
            )
        if (own.same_inputs is None) != (first.same_inputs is None):
            given, other = (names[0], name) if own.same_inputs is None else (name, names[0])
            raise ValueError(
                f"{given} was put with same_inputs, but {other} was not; pass them in all blocks"
            )
    return sharings


def _check_groups(tables: Sequence[BlockTable], names: Sequence[str]) -> None:
    """Check that every group is in one block."""
    uids = [distinct("uids", table.names["uids"]) for table in tables]
    if (found := in_two("uids", uids)) is not None:
        identity, one, other = found
        raise ValueError(
            f"uid {show_id(identity)} is in {names[one]} and in {names[other]}, but share is "
            "'group', which compares rows of one block; put all rows of a group in one block, or "
            "pass share='prompts'"
        )


def _of_prompts(keys: Integers) -> tuple[Integers, Integers]:
    """Sort rows of equal keys together; return their order, and flags of those like the last one.

    Keys are in the order of their first rows, and the rows of each in theirs.
    """
    # Looked up as bytes: sorting rows of four numbers takes ten times as long.
    ids = np.ascontiguousarray(keys).view(f"V{keys[0].nbytes}").ravel().tolist()
    numbers = group_numbers("prompts", ids)
    order = np.argsort(numbers, kind="stable")
    is_like_last = np.diff(numbers[order], prepend=-1) == 0
    return order, is_like_last.astype(np.int64)
