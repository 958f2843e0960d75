"""Ways to make a call wrong, or to put hostile objects into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import torch

import fastcollate as fc
from calls import KEYS, NAMED, TOKENS, Call
from choices import Choices
from hostile import Acts, Pretends, hostile
from verdicts import Verdict

Way = Callable[[Choices, Call], Verdict]


def spoil(choices: Choices, call: Call, ways: Sequence[Way]) -> Verdict:
    """Spoil a call at one or two places, or none."""
    verdicts = [choices.pick(ways)(choices, call) for _ in range(choices.pick([0, 1, 1, 2]))]
    if len(verdicts) == 2:
        return Verdict.EITHER  # the one may mend the other
    return verdicts[0] if verdicts else Verdict.RIGHT


# Mistakes


def _rows(choices: Choices, call: Call, name: str) -> list[Any]:
    """Replace rows of an argument by a list of rows that can be changed."""
    plain = call.plain[name]
    rows = [list(row) if isinstance(row, list) else row for row in plain]
    call.arguments[name] = rows
    return rows


def _name(choices: Choices, call: Call, names: tuple[str, ...] = (*TOKENS, *KEYS)) -> str:
    return choices.pick([name for name in names if name in call.plain])


def _other_count(choices: Choices, call: Call) -> Verdict:
    """Add a row, or take one away."""
    name = _name(choices, call)
    rows = _rows(choices, call, name)
    if len(rows) == 1 or choices.one_in(2):
        rows.append(rows[-1])
    else:
        rows.pop()
    return Verdict.REFUSED


def _other_length(choices: Choices, call: Call) -> Verdict:
    """Make a field's row one item longer or shorter than its response."""
    names = tuple(name for name in KEYS if name in call.plain)
    if not names or not isinstance(call.plain[names[0]][0], list):
        return _other_count(choices, call)
    rows = _rows(choices, call, names[0])
    row = choices.pick(rows)
    if row and choices.one_in(2):
        row.pop()
    else:
        row.append(1)
    index = next(index for index, found in enumerate(rows) if found is row)
    rows[index] = choices.pick([list, tuple, np.array, torch.tensor])(row)
    return Verdict.REFUSED


NO_ROWS: list[Callable[[], Any]] = [
    lambda: None,
    lambda: "text",
    lambda: b"bytes",
    lambda: {1: 2},
    lambda: {1, 2},
    object,
    lambda: iter([1]),
    lambda: range,
    lambda: np.zeros((2, 2, 2), np.int64),
    lambda: np.array([1j]),
    lambda: np.array(["1"]),
    lambda: np.array([None]),
    lambda: np.array([1], "M8[s]"),
    lambda: np.zeros(2, [("a", "i8")]),
    lambda: np.ma.masked_array([1, 2], mask=[True, False]),
    lambda: torch.tensor([1j]),
    lambda: torch.eye(2).to_sparse(),
    lambda: torch.zeros(2, device="meta"),
    lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
    lambda: memoryview(b"12"),
    lambda: pa.array([1, 2]),
    lambda: fc.Ragged(np.ones((3, 2)), [0, 1, 3]),
    lambda: pa.array(fc.Ragged(np.ones((3, 2)), [0, 1, 3])),
    lambda: fc.Ragged(np.ones((3, 2)), [0, 1, 3]).to_torch_nested(),
    lambda: fc.Ragged(np.arange(3), [0, 3]),
]

NO_NUMBERS: list[Callable[[], Any]] = [
    lambda: None,
    lambda: "5",
    lambda: 1j,
    object,
    lambda: [1],
    lambda: np.array([1]),
    lambda: np.datetime64(1, "s"),
    lambda: np.complex64(1),
    lambda: torch.tensor(1j),
    lambda: torch.tensor([1]),
]


def _no_row(choices: Choices, call: Call) -> Verdict:
    """Put something else where a row belongs."""
    rows = _rows(choices, call, _name(choices, call))
    rows[choices.below(len(rows))] = choices.pick(NO_ROWS)()
    return Verdict.REFUSED


def _no_rows(choices: Choices, call: Call) -> Verdict:
    """Put something else where rows belong."""
    no_rows = choices.pick(NO_ROWS[:-1])()
    name = _name(choices, call)
    if no_rows is None and name in KEYS:
        return Verdict.EITHER
    call.arguments[name] = no_rows
    # These take one number per row, too.
    return Verdict.EITHER if name in ("rewards", "advantages") else Verdict.REFUSED


