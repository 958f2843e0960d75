"""Calls of `build_batch` that are right, and what they have to give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from strategies import (
    COLUMN_KINDS,
    FIELD_DTYPES,
    FIELD_KINDS,
    LAYOUTS,
    OUTERS,
    TOKEN_KINDS,
    as_column,
    as_kind,
)

import fastcollate as fc
from choices import Choices
from fastcollate.testing.reference import (
    build_batch_loops,
    build_merged_batch_loops,
    merge_turns_loops,
)
from fastcollate.testing.reference.packed import packed_rows, parts_of
from trajectories import draw_merge, draw_turns, some

TOKENS = ("prompts", "responses")
NAMED = ("trajectory_ids", "is_last_step")
KEYS = ("loss_mask", "rewards", "logprobs", "advantages")

_IDS = [(0, 128), (0, 200_000), (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)]
_INT32 = range(-(2**31), 2**31)
_NUMBERS: list[list[Any]] = [
    [0, 1],
    [True, False],
    [0.5, -1.25, 0.0, 3.0],
    [0, 1, True, 0.5, -0.0, 2**24 + 1, -3, 1 + 2**-24, 1e300, 1e-40, np.inf],
]
_UNUSUAL = [np.nan, -np.inf, -0.0, 65519.0]


@dataclass
class Call:
    """Arguments of a call, and the same data as plain lists and arrays for the references."""

    arguments: dict[str, Any]
    plain: dict[str, Any]
    layout: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    merge: dict[str, Any] | None = None
    """Options of `merge_turns`, if rows are made of turns."""
    has_experts: bool = False
    pretends: bool = False

    @property
    def prompt_lens(self) -> list[int]:
        """Lengths of the prompts that are given."""
        return list(map(len, self.plain["prompts"]))

    @property
    def response_lens(self) -> list[int]:
        """Lengths of the responses that are given."""
        return list(map(len, self.plain["responses"]))

    @cached_property
    def merged(self) -> Any:
        """The rows that turns make, as the reference finds them."""
        names = (*TOKENS, *NAMED)
        return merge_turns_loops(**{name: self.plain.get(name) for name in names}, **self.merge)

    @cached_property
    def row_lens(self) -> list[tuple[int, int]]:
        """Lengths of the prompt and of the response of every row of the batch."""
        if self.merge is None:
            return list(zip(self.prompt_lens, self.response_lens, strict=True))
        return [(len(row.prompt), len(row.response)) for row in self.merged.rows]

    @property
    def has_fronts(self) -> bool:
        """True if a token precedes the first one of every response."""
        return all(prompt > 0 or response == 0 for prompt, response in self.row_lens)

    def expected(self, layout: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the reference's result in the requested dtypes.

        `layout` is for the references, in place of the call's own.
        """
        layout = self.layout if layout is None else layout
        if self.merge is None:
            batch = build_batch_loops(**self.plain, **layout)
        else:
            batch = build_merged_batch_loops(**self.plain, **layout, merge=self.merge)
        dtypes = self.options.get("dtypes", {})
        if dtypes == "compact":
            ids = dict.fromkeys(("input_ids", "position_ids", "sequence_ids"), "int32")
            dtypes = {**ids, **dict.fromkeys(("attention_mask", "response_mask"), "bool")}
        for key in batch.keys() & dtypes.keys():
            batch[key] = torch.from_numpy(batch[key]).to(getattr(torch, dtypes[key]))
        return batch


def draw_call(choices: Choices, *, merges: bool = False) -> Call:
    """Draw a call that is right, or that the reference refuses, too; all but its columns."""
    call = Call({}, {})
    if merges:
        _draw_turns(choices, call)
    else:
        _draw_rows(choices, call)
    _draw_values(choices, call)
    layout = draw_layout(choices, call)
    call.layout = layout.plain
    _draw_options(choices, call)
    if choices.one_in(2):
        fields = {f"field_{index}": _draw_field(choices, call) for index in range(choices.below(4))}
        call.arguments["fields"] = {key: given for key, (given, _) in fields.items()}
        call.plain["fields"] = {key: plain for key, (_, plain) in fields.items()}
    call.arguments = {**call.plain, **call.arguments, "layout": layout.given, **call.options}
    if merges:
        call.arguments |= _merge_arguments(choices, call)
    return call


