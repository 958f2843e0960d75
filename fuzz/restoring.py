"""Targets: objects that are unpickled or read from tables."""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import Any

import numpy as np

import fastcollate as fc
from calls import draw_call
from choices import Choices
from fastcollate._fastcollate import Merge
from trajectories import draw_turns


def restore_plan(choices: Choices) -> None:
    """Change tables of a plan: it is refused, or can be worked with."""
    plan = _draw_tree(choices) if choices.one_in(3) else _draw_plan(choices)
    tables = _spoilt(choices, plan.to_dict())
    try:
        restored = fc.planning.Plan._from_dict(tables)
    except (TypeError, ValueError):
        return
    assert fc.planning.Plan._from_dict(restored.to_dict()) == restored
    assert restored.num_rows == len(restored.prompt_lens) == len(restored.response_lens)
    repr(restored), restored.row_starts(), restored.num_positions, restored.longest_row
    if restored.is_tree and restored.response_lens.sum() < 1 << 20:
        restored.read_segments(), restored.stream_positions(), restored.tree_positions()
        restored.select_bins(np.arange(min(restored.num_output_rows, 1)))
    for of_sequence in (False, True):
        lens = (restored.response_lens, restored.to_dict()["turn_response_lens"])
        tokens = [sum(of_all.tolist()) for of_all in lens]
        if all(n < 1 << 20 or n > 1 << 60 for n in tokens):  # between, it only takes long
            with suppress(ValueError, MemoryError):
                restored.gather_positions(
                    of_sequence=of_sequence,
                    next_token=of_sequence,
                    per_turn=choices.one_in(2),
                    gaps=choices.one_in(2),
                    padding=choices.one_in(2),
                )


def _draw_plan(choices: Choices) -> fc.planning.Plan:
    """Draw the plan of any batch."""
    call = draw_call(choices)
    return fc.build_batch(**{**call.arguments, "fields": None}).plan


def _draw_tree(choices: Choices) -> fc.planning.Plan:
    """Draw the plan of a tree."""
    rows = [
        [choices.below(2) for _ in range(choices.below(6))] for _ in range(1 + choices.below(6))
    ]
    layout = fc.Tree(choices.pick([None, 8]), multiple_of=choices.pick([1, 2]))
    options = {"pad_token_id": 0, "layout": layout, "array_type": "numpy"}
    return fc.build_batch([[1]] * len(rows), rows, **options).plan


def _spoilt(choices: Choices, tables: dict[str, Any]) -> dict[str, Any]:
    """Change some numbers or shapes of tables, or nothing."""
    for _ in range(choices.below(4)):
        name = choices.pick(list(tables))
        table = np.asarray(tables[name])
        number = choices.pick([0, 1, 2, 5, -1, 2**31, 2**62, 2**63 - 1])
        if isinstance(tables[name], dict):  # a layout
            options = ["layout", "capacity", *["pad_to"] * (number < 100)]
            tables[name] = {**tables[name], choices.pick(options): number}
        elif not isinstance(tables[name], (list, np.ndarray)):
            tables[name] = number
        elif table.size and choices.one_in(2):
            flat = table.astype(np.int64).reshape(-1)
            flat[choices.below(flat.size)] = number
            tables[name] = flat.reshape(table.shape)
        else:
            tables[name] = choices.pick([table[1:], table[:-1], table.astype("int8"), table.T])
    return tables


def _tables_of(plan: Any) -> dict[str, Any]:
    """Return what makes a plan again."""
    if hasattr(plan, "to_dict"):
        tables: dict[str, Any] = plan.to_dict()
        return tables
    return dict(zip(plan._names(), plan._values(), strict=True))


def restore_merge(tables: dict[str, Any]) -> fc.planning.MergePlan:
    """Return the merge plan of its tables."""
    return fc.planning.MergePlan(Merge._from_dict(tables))


def restore_tables(choices: Choices) -> None:
    """Change tables of a plan of another kind: it is refused, or batches can be built by it."""
    turns = draw_turns(choices)
    rows = {"prompts": turns.prompts, "responses": turns.responses}
    lens = [list(map(len, each)) for each in rows.values()]
    totals = list(map(sum, zip(*lens, strict=True)))
    capacity = max(totals) + 1
    layouts = [None, "left", fc.Left(pad_to=64), fc.Packed(2 * capacity), fc.Packed.single_row()]
    step = {"layout": choices.pick(layouts)}
    plan, given = choices.pick(
        [
            lambda: (fc.merge_turns(**rows, is_last_step=turns.is_last_step), "merge"),
            lambda: (
                fc.planning.pack(totals, fc.Packed(1 + choices.below(capacity), oversize="split")),
                "pack",
            ),
            lambda: (fc.plan_step(tuple(lens), dp_size=1 + choices.below(3), **step), "step"),
            lambda: (fc.planning.micro_batches(totals, capacity), "micro-batches"),
        ]
    )()
    kind: Any = type(plan)
    restores = {"merge": restore_merge, "step": fc.planning.StepPlan.from_dict}
    restore: Any = restores.get(given, lambda tables: kind(**tables))
    try:
        restored = restore(_spoilt(choices, _tables_of(plan)))
    except (TypeError, ValueError):
        return
    assert restore(_tables_of(restored)) == restored
    repr(restored)
    how: dict[str, Any] = {given: restored}
    if given == "merge":
        str(restored.report)
    elif given == "pack":
        how = {"layout": fc.Packed(plan=restored)}
    else:
        how = {"shard": restored.shard(0, 0)}
    with suppress(ValueError):
        fc.build_batch(**rows, **how, pad_token_id=0, array_type="numpy")


def restore_ragged(choices: Choices) -> None:
    """Unpickle a Ragged of whatever: it is refused, or can be worked with."""
    values: Any = np.arange(choices.below(5)).astype(choices.pick(["i8", "f4", "?", "u2", ">i4"]))
    offsets: Any = [choices.pick([0, 1, 2, 3, 4, -1, 2**62]) for _ in range(choices.below(4))]
    if choices.one_in(2):
        offsets = sorted(offsets)
    rebuild, _ = fc.Ragged(np.zeros(1), [0, 1]).__reduce_ex__(2)
    offsets = np.array(offsets, np.int64).astype(choices.pick(["i8", "u8", "i4", "f8"]))
    try:
        column = rebuild(values, offsets)
    except (TypeError, ValueError):
        return
    assert sum(map(len, column)) == len(column.values)
    assert pickle.loads(pickle.dumps(column, 5)) == column
    with suppress(TypeError, ValueError):
        fc.build_batch(column, column, pad_token_id=0, array_type="numpy")
