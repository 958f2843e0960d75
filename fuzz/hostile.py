"""Objects that do harm when they are read."""

from __future__ import annotations

import gc
from array import array
from collections import UserList
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import fastcollate as fc
from calls import Call
from choices import Choices
from verdicts import HostileError, HostileInterrupt


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
    """Remove the items that are being read, or all of another argument."""
    given = call.arguments[choices.pick(list(call.arguments))]
    if type(given) is list:
        victim = choices.pick([given, *[row for row in given if type(row) is list]])
        victim[:] = [object() for _ in range(choices.pick([0, len(victim), 1, 500]))]
    gc.collect(0)


def _resize(choices: Choices, call: Call) -> None:
    """Move an array's memory."""
    given = call.arguments[choices.pick(list(call.arguments))]
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
    fc.build_batch([[1, 2]], [[3]], pad_token_id=0, pool=call.arguments.get("pool"))


_ACTS: list[Callable[[Choices, Call], None]] = [
    lambda _, __: None,
    _throw,
    _interrupt,
    _empty,
    _empty,
    _resize,
    _again,
]


def hostile(choices: Choices, call: Call, items: list[Any]) -> Any:
    """Give rows, or a row, that do harm."""
    kind = choices.below(3)
    if kind == 0:
        return ActsAsRow(items, choices, call)
    if kind == 1:
        lying = LyingList(items)
        lying.answer = choices.pick([0, 1, len(items), 10**6, 2**62])
        return lying
    return Pretends(choices, call)