def give_columns(choices: Choices, call: Call) -> None:
    """Draw the type of each column."""
    for name, rows in call.plain.items():
        if name in (*TOKENS, *KEYS):
            call.arguments[name] = as_input(choices, rows, ids=name in TOKENS)


# Values of a call


def _draw_rows(choices: Choices, call: Call) -> None:
    count = 1 + choices.below(5)
    longest = choices.pick([5, 5, 5, 2, 0, 40, 300])
    shape = [(choices.below(longest + 1), choices.below(longest + 1)) for _ in range(count)]
    if choices.one_in(4):
        shape = shape[:1] * count
    bounds = choices.pick(_IDS)
    for index, name in enumerate(TOKENS):
        call.plain[name] = [
            choices.rng.integers(*bounds, lens[index], endpoint=True).tolist() for lens in shape
        ]


def _draw_turns(choices: Choices, call: Call) -> None:
    turns = draw_turns(choices)
    call.plain |= {name: getattr(turns, name) for name in TOKENS}
    for name in choices.pick([NAMED[:1], NAMED[1:], NAMED]):
        call.plain[name] = getattr(turns, name)
    call.merge = draw_merge(choices)


def _merge_arguments(choices: Choices, call: Call) -> dict[str, Any]:
    """Give a policy by its name, if that says it all, or a plan."""
    assert call.merge is not None
    if choices.one_in(2):
        return {"merge": call.merge["policy"]}
    names = [name for name in (*TOKENS, *NAMED) if name in call.plain]
    return {"merge": fc.merge_turns(**{name: call.plain[name] for name in names}, **call.merge)}


def _draw_values(choices: Choices, call: Call) -> None:
    call.plain["pad_token_id"] = choices.pick([0, 1, 2**31 - 1])
    for name in KEYS:
        if not choices.one_in(2):
            continue
        numbers = choices.pick(_NUMBERS) + _UNUSUAL
        if name == "loss_mask":
            numbers = [number for number in numbers if 0 <= number < 1e38]
        if name == "advantages":  # NaN is an error where a token trains
            numbers = [number for number in numbers if not np.isnan(number)]
        lens = call.response_lens
        call.plain[name] = [some(choices, numbers, count) for count in lens]
        takes_numbers = {"rewards": True, "advantages": _all_train(call)}.get(name, False)
        if takes_numbers and all(lens) and choices.one_in(2):
            numbers = [number for number in numbers if np.isfinite(number)]  # NaN is an error
            if call.merge is not None:  # they are summed as some kinds of input hold them
                numbers = np.array(numbers, np.float32).tolist()
            call.plain[name] = some(choices, numbers, len(lens))


def _all_train(call: Call) -> bool:
    """Return True if all response tokens train."""
    return call.merge is None and "loss_mask" not in call.plain and call.has_fronts


class Layout(NamedTuple):
    """The argument of a layout, and the arguments of the references for the same."""

    given: Any
    plain: dict[str, Any]


def draw_layout(choices: Choices, call: Call) -> Layout:
    """Draw a layout and widths in which the rows have room."""
    layout = choices.pick(["left", "two_segment", "right", "jagged", "packed"])
    if layout == "packed":
        return _draw_packed(choices, call)
    if layout == "jagged":
        return Layout(choices.pick([layout, fc.Jagged()]), {"layout": layout})
    widths = _draw_widths(choices, call, layout)
    kind = {"left": fc.Left, "right": fc.Right, "two_segment": fc.TwoSegment}[layout]
    return Layout(kind(**widths), {"layout": layout, **widths})