def _no_number(choices: Choices, call: Call) -> Verdict:
    """Put something else where a number belongs."""
    name = _name(choices, call)
    rows = _rows(choices, call, name)
    row = choices.pick(rows) if isinstance(rows[0], list) else rows
    if not row:
        return _no_row(choices, call)
    wrong = list(NO_NUMBERS)
    if name in TOKENS:
        wrong += [lambda: 1.5, lambda: 2**63, lambda: -(10**5000), lambda: np.float32(1)]
        wrong += [lambda: np.uint64(2**63), lambda: torch.tensor(1.0)]
    elif name == "loss_mask":
        wrong += [lambda: float("nan"), lambda: np.float16("nan"), lambda: -1, lambda: -100.0]
    row[choices.below(len(row))] = choices.pick(wrong)()
    # [1] for one number of one row is a row; tokens that no row has are not read.
    may_be_right = row is rows or call.merge is not None
    return Verdict.EITHER if may_be_right else Verdict.REFUSED


def _wrong_option(choices: Choices, call: Call) -> Verdict:
    """Pass an argument that cannot be."""
    wrong: list[dict[str, Any]] = [
        {"layout": "sideways"},
        {"layout": 5},
        {"layout": "packed"},
        {"layout": fc.Packed(plan=[[99]])},
        {"array_type": "jax"},
        {"pad_token_id": None},
        {"pad_token_id": 1.0},
        {"pad_token_id": 2**63},
        {"position_ids": "two"},
        {"labels": True},
        {"pad_to": 5},
        {"dtypes": "short"},
        {"dtypes": {"nothing": "int32"}},
        {"dtypes": {"input_ids": "float32"}},
        {"dtypes": 5},
        {"uids": [0] * 17},
        {"trajectory_ids": 5},
        {"fields": [1]},
        {"fields": {"wrong": 1}},
        {"fields": {1: fc.PerRow([1])}},
        {"fields": {"wrong": fc.Field([[1]] * 17)}},
        {"fields": {"wrong": fc.Field(None)}},
        {"fields": {"wrong": fc.Field([], align="left")}},
        {"fields": {"wrong": fc.PerRow([None])}},
        {"fields": {"wrong": fc.PerRow(5)}},
        {"fields": {"wrong": fc.RoutedExperts([[1]] * 17)}},
        {"fields": {"input_ids": fc.PerRow([1])}},
        {"pool": 5},
    ]
    call.arguments |= choices.pick(wrong)
    return Verdict.REFUSED


def _odd_option(choices: Choices, call: Call) -> Verdict:
    """Pass an argument at the edge of what there may be."""
    odd = [0, 1, 2, 7, 2**50, 2**62, 2**63 - 1, 2**64, True, 0.5]
    name = choices.pick(["pad_to", "multiple_of", "pad_prompt_to", "pad_response_to", "capacity"])
    kind = choices.pick([fc.Left, fc.TwoSegment, fc.Right, fc.Packed, fc.Packed.single_row])
    with suppress(TypeError, ValueError):
        call.arguments["layout"] = kind(**{name: choices.pick(odd)})
    return Verdict.EITHER


# Hostile arguments


def _hostile_item(choices: Choices, call: Call) -> Verdict:
    rows = _rows(choices, call, _name(choices, call))
    row = choices.pick(rows) if isinstance(rows[0], list) else rows
    item = choices.pick([Acts, Acts, Pretends])(choices, call)
    if row:
        row[choices.below(len(row))] = item
    else:
        row.append(item)
    return Verdict.EITHER


def _hostile_row(choices: Choices, call: Call) -> Verdict:
    rows = _rows(choices, call, _name(choices, call))
    index = choices.below(len(rows))
    row = rows[index] if isinstance(rows[index], list) else [1]
    rows[index] = hostile(choices, call, row)
    return Verdict.EITHER


def _hostile_rows(choices: Choices, call: Call) -> Verdict:
    name = _name(choices, call)
    call.arguments[name] = hostile(choices, call, _rows(choices, call, name))
    return Verdict.EITHER


def _hostile_field(choices: Choices, call: Call) -> Verdict:
    rows = [[1.0] * count for count in call.response_lens]
    index = choices.below(len(rows))
    rows[index] = choices.pick(
        [
            lambda: hostile(choices, call, rows[index]),
            lambda: [Acts(choices, call)] * len(rows[index]),
            lambda: [[Acts(choices, call)]] * len(rows[index]),
            lambda: [hostile(choices, call, [1])] * len(rows[index]),
        ]
    )()
    number = choices.pick([0, 1, -1, 0.5, None, 2**63, Acts(choices, call)])
    dtype: Any = choices.pick([None, "int32", "int8", "float64", np.float16, torch.bool, "", 5])
    field = choices.pick(
        [
            lambda: fc.Field(rows, fill=number, dtype=dtype),
            lambda: fc.Field(hostile(choices, call, rows), dtype=dtype, align="sequence"),
            lambda: fc.PerRow(rows, dtype=dtype, concat=choices.one_in(2)),
            lambda: fc.PerRow([number] * len(rows), dtype=dtype),
            lambda: fc.PerRow(hostile(choices, call, rows), dtype=dtype),
            lambda: fc.RoutedExperts(rows, num_experts=number, dtype=dtype),
        ]
    )()
    call.arguments["fields"] = {"hostile": field}
    if isinstance(field, fc.PerRow):
        call.arguments["array_type"] = "numpy"  # torch believes any length, and counts up to it
    return Verdict.EITHER


