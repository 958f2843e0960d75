"""Joining the tables of all blocks into one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcollate._fastcollate import Merge, Plan
from fastcollate.blocks.checking import OF_ROUTES, check_table, join_plans
from fastcollate.blocks.storing import ArrayKind, BlockTable, ColumnKind
from fastcollate.common.arrays import offsets_of
from fastcollate.common.text import show_id
from fastcollate.ops.normalize import LossNormalizers, normalizers_of
from fastcollate.plan.grouping import distinct, find_repeated, firsts_of
from fastcollate.plan.merging import MergePlan
from fastcollate.plan.step_plan import StepPlan
from fastcollate.rows.lengths import Integers


@dataclass(frozen=True, eq=False)
class JoinedBlocks:
    """All rows of a step without tokens: the rows of its blocks, in block order.

    Parameters
    ----------
    plan
        The lengths and turns of all rows.
    merge_plan, names, plain, fields, loss_weights
        As in :class:`BlockTable`.
    part_offsets
        The first row of each part of all blocks, and the number of rows: int64 (parts + 1,).
    part_blocks
        The block of each part, int64 (parts,).
    block_names
        Names of the blocks in errors.
    """

    plan: Plan
    merge_plan: MergePlan | None
    names: dict[str, list[Any]]
    plain: dict[str, ColumnKind]
    fields: dict[str, ColumnKind]
    loss_weights: NDArray[np.float64]
    part_offsets: Integers
    part_blocks: Integers
    block_names: list[str]
    masked_rewards: int

    def loss_normalizers(self, plan: StepPlan) -> LossNormalizers:
        """Return the loss normalizers of a batch of all rows."""
        return normalizers_of(self.loss_weights, plan.inverse, plan)

    def part_name(self, part: int) -> str:
        """Name a part by its block and its rows."""
        first, end = self.part_offsets[part : part + 2].tolist()
        rows = f"row {first}" if end == first + 1 else f"rows {first} to {end - 1}"
        return f"{block_name(int(self.part_blocks[part]), self.block_names)} with {rows}"


def block_name(index: int, names: Sequence[str]) -> str:
    """Name a block by its index and its own name."""
    return f"block {index} ({names[index]})"


def join(tables: Sequence[BlockTable], block_names: Sequence[str]) -> JoinedBlocks:
    """Join blocks to a step.

    Raises
    ------
    ValueError
        Incompatible blocks; a trajectory, or a prompt with others in between, that is in two
        blocks. The message names both. A table that is not as it was stored.
    """
    names = [block_name(index, block_names) for index in range(len(tables))]
    for table, name in zip(tables, names, strict=True):
        check_table(table, name)
    first = tables[0]
    for table, name in zip(tables[1:], names[1:], strict=True):
        _check_like(first, table, names[0], name)
    _check_trajectories(tables, names)
    _check_prompts([table.names.get("uids") for table in tables], names)

    counts = [len(table.plan["source"]) for table in tables]
    starts = offsets_of(counts)
    parts = [table.part_offsets[:-1] + start for table, start in zip(tables, starts, strict=False)]
    merges = [table.merge_plan for table in tables if table.merge_plan is not None]
    return JoinedBlocks(
        join_plans(tables, names),
        _join_merge(merges) if merges else None,
        {name: [one for table in tables for one in table.names[name]] for name in first.names},
        {name: _join_kinds([table.plain[name] for table in tables]) for name in first.plain},
        {key: _join_kinds([table.fields[key] for table in tables]) for key in first.fields},
        np.concatenate([table.loss_weights for table in tables]),
        np.concatenate([*parts, starts[-1:]]),
        np.repeat(np.arange(len(tables)), list(map(len, parts))),
        list(block_names),
        sum(table.masked_rewards for table in tables),
    )


# Compatibility of blocks


def _check_like(first: BlockTable, table: BlockTable, first_name: str, name: str) -> None:
    """Check that a block has the same columns as the first one."""
    if (table.merge_plan is None) != (first.merge_plan is None):
        merged, other = (name, first_name) if first.merge_plan is None else (first_name, name)
        raise ValueError(
            f"{merged} has merged turns, but {other} does not; pass the same merge for all blocks"
        )
    if table.merge_plan is not None and first.merge_plan is not None:
        own, other = table.merge_plan.merge_rewards, first.merge_plan.merge_rewards
        if own != other:
            raise ValueError(
                f"{name} was merged with merge_rewards={own!r}, but {first_name} with {other!r}; "
                "pass the same in all blocks"
            )
    ours = {**first.names, **first.plain, **{f"fields[{key!r}]": 0 for key in first.fields}}
    theirs = {**table.names, **table.plain, **{f"fields[{key!r}]": 0 for key in table.fields}}
    for key in [*ours, *theirs]:
        if (key in ours) != (key in theirs):
            has, lacks = (first_name, name) if key in ours else (name, first_name)
            raise ValueError(
                f"{has} has {key}, but {lacks} does not; pass the same columns in all blocks"
            )
    pairs = [(key, kind, table.plain[key]) for key, kind in first.plain.items()]
    pairs += [(key, kind, table.fields[key]) for key, kind in first.fields.items()]
    for key, known, found in pairs:
        if found.form != known.form:
            here, there = (
                f"one {form} per row"
                if form in ("number", "array", "object")
                else ("a list per token" if form == "ragged" else f"values per {form}")
                for form in (found.form, known.form)
            )
            raise ValueError(
                f"{key} holds {here} in {name}, but {there} in {first_name}; "
                "pass one of them in all blocks"
            )
        if repr(found.field) != repr(known.field):  # a fill may be NaN, which is unequal to itself
            raise ValueError(
                f"{key} is {found.field} in {name}, but {known.field} in {first_name}; "
                "pass the same in all blocks"
            )
        if found.trailing != known.trailing and not found.is_empty and not known.is_empty:
            raise ValueError(
                f"{key} has items of shape {found.trailing} in {name}, but of {known.trailing} "
                f"in {first_name}; pass items of one shape in all blocks"
            )


def _check_trajectories(tables: Sequence[BlockTable], names: Sequence[str]) -> None:
    """Check that every trajectory is in one block."""
    known: list[list[Any]] = []
    for table in tables:
        ids = None if table.merge_plan is None else table.merge_plan.trajectory_ids
        if ids is None:
            ids = firsts_of("trajectory_ids", table.names.get("trajectory_ids", []))
        known.append(distinct("trajectory_ids", ids))
    if (found := in_two("trajectory_ids", known)) is not None:
        identity, one, other = found
        raise ValueError(
            f"trajectory {show_id(identity)} is in {names[one]} and in {names[other]}; "
            "put all turns of a trajectory in one block"
        )
    if tables[0].merge_plan is not None or "is_last_step" not in tables[0].names:
        return
    for index, table in enumerate(tables[:-1]):
        if not table.names["is_last_step"][-1]:
            raise ValueError(
                f"is_last_step is False for the last turn of {names[index]}, so its trajectory "
                f"would continue in {names[index + 1]}; put all turns of a trajectory in one block"
            )


def _check_prompts(uids: Sequence[list[Any] | None], names: Sequence[str]) -> None:
    """Check that the rows of a prompt are contiguous, also across blocks."""
    ids: list[list[Any]] = []
    last: list[Any] = []
    for block in uids:
        found = firsts_of("uids", block or [])
        goes_on = block and last and len(firsts_of("uids", [*last, block[0]])) == 1
        ids.append(found[1:] if goes_on else found)
        last = block[-1:] if block else []
    if (again := in_two("uids", ids)) is not None:
        identity, one, other = again
        raise ValueError(
            f"uid {show_id(identity)} is in {names[one]} and in {names[other]}, with other prompts "
            "between them; pass the blocks that share a prompt next to each other"
        )


def in_two(name: str, ids: Sequence[list[Any]]) -> tuple[Any, int, int] | None:
    """Return an id that occurs in two blocks, and their indices."""
    blocks = np.repeat(np.arange(len(ids)), list(map(len, ids))).tolist()
    flat = [one for block in ids for one in block]
    again = find_repeated(name, flat)
    if again is None or blocks[again[0]] == blocks[again[1]]:
        return None
    return flat[again[1]], blocks[again[0]], blocks[again[1]]


# Tables of all blocks


def _join_merge(plans: Sequence[MergePlan]) -> MergePlan:
    """Join the plans of the blocks, with trajectory ids if all of them have some."""
    ids = [plan.trajectory_ids for plan in plans]
    known = [one for block in ids if block is not None for one in block]
    merge = Merge.joined([plan._merge for plan in plans])
    return MergePlan(merge, None if None in ids else known)


def _join_kinds(kinds: Sequence[ColumnKind]) -> ColumnKind:
    """Return the kind of a column over all blocks."""
    first = kinds[0]
    trailing = max(kinds, key=lambda kind: (not kind.is_empty, len(kind.trailing))).trailing
    dtypes = {kind.dtype for kind in kinds}
    dtype = first.dtype
    if first.is_captured:
        dtype = max(dtypes, key=OF_ROUTES.index)
    elif first.form == "number":
        dtype = np.result_type(*dtypes).name
    if first.form != "array":
        return first._replace(dtype=dtype, trailing=trailing)
    known: dict[ArrayKind, int] = {}
    numbers = []
    for kind in kinds:
        assert kind.arrays is not None
        here, of_rows = kind.arrays
        places = np.array([known.setdefault(one, len(known)) for one in here], np.int64)
        numbers.append(places[of_rows])
    return first._replace(arrays=(list(known), np.concatenate(numbers)))
