"""Target: `BatchBuilder`, which gets rows one by one, wrong ones among them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from strategies import FIELD_KINDS, LAYOUTS, TOKEN_KINDS, as_kind

import fastcollate as fc
from calls import KEYS, TOKENS, Call, draw_call
from choices import Choices
from fastcollate.testing.reference import assert_same
from hostile import Acts, hostile
from spoiling import NO_NUMBERS, NO_ROWS
from verdicts import HostileInterrupt, Verdict, outcome

_NAMES = dict(zip(TOKENS, ("prompt", "response"), strict=True))
_NAMES |= {key: key for key in KEYS}
_NAMES |= {"uids": "uid", "trajectory_ids": "trajectory_id", "is_last_step": "is_last_step"}
"""Names of the arguments of `build_batch` in `add`."""


def add_rows(choices: Choices) -> None:
    """Add rows and build a batch of them, once or twice."""
    call = draw_call(choices, merges=choices.one_in(2))
    try:
        expected = call.expected()
    except ValueError:
        expected = None
    of_rows = (*_NAMES, "fields")
    options = {name: value for name, value in call.arguments.items() if name not in of_rows}
    pool = choices.pick([fc.memory.BufferPool(1 << 20), None])
    builder = fc.BatchBuilder(**options, pool=pool)
    for _ in range(1 + choices.below(2)):
        may_be_other = _add(choices, builder, call)
        finish = Call({}, call.plain, pretends=may_be_other)
        verdict = Verdict.EITHER if may_be_other else Verdict.RIGHT
        if expected is None and not may_be_other:
            verdict = Verdict.REFUSED
        found = outcome(builder.finish, verdict, finish)
        if verdict != Verdict.RIGHT:
            builder.clear()
        else:
            assert_same(found, expected)
        assert len(builder) == 0


def _add(choices: Choices, builder: fc.BatchBuilder, call: Call) -> bool:
    """Add all rows; return whether a hostile one may have changed something."""
    may_be_other = False
    for index in range(len(call.prompt_lens)):
        row = _row(choices, call, index)
        if choices.one_in(3):
            may_be_other |= _add_wrong(choices, builder, dict(row))
        if may_be_other:
            with suppress(TypeError, ValueError):  # another kind of row may be the first by now
                builder.add(**row)
        else:
            assert len(builder) == index
            builder.add(**row)
    return may_be_other


def _row(choices: Choices, call: Call, index: int) -> dict[str, Any]:
    """Return one row of a call as arguments of `add`."""
    row: dict[str, Any] = {}
    for name, key in _NAMES.items():
        if name not in call.plain:
            continue
        value = call.plain[name][index]
        if name in (*TOKENS, *KEYS) and isinstance(value, list):
            value = list(value)  # hostile objects change it
            if choices.one_in(2):
                ids = name in TOKENS
                kind = choices.pick(TOKEN_KINDS if ids and value else FIELD_KINDS)
                value = as_kind(value, kind, ids=ids, layout=choices.pick(list(LAYOUTS)))
        row[key] = value
    if fields := call.plain.get("fields"):
        row["fields"] = {key: _of_row(field, index) for key, field in fields.items()}
    return row


def _of_row(field: Any, index: int) -> Any:
    """Return a field that holds one row of it."""
    given = {name: getattr(field, name, None) for name in ("rows", "values", "starts")}
    own = {name: rows[index] for name, rows in given.items() if rows is not None}
    return dataclasses.replace(field, **own)


def _no_row(choices: Choices, row: dict[str, Any]) -> None:
    row[choices.pick(["prompt", "response"])] = choices.pick(NO_ROWS)()


def _no_number(choices: Choices, row: dict[str, Any]) -> None:
    name = choices.pick(["prompt", "response"])
    row[name] = [1, choices.pick(NO_NUMBERS)()]


def _other_length(choices: Choices, row: dict[str, Any]) -> None:
    count = len(row["response"])
    row[choices.pick(["loss_mask", "logprobs"])] = [1] * (count + 1)


def _no_field(choices: Choices, row: dict[str, Any]) -> None:
    wrong: list[Any] = [1, fc.Field(None), fc.Field([1] * 1000), fc.PerRow(None)]
    fields = {**row.get("fields", {}), "wrong": choices.pick(wrong)}
    row["fields"] = choices.pick([fields, fields, [1], {1: fc.PerRow(1)}])


_WRONG: list[Callable[[Choices, dict[str, Any]], None]] = [
    _no_row,
    _no_number,
    _other_length,
    _no_field,
]
"""Ways to make a row wrong."""


def _add_wrong(choices: Choices, builder: fc.BatchBuilder, row: dict[str, Any]) -> bool:
    """Add a row that is wrong, which changes nothing, or a hostile one; return whether it is."""
    call = Call(row, dict.fromkeys(_NAMES))  # messages name columns: a prompt is prompts[3]
    if choices.one_in(2):
        count = len(builder)
        choices.pick(_WRONG)(choices, row)
        outcome(builder.add, Verdict.REFUSED, call)
        assert len(builder) == count
        return False
    name = choices.pick(list(row))
    acts = Acts(choices, call)
    acts.acts = [lambda *_: _disturb(choices, builder)] * 2
    row[name] = choices.pick([acts, [acts], [1, acts, 2], hostile(choices, call, [acts])])
    with suppress(HostileInterrupt):
        outcome(builder.add, Verdict.EITHER, call)
    return True


def _disturb(choices: Choices, builder: fc.BatchBuilder) -> None:
    """Use the builder meanwhile."""
    choices.pick(
        [
            lambda: builder.add([1, 2], [3]),
            lambda: builder.add([1] * 1000, [3], rewards=[1.0]),
            builder.clear,
            builder.finish,
            lambda: [repr(builder), len(builder)],
        ]
    )()