def _odd_column(choices: Choices, call: Call) -> Verdict:
    """Pass a column of which offsets, lengths or nulls may be wrong."""
    name = _name(choices, call)
    count = len(call.plain[name])
    numbers = [choices.pick([0, 1, 2, 3, 5, -1, 2**31 - 1]) for _ in range(count + 1)]
    values = np.arange(4).astype(choices.pick(["int64", "float32", "int8"]))
    lens = np.array(numbers[1:], np.int32)
    offsets = np.array(numbers, np.int32)

    def narrowed() -> Any:
        return torch.nested.nested_tensor_from_jagged(
            torch.from_numpy(values), torch.tensor(numbers), torch.tensor(numbers[1:])
        )

    def jagged() -> Any:
        return torch.nested.nested_tensor_from_jagged(
            torch.from_numpy(values), torch.tensor(numbers)
        )

    def lists() -> Any:
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))

    def views() -> Any:
        return pa.ListViewArray.from_arrays(pa.array(offsets[:-1]), pa.array(lens), values)

    def from_buffers() -> Any:
        child = pa.array(values)
        return pa.Array.from_buffers(
            pa.list_(child.type), count, [None, pa.py_buffer(offsets)], children=[child]
        )

    def nulls() -> Any:
        return pa.array([[1], None, [2, None]][: max(count, 1)])

    makers = [narrowed, jagged, lists, views, from_buffers, nulls]
    with suppress(RuntimeError, ValueError, TypeError, pa.ArrowException):  # the library's own
        call.arguments[name] = choices.pick(makers)()
    return Verdict.EITHER


BUILDING: list[Way] = [
    _other_count,
    _other_length,
    _no_row,
    _no_rows,
    _no_number,
    _wrong_option,
    _odd_option,
    _hostile_item,
    _hostile_row,
    _hostile_rows,
    _hostile_field,
    _odd_column,
]
"""Ways to spoil a call of `build_batch`."""


# Trajectories


def _wrong_merge(choices: Choices, call: Call) -> Verdict:
    """Make the trajectories of a call, or the options of merging, invalid."""
    count = len(call.plain["prompts"])
    wrong: list[dict[str, Any]] = [
        {"trajectory_ids": [0] * 17},
        {"trajectory_ids": None, "is_last_step": None},
        {"trajectory_ids": 5},
        {"trajectory_ids": [object()] * count, "is_last_step": [True] * (count + 1)},
        {"trajectory_ids": [*range(count - 1), 0, 1], "is_last_step": None},
        {"is_last_step": [None] * count},
        {"is_last_step": [2] * count},
        {"is_last_step": "text"},
    ]
    if "merge" in call.arguments:
        wrong = [wrong[0], *wrong[2:], {"merge": "greedy"}, {"merge": 5}]
        wrong.append({"merge": fc.merge_turns([[1]] * 17, [[1]] * 17, is_last_step=[True] * 17)})
    else:
        wrong += [
            {"is_last_step": [False] * count},
            {"policy": "greedy"},
            {"policy": None},
            {"policy": ["realign"]},
            {"drop_untrainable": 1},
            {"allow_unfinished": None},
            {"tokenizer": 5},
        ]
    call.arguments |= choices.pick(wrong)
    return Verdict.REFUSED


def _hostile_ids(choices: Choices, call: Call) -> Verdict:
    """Pass ids or flags that do harm, or others."""
    name = choices.pick(NAMED)
    values: list[Any] = [choices.below(3) for _ in call.plain["prompts"]]
    values[choices.below(len(values))] = Acts(choices, call)
    call.pretends = True  # ids are asked for their number as Python does
    call.arguments[name] = choices.pick([values, hostile(choices, call, values)])
    return Verdict.EITHER


_OF_TOKENS = [_other_count, _no_row, _no_rows, _no_number, _hostile_item, _hostile_row]
MERGING: list[Way] = [*_OF_TOKENS, _hostile_rows, _odd_column, _wrong_merge, _hostile_ids]
"""Ways to spoil a call of `merge_turns`, or of `build_batch` of turns."""