def _draw_widths(choices: Choices, call: Call, layout: str) -> dict[str, Any]:
    longest = max(map(sum, call.row_lens))
    longest_prompt, longest_response = map(max, zip(*call.row_lens, strict=True))
    multiple = choices.pick([1, 1, 2, 8])
    drawn = {"multiple_of": multiple}

    def width(least: int) -> int:
        # Of some hundred kilobytes on, other code copies.
        more = 20_000 if choices.one_in(200) else choices.below(4)
        return -(-(least + more) // multiple) * multiple

    if layout == "two_segment" and choices.one_in(3):
        drawn["pad_prompt_to"] = width(longest_prompt)
    elif layout != "two_segment" and choices.one_in(3):
        drawn["pad_to"] = width(longest)
    if choices.one_in(3):
        drawn["pad_response_to"] = width(longest_response)
    return drawn


def _draw_packed(choices: Choices, call: Call) -> Layout:
    """Draw bins of the rows: a plan of ours, lists, or a single one."""
    lens = list(map(sum, call.row_lens))
    multiple = choices.pick([1, 1, 2, 8])
    plan = fc.planning.pack(
        lens,
        fc.Packed(
            multiple * (1 + choices.below(max(lens) + 8)),
            algorithm=choices.pick(["ffd", "balanced", "concat"]),
            oversize="split",
            multiple_of=multiple,
        ),
    )
    ways = [plan, plan] if plan.is_split else [plan, plan.bins]
    given = choices.pick([*ways, "single_row"])
    bins = None if given == "single_row" else parts_of(plan)
    plain = {"layout": "packed", "bins": bins, "multiple_of": multiple}
    plain["padding_as"] = choices.pick(["own_segment", "last_segment", "no_segment"])
    # A value whose front token is elsewhere has no place; labels would be shifted twice.
    can_shift = call.has_fronts and (bins is None or not plan.is_split)
    if can_shift and call.plain.get("labels") != "shifted" and choices.one_in(2):
        plain["shift"] = "next_token"
    if choices.one_in(3):
        _, width = packed_places(call, plain).tokens.shape
        plain["pad_to"] = width + multiple * choices.below(4)
    how = {name: value for name, value in plain.items() if name not in ("layout", "bins")}
    return Layout(fc.Packed(plan=given, **how), plain)


def packed_places(call: Call, plain: dict[str, Any]) -> Any:
    """Return where values stand in the packed layout, which a batch does not say."""
    how = {name: value for name, value in plain.items() if name != "layout"}
    return packed_rows(*zip(*call.row_lens, strict=True), **how).grids


def _draw_options(choices: Choices, call: Call) -> None:
    options = call.options
    options["array_type"] = choices.pick(["numpy", "torch"])
    if (position_ids := choices.pick([None, None, "zero", "one", "repeat_last"])) is not None:
        call.plain["position_ids"] = position_ids
    can_shift = call.has_fronts and "shift" not in call.layout
    kinds = [None, None, "aligned", "shifted"][: 4 if can_shift else 3]
    if (labels := choices.pick(kinds)) is not None:
        call.plain["labels"] = labels
    if call.merge is None and choices.one_in(4):
        call.plain["uids"] = call.plain["trajectory_ids"] = [object()] * len(call.prompt_lens)
    ids = [id for name in TOKENS for row in call.plain[name] for id in row]
    if choices.one_in(3) and all(id in _INT32 for id in ids):
        options["dtypes"] = "compact"
    elif choices.one_in(3):
        names = ["float16", "bfloat16"] if options["array_type"] == "torch" else ["float16"]
        given = [key for key in KEYS if key in call.plain]
        has_numbers = "advantages" in given and not isinstance(call.plain["advantages"][0], list)
        weights = [weight for row in call.plain.get("loss_mask", []) for weight in row]
        is_rounded = "labels" in call.plain or has_numbers  # the references have float32 only
        if "loss_mask" in given and (is_rounded or max(weights, default=0) > 65504):
            given.remove("loss_mask")  # infinite weights are errors
        if call.merge is not None and "rewards" in given:
            given.remove("rewards")  # and sums
        options["dtypes"] = {key: choices.pick(names) for key in given}


def _draw_field(choices: Choices, call: Call) -> tuple[Any, Any]:
    """Draw a field for a call, and the same one for the references."""
    kind = choices.pick([_token_field, _token_field, _experts, _per_row])
    return kind(choices, call)


def _token_field(choices: Choices, call: Call) -> tuple[Any, Any]:
    dtypes = list(FIELD_DTYPES)
    if call.options["array_type"] == "numpy":
        dtypes.remove("bfloat16")
    dtype = choices.pick(dtypes)
    align: Any = choices.pick(["response", "sequence"])
    trailing = choices.pick([(), (), (1,), (3,), (2, 3), (0,), (2, 1, 2)])
    lens = call.response_lens
    if align == "sequence":
        lens = [p + r for p, r in zip(call.prompt_lens, lens, strict=True)]
    holds = "float32" if "float" in dtype else dtype
    with np.errstate(over="ignore"):
        rows = [
            FIELD_DTYPES[dtype](choices.rng, (count, *trailing)).astype(holds) for count in lens
        ]
    fill = choices.pick([0, 1])
    given = fc.Field(as_arrays(choices, rows), align=align, fill=fill, dtype=dtype)
    return given, fc.Field(rows, align=align, fill=fill, dtype=dtype)


def _experts(choices: Choices, call: Call) -> tuple[Any, Any]:
    if call.has_experts:
        return _token_field(choices, call)  # a batch has room for one
    call.has_experts = True
    experts = choices.pick([8, 256, 257, 2**15 + 1])
    trailing = (1 + choices.below(2), 1 + choices.below(4))
    dtype = choices.pick(["int64", "int32"])
    lens = [p + r for p, r in zip(call.prompt_lens, call.response_lens, strict=True)]
    more: dict[str, Any] = choices.pick([{}, {"num_experts": experts}, {"dtype": "int32"}])
    if choices.one_in(2):
        captured = [choices.below(count + 1) for count in lens]
        ends = zip(lens, captured, strict=True)
        more["starts"] = [choices.below(count - some + 1) for count, some in ends]
        lens = captured
    rows = [choices.rng.integers(0, experts, (count, *trailing)).astype(dtype) for count in lens]
    return fc.RoutedExperts(as_arrays(choices, rows), **more), fc.RoutedExperts(rows, **more)


def _per_row(choices: Choices, call: Call) -> tuple[Any, Any]:
    count = len(call.prompt_lens)
    if choices.one_in(2):
        values = some(choices, choices.pick([[1, -(2**40)], [True], [0.5, 2]]), count)
        return fc.PerRow(choices.pick([list, tuple, np.array, torch.tensor])(values)), fc.PerRow(
            np.array(values)
        )
    shapes = [(choices.below(3), 2) for _ in range(count)]
    rows = [np.full(shape, index, choices.pick([np.int64])) for index, shape in enumerate(shapes)]
    concat = choices.one_in(2)
    given = [choices.pick([np.array, torch.tensor])(row) for row in rows]
    return fc.PerRow(given, concat=concat), fc.PerRow(rows, concat=concat)


# Types of its arguments


def as_input(choices: Choices, rows: Sequence[Any], *, ids: bool) -> Any:
    """Give lists of numbers, or one list of them, as some kind of input."""

    def converted(values: Sequence[Any]) -> Any:
        kind = choices.pick(TOKEN_KINDS if ids and len(values) else FIELD_KINDS)
        return as_kind(values, kind, ids=ids, layout=choices.pick(list(LAYOUTS)))

    if not isinstance(rows[0], list):  # one number per row
        return converted(rows)
    if choices.one_in(3):
        return as_column(rows, choices.pick(COLUMN_KINDS), ids=ids)
    if len({len(row) for row in rows}) == 1 and choices.one_in(3):
        return converted(rows)
    if not ids and choices.one_in(4):
        return as_arrays(choices, [np.array(row, np.float32) for row in rows])
    return choices.pick(list(OUTERS.values()))([converted(row) for row in rows])


def as_arrays(choices: Choices, rows: Sequence[np.ndarray]) -> Any:
    """Give arrays (tokens, *trailing) as some kind of input."""
    if choices.one_in(2):
        return choices.pick(_WHOLE)(choices, rows)
    # An empty list does not say of which shape a token's values are.
    kinds = _SINGLE if any(map(len, rows)) else _SINGLE[:3]
    return [choices.pick(kinds)(choices, row) for row in rows]


def _lengthened(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Append a token to each row that must not be read."""
    around = [np.concatenate([row, np.ones((1, *row.shape[1:]), row.dtype)]) for row in rows]
    return np.concatenate(around)


def _narrowed(_: Choices, rows: Sequence[np.ndarray]) -> Any:
    """Return a jagged tensor with unused space after each row."""
    lens = torch.tensor([len(row) for row in rows])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), (lens + 1).cumsum(0)])
    values = torch.from_numpy(_lengthened(rows))
    return torch.nested.nested_tensor_from_jagged(values, offsets, lens)


def _nested(_: Choices, rows: Sequence[np.ndarray]) -> Any:
    return fc.ragged(rows).to_torch_nested()


def _arrow(choices: Choices, rows: Sequence[np.ndarray]) -> Any:
    """Arrow lists: whole, a slice, in chunks, or a table."""
    array = pa.array(fc.ragged([rows[0], *rows, rows[0]]))
    return choices.pick(
        [
            lambda: array.slice(1, len(rows)),
            lambda: pa.chunked_array([array.slice(1 + index, 1) for index in range(len(rows))]),
            lambda: pa.table({"rows": array.slice(1, len(rows))}),
        ]
    )()


def _list_views(choices: Choices, rows: Sequence[np.ndarray]) -> Any:
    """Give views of a child in which rows lie in any order."""
    if rows[0].ndim > 1:
        return rows
    order = choices.rng.permutation(len(rows))
    lens = np.array([len(row) for row in rows])
    starts = np.zeros(len(rows), np.int64)
    starts[order] = np.cumsum([0, *lens[order][:-1]])
    values = pa.array(np.concatenate([rows[index] for index in order]))
    return pa.LargeListViewArray.from_arrays(pa.array(starts), pa.array(lens), values)


def _stacked(_: Choices, rows: Sequence[np.ndarray]) -> Any:
    return np.stack(rows) if len({len(row) for row in rows}) == 1 else list(rows)


def _padded(_: Choices, rows: Sequence[np.ndarray]) -> Any:
    longest = max(map(len, rows))
    table = np.ones((len(rows), longest + 1, *rows[0].shape[1:]), rows[0].dtype)
    for out, row in zip(table, rows, strict=True):
        out[: len(row)] = row
    return fc.unpad(table, lengths=[len(row) for row in rows], side="right")


_WHOLE: list[Callable[[Choices, Sequence[np.ndarray]], Any]] = [
    lambda _, rows: fc.ragged(rows),
    lambda _, rows: fc.ragged([torch.from_numpy(row) for row in rows]),
    _narrowed,
    _nested,
    _arrow,
    _list_views,
    _stacked,
    _padded,
]

_SINGLE: list[Callable[[Choices, np.ndarray], Any]] = [
    lambda choices, row: LAYOUTS[choices.pick(list(LAYOUTS))](row),
    lambda _, row: torch.from_numpy(row),
    lambda _, row: torch.stack([torch.from_numpy(row)] * 2, -1)[..., 1],
    lambda _, row: row.tolist() if len(row) else [],
    lambda _, row: list(row),
    lambda _, row: tuple(map(torch.tensor, row)),
]
