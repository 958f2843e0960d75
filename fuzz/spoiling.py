"""Ways to make a call wrong, or to read it an adventure."""

from __future__ import annotations

import gc
from array import array
from collections import UserList
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import Any

import numpy as np
import pyarrow as pa
import torch

import fastcollate as fc
from calls import KEYS, TOKENS, Call
from choices import Choices


class Verdict(IntEnum):
    """What has to come of a call."""

    RIGHT = 0
    """The reference's batch."""
    REFUSED = 1
    """A `TypeError` or `ValueError`."""
    EITHER = 2
    """A batch of whatever, or an error, even a hostile object's own."""


class HostileError(Exception):
    """What hostile objects raise."""


class HostileInterrupt(BaseException):
    """What hostile objects raise as if somebody had pressed Ctrl-C."""


def spoil(choices: Choices, call: Call) -> Verdict:
    """Spoil a call at one or two places, or none."""
    ways = [choices.pick(_WAYS) for _ in range(choices.pick([0, 1, 1, 2]))]
    verdicts = [way(choices, call) for way in ways]
    if len(verdicts) == 2:
        return Verdict.EITHER  # the one may mend the other
    return verdicts[0] if verdicts else Verdict.RIGHT


# What is wrong


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


_NO_ROWS: list[Callable[[], Any]] = [
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

_NO_NUMBERS: list[Callable[[], Any]] = [
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
    rows[choices.below(len(rows))] = choices.pick(_NO_ROWS)()
    return Verdict.REFUSED


def _no_rows(choices: Choices, call: Call) -> Verdict:
    """Put something else where rows belong."""
    no_rows = choices.pick(_NO_ROWS[:-1])()
    name = _name(choices, call)
    if no_rows is None and name in KEYS:
        return Verdict.EITHER
    call.arguments[name] = no_rows
    return Verdict.EITHER if name == "rewards" else Verdict.REFUSED  # it takes numbers, too


def _no_number(choices: Choices, call: Call) -> Verdict:
    """Put something else where a number belongs."""
    name = _name(choices, call)
    rows = _rows(choices, call, name)
    row = choices.pick(rows) if isinstance(rows[0], list) else rows
    if not row:
        return _no_row(choices, call)
    wrong = list(_NO_NUMBERS)
    if name in TOKENS:
        wrong += [lambda: 1.5, lambda: 2**63, lambda: -(10**5000), lambda: np.float32(1)]
        wrong += [lambda: np.uint64(2**63), lambda: torch.tensor(1.0)]
    elif name == "loss_masks":
        wrong += [lambda: float("nan"), lambda: np.float16("nan")]
    row[choices.below(len(row))] = choices.pick(wrong)()
    # [1] for one number of one row is a row.
    return Verdict.EITHER if row is rows else Verdict.REFUSED


def _wrong_option(choices: Choices, call: Call) -> Verdict:
    """Pass an argument that cannot be."""
    wrong: list[dict[str, Any]] = [
        {"layout": "sideways"},
        {"layout": None},
        {"array_type": "jax"},
        {"pad_token_id": None},
        {"pad_token_id": 1.0},
        {"pad_token_id": 2**63},
        {"position_ids": "two"},
        {"labels": True},
        {"pad_to_multiple_of": 0},
        {"pad_to": -1},
        {"max_response_len": -1},
        {"max_seq_len": "long"},
        {"dtypes": "short"},
        {"dtypes": {"nothing": "int32"}},
        {"dtypes": {"input_ids": "float32"}},
        {"dtypes": 5},
        {"uids": [0] * 17},
        {"trajectory_ids": 5},
        {"fields": [1]},
        {"fields": {"a": 1}},
        {"fields": {1: fc.PerRow([1])}},
        {"fields": {"a": fc.Field([[1]] * 17)}},
        {"fields": {"a": fc.Field(None)}},
        {"fields": {"a": fc.Field([], align="left")}},
        {"fields": {"a": fc.PerRow([None])}},
        {"fields": {"a": fc.PerRow(5)}},
        {"fields": {"a": fc.RoutedExperts([[1]] * 17)}},
        {"fields": {"input_ids": fc.PerRow([1])}},
        {"pool": 5},
        {"out": {}},
        {"out": fc.Batch({})},
    ]
    call.arguments |= choices.pick(wrong)
    return Verdict.REFUSED


def _odd_option(choices: Choices, call: Call) -> Verdict:
    """Pass an argument at the edge of what there may be."""
    odd = [0, 1, 2, 7, 2**50, 2**62, 2**63 - 1, 2**64, True, 0.5, Acts(choices, call)]
    number = choices.pick(odd)
    name = choices.pick(
        ["pad_to", "pad_to_multiple_of", "max_prompt_len", "max_response_len", "max_seq_len"]
    )
    call.arguments[name] = number
    return Verdict.EITHER


# What is hostile


class Acts:
    """A number that does something when it is read, and gives something odd."""

    def __init__(self, choices: Choices, call: Call) -> None:
        self.acts = [choices.pick(_ACTS)] * 5  # not for ever
        self.answer = choices.pick([5, 1, 0, -1, 2**31, 2**63, 0.5, True, None, "5", object()])
        self.call = call
        self.choices = choices

    def __index__(self) -> Any:
        if self.acts:
            self.acts.pop()(self.choices, self.call)
        return self.answer

    __float__ = __index__

    def __repr__(self) -> str:
        return f"hostile {self.__index__()!r}"


class ActsAsRow(UserList):  # type: ignore[type-arg]
    """A sequence that does something when it is read, and lies about its length."""

    def __init__(self, items: list[Any], choices: Choices, call: Call) -> None:
        super().__init__(items)
        self.acts = Acts(choices, call)

    def __len__(self) -> Any:
        return self.acts.__index__()

    def __getitem__(self, index: Any) -> Any:
        self.acts.__index__()
        return super().__getitem__(index)


class LyingList(list):  # type: ignore[type-arg]
    """A list whose methods say something else than its memory."""

    answer: Any = 3

    def __len__(self) -> Any:
        return self.answer

    def __iter__(self) -> Any:
        return iter([1] * 7)

    def __getitem__(self, index: Any) -> Any:
        return 9


class Pretends:
    """An object that says that it is something else."""

    def __init__(self, choices: Choices, call: Call) -> None:
        self.kind = choices.pick([list, np.ndarray, torch.Tensor, fc.Ragged, int, dict])
        self.acts = Acts(choices, call)
        call.pretends = True

    @property
    def __class__(self) -> Any:
        return self.kind

    def __getattr__(self, name: str) -> Any:
        return self.acts

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        self.acts.__index__()
        return self.acts, self.acts

    def __len__(self) -> Any:
        return self.acts.__index__()

    def __getitem__(self, index: Any) -> Any:
        if index == 9:
            raise IndexError  # or it would have no end
        return self.acts


def _throw(_: Choices, __: Call) -> None:
    raise HostileError


def _interrupt(_: Choices, __: Call) -> None:
    raise HostileInterrupt


def _empty(choices: Choices, call: Call) -> None:
    """Take away what is being read, or the whole of another argument."""
    given = call.arguments.get(_name(choices, call))
    if type(given) is list:
        victim = choices.pick([given, *[row for row in given if type(row) is list]])
        victim[:] = [object() for _ in range(choices.pick([0, len(victim), 1, 500]))]
    gc.collect(0)


def _resize(choices: Choices, call: Call) -> None:
    """Move an array's memory."""
    given = call.arguments.get(_name(choices, call))
    for row in given if type(given) in (list, tuple) else [given]:
        try:
            if type(row) is np.ndarray:
                row.resize(choices.pick([0, 1, 10_000]), refcheck=False)
            elif type(row) is torch.Tensor:
                row.resize_(choices.pick([0, 1, 10_000]))
            elif type(row) is array:
                row.extend(range(100))
        except (ValueError, RuntimeError, BufferError, TypeError, NotImplementedError):
            pass  # it may say no


def _again(_: Choices, call: Call) -> None:
    """Build another batch from the same pool meanwhile."""
    fc.build_batch([[1, 2]], [[3]], pad_token_id=0, pool=call.arguments.get("pool", None))


_ACTS: list[Callable[[Choices, Call], None]] = [
    lambda _, __: None,
    _throw,
    _interrupt,
    _empty,
    _empty,
    _resize,
    _again,
]


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
    rows[index] = _hostile(choices, call, row)
    return Verdict.EITHER


def _hostile_rows(choices: Choices, call: Call) -> Verdict:
    name = _name(choices, call)
    call.arguments[name] = _hostile(choices, call, _rows(choices, call, name))
    return Verdict.EITHER


def _hostile(choices: Choices, call: Call, items: list[Any]) -> Any:
    kind = choices.below(3)
    if kind == 0:
        return ActsAsRow(items, choices, call)
    if kind == 1:
        lying = LyingList(items)
        lying.answer = choices.pick([0, 1, len(items), 10**6, 2**62])
        return lying
    return Pretends(choices, call)


def _hostile_field(choices: Choices, call: Call) -> Verdict:
    rows = [[1.0] * count for count in call.response_lens]
    index = choices.below(len(rows))
    rows[index] = choices.pick(
        [
            lambda: _hostile(choices, call, rows[index]),
            lambda: [Acts(choices, call)] * len(rows[index]),
            lambda: [[Acts(choices, call)]] * len(rows[index]),
            lambda: [_hostile(choices, call, [1])] * len(rows[index]),
        ]
    )()
    number = choices.pick([0, 1, -1, 0.5, None, 2**63, Acts(choices, call)])
    dtype: Any = choices.pick([None, "int32", "int8", "float64", np.float16, torch.bool, "", 5])
    field = choices.pick(
        [
            lambda: fc.Field(rows, fill=number, dtype=dtype),
            lambda: fc.Field(_hostile(choices, call, rows), dtype=dtype, align="sequence"),
            lambda: fc.PerRow(rows, dtype=dtype, concat=choices.one_in(2)),
            lambda: fc.PerRow([number] * len(rows), dtype=dtype),
            lambda: fc.PerRow(_hostile(choices, call, rows), dtype=dtype),
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


_WAYS: list[Callable[[Choices, Call], Verdict]] = [
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
