"""Building the rows of a shard from the columns of the parts that it needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from fastcollate._fastcollate import FieldSpec, RowSpans, SomeTokens
from fastcollate.batch import Batch
from fastcollate.blocks.checking import check_part
from fastcollate.blocks.joining import JoinedBlocks
from fastcollate.blocks.storing import ColumnKind, Part, unpack
from fastcollate.build import build_rows
from fastcollate.common.arrays import check_dtype_name, is_only_torch, is_tensor, tensor_of_bits
from fastcollate.options import Options
from fastcollate.plan.merging import RowSource
from fastcollate.plan.shard import Shard
from fastcollate.rows.columns import Ragged
from fastcollate.rows.lengths import Integers

_Run = tuple[Part | None, int, int]
"""The part that holds a contiguous range of the step's rows, None if absent; first and end row."""

_FLOATS = ("float64", "float32", "float16", "bfloat16")
_HALVES = _FLOATS[2:]


def parts_of(step: JoinedBlocks, shard: Shard) -> list[int]:
    """Return the indices of the parts that hold a shard's rows, ascending."""
    rows = shard.rows[shard.rows >= 0]
    found = np.searchsorted(step.part_offsets, rows, "right") - 1
    return [int(part) for part in np.unique(found)]


def build(
    step: JoinedBlocks,
    shard: Shard,
    parts: Mapping[int, Part],
    options: Options,
    cp: tuple[int, int] | None = None,
) -> Batch:
    """Build the batch of a shard.

    Parameters
    ----------
    step, shard
        All rows, and the shard's rows.
    parts
        The parts that `parts_of` returns, by index.
    options, cp
        As :func:`fastcollate.build_batch`, which gives an equal batch from all columns.
    """
    lens = step.plan.prompt_lens, step.plan.response_lens
    for index, part in parts.items():
        first, end = step.part_offsets[index : index + 2].tolist()
        of_part = lens[0][first:end], lens[1][first:end]
        check_part(part, step.part_name(index), first, step.plain, step.fields, of_part)
    runs = list(_runs(step, parts))
    _check_dtypes(step, options.outputs.by_key)
    array_type = options.array_type

    def read(kind: ColumnKind, get: Callable[[Part], Any]) -> Any:
        if kind.form in ("array", "object"):
            return _list(kind, runs, get, array_type, shard.rows)
        return _column(kind, runs, get, lens)

    ids = ColumnKind("sequence", None, "int32", ())
    columns = {name: read(kind, _getter(name)) for name, kind in step.plain.items()}
    fields = {
        key: _field(kind, read(kind, _getter("fields", key))) for key, kind in step.fields.items()
    }
    arguments: dict[str, Any] = {
        "sequences": _spans(ids, runs, _getter("input_ids"), lens[0] + lens[1]),
        "prompt_lens": lens[0],
        **columns,
        **step.names,
        "fields": fields or None,
        "shard": shard,
        "cp": cp,
        "merging": RowSource(step.plan, step.merge_plan, masked_rewards=step.masked_rewards),
    }
    return build_rows(options, **arguments)


def _getter(*keys: str) -> Callable[[Part], Any]:
    def get(part: Part) -> Any:
        for key in keys:
            part = part[key]
        return part

    return get


def _runs(step: JoinedBlocks, parts: Mapping[int, Part]) -> Iterator[_Run]:
    start = 0
    for index in sorted(parts):
        first, end = step.part_offsets[index : index + 2].tolist()
        if start < first:
            yield None, start, first
        yield parts[index], first, end
        start = end
    if start < (count := int(step.part_offsets[-1])):
        yield None, start, count


def _check_dtypes(step: JoinedBlocks, dtypes: Mapping[str, Any]) -> None:
    """Check that no requested dtype has more precision than the stored column."""
    for key, kind in step.plain.items():
        if check_dtype_name(dtypes.get(key, kind.dtype), key) == "float64":
            raise ValueError(
                f"dtype of {key} is float64, but it is stored as float32; put it as a field of "
                "dtype float64, under another key"
            )
    for key, kind in step.fields.items():
        if key not in dtypes or kind.form in ("number", "array", "object"):
            continue
        asked = check_dtype_name(dtypes[key], key)
        is_wider = kind.dtype in _FLOATS and (
            asked not in _FLOATS or _FLOATS.index(asked) < _FLOATS.index(kind.dtype)
        )
        if asked != kind.dtype and (is_wider or kind.dtype in _HALVES):
            raise ValueError(
                f"dtype of {key} is {asked}, but it is stored as {kind.dtype}; "
                f"put it as a field of dtype {asked}"
            )


# Columns


