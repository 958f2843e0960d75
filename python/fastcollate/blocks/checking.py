"""Checks of what other processes stored: an object may be damaged, or of another version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pickle import PickleError
from typing import Any, get_args

import numpy as np

from fastcollate._fastcollate import FieldSpec, Plan
from fastcollate.blocks.sharing import BlockShare, Sharing
from fastcollate.blocks.storing import CAPTURED, ArrayKind, BlockTable, ColumnKind
from fastcollate.common.arguments import tally
from fastcollate.common.arrays import describe, is_only_torch, offsets_of
from fastcollate.plan.merging import MergePlan
from fastcollate.plan.tree_plan import TreePlan
from fastcollate.rows.columns import Ragged
from fastcollate.rows.fields import AnyField, FieldOptions
from fastcollate.rows.lengths import Integers

OF_ROUTES = ("uint8", "int16", "int32")
"""Dtypes of captured indices, by size."""

_DTYPES = {"input_ids": ("int32", "int64"), "loss_mask": ("uint8", "float32")}
"""Dtypes that each block takes by its own values."""

_FORMS = ("response", "sequence", *CAPTURED, "ragged", "number", "array", "object")


def check_table(table: Any, name: str) -> None:
    """Check the table of a block.

    Raises
    ------
    ValueError
        It is not as it was stored; the message names the block and the defect.
    """
    with intact(name):
        _expect(isinstance(table, BlockTable), "the table", table, "a BlockTable")
        rows = len(table.plan["source"])
        for key, ids in table.names.items():
            _expect(isinstance(ids, list), key, ids, "a list")
            _expect_count(key, len(ids), rows, "item")
        merge = table.merge_plan
        _expect(merge is None or isinstance(merge, MergePlan), "merge_plan", merge, "a MergePlan")
        if merge is not None:
            _expect_count("merge_plan", merge.num_rows, rows, "row")
        for key, kind in table.plain.items():
            _check_kind(key, kind, None, rows)
        for key, kind in table.fields.items():
            _check_kind(f"fields[{key!r}]", kind, FieldOptions, rows)
        _expect_array("loss_weights", table.loss_weights, "float64", (rows,))
        parts = table.part_offsets
        _expect_array("part_offsets", parts, "int64", np.shape(parts)[:1])
        rises = len(parts) > 0 and (np.diff(parts) >= 0).all()
        is_whole = rises and parts[0] == 0 and parts[-1] == rows
        _expect(is_whole, "part_offsets", parts, f"rising from 0 to {rows}")
        for key in ("num_bytes", "masked_rewards"):
            count = getattr(table, key)
            _expect(type(count) is int and count >= 0, key, count, "a count")
        if table.sharing is not None:
            _check_sharing(table.sharing, table.plan)


def join_plans(tables: Sequence[BlockTable], names: Sequence[str]) -> Plan:
    """Return the plan of all blocks' rows.

    Raises
    ------
    ValueError
        The tables of a block contradict each other; the message names the block.
    """
    try:
        return Plan.joined([table.plan for table in tables])
    except ValueError:
        for table, name in zip(tables, names, strict=True):
            with intact(name):
                Plan.joined([table.plan])
        raise


def check_part(
    part: Any,
    name: str,
    first: int,
    plain: Mapping[str, ColumnKind],
    fields: Mapping[str, ColumnKind],
    lens: tuple[Integers, Integers],
) -> None:
    """Check the columns of a part, whose rows begin with `first` and have these lengths.

    Raises
    ------
    ValueError
        They are not as they were stored; the message names the part and the column.
    """
    with intact(name):
        _expect(isinstance(part, dict), "it", part, "a dict of columns")
        _check_tokens("input_ids", part["input_ids"], lens[0] + lens[1], first, ())
        _check_dtype("input_ids", part["input_ids"], "integers")
        for key, kind in plain.items():
            _check_column(key, part[key], kind, lens, first)
        for key, kind in fields.items():
            _check_column(f"fields[{key!r}]", part["fields"][key], kind, lens, first)


@contextmanager
def intact(name: str) -> Iterator[None]:
    """Turn errors of a value's checks, or of its use as another kind of value, into one."""
    cause: Exception
    try:
        yield
    except KeyError as error:
        defect, cause = f"{error.args[0]} is missing", error
    except (AttributeError, EOFError, IndexError, PickleError, TypeError, ValueError) as error:
        defect, cause = str(error).partition("; pass")[0], error
    else:
        return
    raise ValueError(
        f"{name} has changed since it was put: {defect}; put its rows again, and plan the step "
        "again"
    ) from cause


def _expect(holds: Any, place: str, found: Any, expected: str) -> None:
    if not holds:
        raise ValueError(f"{place} is {describe(found)}, expected {expected}")


def _expect_count(place: str, found: int, expected: int, what: str) -> None:
    if found != expected:
        raise ValueError(f"{place} has {tally(int(found), what)}, expected {int(expected):,}")


def _expect_array(place: str, array: Any, dtype: str, shape: tuple[int, ...]) -> None:
    holds = isinstance(array, np.ndarray) and (array.dtype.name, array.shape) == (dtype, shape)
    _expect(holds, place, array, f"{dtype} of shape {shape}")