def _column(
    kind: ColumnKind, runs: list[_Run], get: Callable[[Part], Any], lens: tuple[Integers, Integers]
) -> Any:
    """Return a column of all rows; rows that are not present have no values to be read."""
    if kind.form == "number":
        return _numbers(kind, runs, get)
    if kind.form == "ragged":
        return _values_and_counts(kind, runs, get, lens)
    if not kind.is_captured:
        counts = FieldSpec.row_lens(kind.form, *lens)
        assert counts is not None
        return _spans(kind, runs, get, counts)
    captured = [np.zeros((0, 3), np.int64)]
    for part, first, end in runs:
        if part is not None:
            of_rows = get(part)[1]
            rows = np.repeat(np.arange(first, end), of_rows.lengths)
            captured.append(np.column_stack([rows, of_rows.values]))
    values = _spans(kind, runs, lambda part: get(part)[0], lens[0] + lens[1])
    return SomeTokens.within(values, np.concatenate(captured))


def _values_and_counts(
    kind: ColumnKind,
    runs: list[_Run],
    get: Callable[[Part], Any],
    lens: tuple[Integers, Integers],
) -> tuple[RowSpans, RowSpans]:
    """Return the two columns of a ragged field; rows that are not present have no values."""
    assert kind.field is not None
    counts = FieldSpec.row_lens(f"{kind.field.options['align']}_counts", *lens)
    assert counts is not None
    num_values = np.zeros(len(counts), np.int64)
    for part, first, end in runs:
        if part is not None:
            num_values[first:end] = get(part)[0].lengths
    values = _spans(kind, runs, lambda part: get(part)[0], num_values)
    kind = kind._replace(dtype="int64")
    return values, _spans(kind, runs, lambda part: get(part)[1], counts)


def _spans(
    kind: ColumnKind, runs: list[_Run], get: Callable[[Part], Ragged], lens: Integers
) -> RowSpans:
    """Return token values of all rows, the given count of each."""
    chunks = []
    for part, first, end in runs:
        count = lens[first:end]
        column = None if part is None else get(part)
        if column is None or len(column.values) == 0:
            # None of these rows is read, or they are empty. Zeros that are not touched take no
            # memory.
            shape = (int(count.max(initial=0)), *kind.trailing)
            bits = np.zeros(shape, "int16" if is_only_torch(kind.dtype) else kind.dtype)
            starts = np.zeros(end - first, np.int64)
        else:
            bits, starts = column.values, column.offsets[:-1]
            if bits.ndim == 1 and kind.trailing:  # rows that are None: constant
                bits = np.repeat(bits, math.prod(kind.trailing)).reshape(len(bits), *kind.trailing)
        values = tensor_of_bits(bits, kind.dtype) if is_only_torch(kind.dtype) else bits
        chunks.append((values, starts, count))
    return RowSpans(chunks)


def _numbers(kind: ColumnKind, runs: list[_Run], get: Callable[[Part], Any]) -> np.ndarray:
    rows = runs[-1][2]
    numbers = np.zeros((rows, *kind.trailing), kind.dtype)
    for part, first, end in runs:
        if part is not None:
            numbers[first:end] = get(part)
    return numbers


def _list(
    kind: ColumnKind,
    runs: list[_Run],
    get: Callable[[Part], Any],
    array_type: str,
    wanted: Integers,
) -> list[Any]:
    """Return the shard's objects, or copies of its arrays, so that the store's memory is freed."""
    values: list[Any] = [None] * runs[-1][2]
    if kind.arrays is not None:
        kinds, of_rows = kind.arrays
        # All other rows get an empty array of the same kind, so that ranks agree on dtypes.
        empty = [one.empty(array_type) for one in kinds]
        values = [empty[index] for index in of_rows.tolist()]
    for part, first, end in runs:
        if part is not None:
            rows = wanted[(wanted >= first) & (wanted < end)]
            for row in rows.tolist():
                value = get(part)[row - first]
                values[row] = value if kind.form == "object" else _own(unpack(value))
    return values


def _own(value: Any) -> Any:
    if is_tensor(value):
        return value.clone()
    return value.copy() if isinstance(value, np.ndarray) else value


def _field(kind: ColumnKind, column: Any) -> Any:
    """Return a field over a column of this kind."""
    assert kind.field is not None
    make, options = kind.field
    if kind.form == "experts" and options["dtype"] is options["num_experts"] is None:
        options = {**options, "dtype": kind.dtype}  # chosen by the largest index of all rows
    if kind.is_captured:
        options = {**options, "layers": None}  # only selected layers are stored
    if "spread" in options:  # stored values are already spread, with defaults for None
        options = {**options, "spread": None, "default": None}
    if kind.form == "object":
        options = {**options, "dtype": object}  # None marks rows that are not present
    return make(column, **options)