def _check_kind(key: str, kind: Any, field: type | None, rows: int) -> None:
    _expect(isinstance(kind, ColumnKind), f"the kind of {key}", kind, "a ColumnKind")
    _expect(kind.form in _FORMS, f"the form of {key}", kind.form, "an alignment")
    _expect(type(kind.dtype) is str, f"the dtype of {key}", kind.dtype, "a name")
    if kind.is_captured:
        _expect(kind.dtype in OF_ROUTES, f"the dtype of {key}", kind.dtype, "an integer's")
    elif kind.form == "number" or (kind.form in _FORMS[:2] and not is_only_torch(kind.dtype)):
        np.dtype(kind.dtype)
    sizes = kind.trailing if isinstance(kind.trailing, tuple) else (None,)
    is_shape = all(type(size) is int and size >= 0 for size in sizes)
    _expect(is_shape, f"the shape of {key}", kind.trailing, "sizes of its items")
    _expect(type(kind.is_empty) is bool, f"is_empty of {key}", kind.is_empty, "True or False")
    if field is not None:
        _expect(
            issubclass(kind.field.make, get_args(AnyField)),
            f"the field of {key}",
            kind.field.make,
            "a field's class",
        )
        _expect(type(kind.field.options) is dict, f"the field of {key}", kind.field, "its options")
    if kind.form == "array":
        known, numbers = kind.arrays
        _expect(all(type(one) is ArrayKind for one in known), f"arrays of {key}", known, "kinds")
        _expect_array(f"arrays of {key}", numbers, "int64", (rows,))
        is_known = rows == 0 or 0 <= numbers.min() <= numbers.max() < len(known)
        _expect(is_known, f"arrays of {key}", numbers, f"numbers of {tally(len(known), 'kind')}")


def _check_sharing(sharing: Any, plan: Mapping[str, Integers]) -> None:
    _expect(isinstance(sharing, Sharing), "sharing", sharing, "a Sharing")
    _expect(sharing.share in get_args(BlockShare), "share", sharing.share, "a rule")
    _expect(type(sharing.is_apart) is bool, "is_apart", sharing.is_apart, "True or False")
    rows = len(plan["source"])
    if sharing.share == "prompts":
        _expect_array("prompt_hashes", sharing.prompt_hashes, "uint64", (rows, 2))
    else:
        TreePlan(
            order=sharing.order,
            shared=sharing.shared,
            prompt_lens=plan["prompt_lens"],
            response_lens=plan["response_lens"],
        )
    if (ids := sharing.same_inputs) is not None:
        _expect(type(ids) is list and len(ids) == rows, "same_inputs", ids, f"{rows:,} ids")


def _check_column(
    key: str, column: Any, kind: ColumnKind, lens: tuple[Integers, Integers], first: int
) -> None:
    rows = len(lens[0])
    if kind.form == "number":
        is_of_numbers = isinstance(column, np.ndarray) and column.dtype.kind in "biuf"
        shape = (rows, *kind.trailing)
        _expect(is_of_numbers and column.shape == shape, key, column, f"numbers of shape {shape}")
    elif kind.form in ("array", "object"):
        _expect(type(column) is list, key, column, "a list")
        _expect_count(key, len(column), rows, "item")
    elif kind.is_captured:
        values, captured = column
        place = f"captured tokens of {key}"
        _check_tokens(key, values, lens[0] + lens[1], first, kind.trailing)
        _expect(isinstance(captured, Ragged), place, captured, "a Ragged")
        _expect_count(place, len(captured), rows, "row")
        runs = captured.values
        _expect_array(place, runs, "int64", (len(runs), 2))
        ends = np.repeat(values.lengths, captured.lengths)
        starts = np.concatenate([runs[:1, 0] * 0, runs[:-1, 1]])
        starts[captured.offsets[:-1][captured.lengths > 0]] = 0
        in_order = (starts <= runs[:, 0]) & (runs[:, 0] < runs[:, 1]) & (runs[:, 1] <= ends)
        _expect(in_order.all(), place, runs, "runs of the rows' tokens, in order")
    elif kind.form == "ragged":
        assert kind.field is not None
        values, counts = column
        of_tokens = FieldSpec.row_lens(f"{kind.field.options['align']}_counts", *lens)
        _check_tokens(f"counts of {key}", counts, of_tokens, first, ())
        _expect_array(f"counts of {key}", counts.values, "int64", counts.values.shape)
        sums = np.diff(offsets_of(counts.values)[counts.offsets])
        _check_tokens(key, values, sums, first, (), "value")
    else:
        _check_tokens(key, column, FieldSpec.row_lens(kind.form, *lens), first, kind.trailing)
        _check_dtype(key, column, kind.dtype)


def _check_dtype(key: str, column: Ragged, dtype: str) -> None:
    """Check the dtype of values, which are integers of its bits if NumPy lacks it."""
    found = column.values.dtype
    if key in _DTYPES:
        holds = found.name in _DTYPES[key]
    else:
        holds = found.kind in "iu" if is_only_torch(dtype) else found == dtype
    _expect(holds or not len(column.values), key, column.values, dtype)


def _check_tokens(
    key: str,
    column: Any,
    lens: Any,
    first: int,
    trailing: tuple[int, ...],
    what: str = "token",
) -> None:
    _expect(isinstance(column, Ragged), key, column, "a Ragged")
    found = column.lengths
    _expect_count(key, len(found), len(lens), "row")
    for row in np.flatnonzero(found != lens)[:1].tolist():
        _expect_count(f"{key}[{first + row}]", found[row], lens[row], what)
    is_alike = column.trailing in (trailing, ())
    _expect(is_alike, f"the shape of {key}'s items", column.trailing, f"{trailing}")
