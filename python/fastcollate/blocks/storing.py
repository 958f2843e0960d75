"""Storing rows: compact columns, and a table of lengths, ids and flags."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcollate._fastcollate import RowSpans, arrow_chunks
from fastcollate.batch import Batch
from fastcollate.blocks.sharing import BlockShare, Sharing, ids_of_rows, sharing_of
from fastcollate.build import build_batch
from fastcollate.common.arrays import (
    check_dtype_name,
    dtype_name,
    is_only_torch,
    is_tensor,
    offsets_of,
    read_array,
    to_array,
    to_numpy,
)
from fastcollate.common.row_columns import VALUES
from fastcollate.ops.normalize import loss_weights
from fastcollate.plan.merging import MergePlan
from fastcollate.plan.plan_tables import PlanTables
from fastcollate.rows.captured import Captures, runs_of
from fastcollate.rows.columns import Ragged
from fastcollate.rows.fields import AnyField, Field, FieldOptions, Rows, options_of
from fastcollate.rows.lengths import Integers
from fastcollate.rows.per_row import PerRow, is_object, per_row_values
from fastcollate.rows.plain_fields import with_fields, with_versions
from fastcollate.rows.ragged_fields import offsets_key
from fastcollate.rows.tokens import check_tokens

PART_BYTES = 4 << 20
"""Approximate bytes of columns in one object of a store.

A reader of one row fetches the whole object, and each fetch has a fixed cost.
"""

Part = dict[str, Any]
"""Columns of contiguous rows: ``input_ids``, those of `VALUES` and, by key, ``fields``. Each is a
`Ragged` of token values, a pair of it and a `Ragged` of each row's runs of captured tokens, an
array of one item per row, or a list of arrays or objects."""


CAPTURED = ("experts", "captured")
"""Forms of columns that an engine captured."""


class ColumnKind(NamedTuple):
    """The description of a column without its values."""

    form: str
    """Alignment of a field; ``"number"``, ``"array"`` or ``"object"`` for one value per row."""
    field: FieldOptions | None
    """The field without its values; None for a built-in one."""
    dtype: str
    """The stored dtype; values are integers of its bits if NumPy lacks the dtype."""
    trailing: tuple[int, ...]
    """Dimensions of an item."""
    is_empty: bool = False
    """True if all rows are None, so that the dimensions are unknown."""
    arrays: tuple[list[ArrayKind], Integers] | None = None
    """For arrays, the distinct kinds, and the index of each row's."""

    @property
    def is_captured(self) -> bool:
        """True for indices that an engine captured."""
        return self.form in CAPTURED


class ArrayKind(NamedTuple):
    """The description of one row's array without its values."""

    library: Literal["numpy", "torch", "python"]
    dtype: str
    trailing: tuple[int, ...]

    @classmethod
    def of(cls, value: Any) -> ArrayKind:
        """Describe an array, a tensor or nested lists."""
        if is_tensor(value):
            return cls("torch", dtype_name(value.dtype), tuple(value.shape[1:]))
        array = read_array(value)
        library: Literal["numpy", "python"] = "numpy" if value is array else "python"
        return cls(library, array.dtype.name, array.shape[1:])

    def empty(self, array_type: str) -> Any:
        """Return an empty array of this kind and of a batch's array type."""
        shape = (0, *self.trailing)
        if self.library == "numpy" or (self.library == "python" and array_type == "numpy"):
            return np.zeros(shape, self.dtype)
        import torch

        if self.library == "torch":
            return torch.zeros(shape, dtype=getattr(torch, self.dtype), device="cpu")
        # The dtype that torch infers from Python numbers.
        number = np.zeros((), self.dtype).item()
        return torch.as_tensor(number, device="cpu").new_zeros(shape)


@dataclass(frozen=True, eq=False)
class BlockTable:
    """The description of a block's rows without their tokens.

    Parameters
    ----------
    plan
        The tables of a :class:`Plan`, without its offsets.
    merge_plan
        The merging of turns, if any.
    names
        ``uids``, ``trajectory_ids`` and ``is_last_step`` of each row, if given.
    plain, fields
        The columns beside the tokens, by argument and by key.
    loss_weights
        The sum of each row's loss mask, or its response length without one: float64 (rows,).
    part_offsets
        The first row of each part, and the number of rows: int64 (parts + 1,).
    num_bytes
        Bytes of all columns.
    masked_rewards
        Rewards on tokens that merging masked.
    sharing
        The tokens that rows share, if requested.
    """

    plan: dict[str, Integers]
    merge_plan: MergePlan | None
    names: dict[str, list[Any]]
    plain: dict[str, ColumnKind]
    fields: dict[str, ColumnKind]
    loss_weights: NDArray[np.float64]
    part_offsets: Integers
    num_bytes: int
    masked_rewards: int
    sharing: Sharing | None = None


class _Stored(NamedTuple):
    """A column and its description."""

    kind: ColumnKind
    column: Any

    def cut(self, first: int, end: int) -> Any:
        """Return the column of a range of rows, as it is put into a store."""
        column = self.column
        if self.kind.is_captured or self.kind.form == "ragged":
            return column[0][first:end], column[1][first:end]
        return column[first:end]

    def num_bytes(self) -> int:
        """Return the bytes of the column."""
        if self.kind.form == "object":
            return sum(map(sys.getsizeof, self.column))
        return _bytes(self.column)


def store(
    prompts: Rows | None = None,
    responses: Rows | None = None,
    *,
    sequences: Rows | None = None,
    prompt_lens: Any | None = None,
    fields: Mapping[str, AnyField | Rows] | None = None,
    share: BlockShare | None = None,
    same_inputs: Sequence[Any] | None = None,
    part_bytes: int = PART_BYTES,
    **columns: Any,
) -> tuple[BlockTable, list[Part]]:
    """Merge turns, and store the resulting rows as columns.

    Parameters
    ----------
    prompts, responses, sequences, prompt_lens, fields, **columns
        As :func:`fastcollate.build_batch`, also ``merge``.
    share, same_inputs
        The sharing rule, and ids of the other inputs of each turn, as in
        :func:`fastcollate.planning.prefix_tree`.
    part_bytes
        Approximate bytes of a part.

    Returns
    -------
    tuple
        The table, and the columns in parts of contiguous rows.
    """
    if isinstance(fields, Mapping):
        fields = {key: _hold(key, field) for key, field in fields.items()}
    prompts, responses = _keep("prompts", prompts), _keep("responses", responses)
    sequences = _keep("sequences", sequences)
    given = check_tokens(prompts, responses, sequences, prompt_lens)
    made: Mapping[str, AnyField] | None = with_fields(fields, given)
    if made:
        made, mask, _ = with_versions(made, columns.get("loss_mask"), given, may_be_named=False)
        columns["loss_mask"] = mask
    values_of = {name: columns[name] for name in VALUES if columns.get(name) is not None}
    batch = _jagged(
        prompts=prompts,
        responses=responses,
        sequences=sequences,
        prompt_lens=prompt_lens,
        fields=made,
        **columns | {name: _hold(name, values) for name, values in values_of.items()},
    )
    offsets = np.asarray(batch._data["offsets"])
    of_responses = np.asarray(batch._data["response_offsets"])
    tokens = Ragged(to_array(batch._data["input_ids"]), offsets)
    sources = batch.plan.sources

    plain: dict[str, _Stored] = {}
    for name, given in values_of.items():
        values = to_array(batch._data[name])
        if name == "rewards" and _is_one_number_each(given):
            places = of_responses[:-1] + PlanTables(batch.plan).last_sampled()
            numbers = np.zeros(len(places), values.dtype)
            has_tokens = np.diff(of_responses) > 0
            numbers[has_tokens] = values[places[has_tokens]]
            plain[name] = _Stored(ColumnKind("number", None, "float32", ()), numbers)
            continue
        if name == "loss_mask":
            values = _narrow(values)
        column = Ragged(values, of_responses)
        plain[name] = _Stored(ColumnKind("response", None, values.dtype.name, ()), column)
    more = {
        key: _store_field(key, field, batch, offsets, of_responses, sources)
        for key, field in (made or {}).items()
    }

    num_bytes = _bytes(tokens) + sum(one.num_bytes() for one in (plain | more).values())
    bounds = _part_offsets(offsets, num_bytes, part_bytes)
    parts = [
        {
            "input_ids": tokens[first:end],
            **{name: one.cut(first, end) for name, one in plain.items()},
            "fields": {key: one.cut(first, end) for key, one in more.items()},
        }
        for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]
    names = batch._state.ids
    sharing = None
    if share is not None:
        if same_inputs is not None:
            turns = batch.plan.num_turns
            same_inputs = ids_of_rows("same_inputs", same_inputs, turns, sources)
        share_nothing = same_inputs is None and any(
            isinstance(field, PerRow) and field.concat for field in (made or {}).values()
        )
        prompt_lens, ids = batch.plan.prompt_lens, names.get("uids")
        sharing = sharing_of(share, tokens, prompt_lens, ids, same_inputs, share_nothing)
    table = BlockTable(
        {name: table for name, table in batch.plan.to_dict().items() if name not in _PLACES},
        batch.merge_plan,
        names,
        {name: one.kind for name, one in plain.items()},
        {key: one.kind for key, one in more.items()},
        _loss_weights(batch, plain.get("loss_mask"), of_responses),
        bounds,
        num_bytes,
        batch._state.masked_rewards,
        sharing,
    )
    return table, parts


_PLACES = {
    *("layout", "sequence_shape", "sequence_segments", "response_shape", "response_segments")
}
"""Tables of a jagged plan that can be computed from the others."""


_NO_TOKEN = -(2**31)
"""A padding token that no row ends with, so that no row looks padded."""


def _keep(name: str, rows: Any) -> Any:
    """Return a column that can be read again: an Arrow stream may yield its rows only once."""
    if not hasattr(rows, "__arrow_c_stream__") or hasattr(type(rows), "__len__"):
        return rows
    if (chunks := arrow_chunks(rows, name)) is None:
        return rows
    offsets = [np.asarray(offsets, np.int64) for _, offsets in chunks]
    return RowSpans(
        [
            (values, ends[:-1], np.diff(ends))
            for (values, _), ends in zip(chunks, offsets, strict=True)
        ]
    )


def _hold(key: str, field: Any) -> Any:
    """Return a field, or the rows of one, whose values can be read again."""
    if isinstance(field, PerRow):
        is_iterator = isinstance(field.values, Iterator)
        return dataclasses.replace(field, values=list(field.values)) if is_iterator else field
    if isinstance(field, (Field, Captures)):
        return dataclasses.replace(field, rows=_keep(key, field.rows))
    return _keep(key, field)


def _jagged(**arguments: Any) -> Batch:
    """Write all rows once, one after the other, with ids in 32 bits if they fit."""
    build: Callable[..., Batch] = build_batch
    fields = arguments["fields"]
    options = {
        **arguments,
        "fields": fields and {key: _as_stored(field) for key, field in fields.items()},
        "pad_token_id": _NO_TOKEN,
        "layout": "jagged",
        "array_type": "torch" if any(map(_needs_torch, (fields or {}).values())) else "numpy",
    }
    try:
        return build(**options, dtypes={"input_ids": "int32"})
    except ValueError:
        pass
    # Ids beyond 32 bits. Any other error is raised again here.
    return build(**options)


def _as_stored(field: AnyField) -> AnyField:
    """Return a field that is written as it was given; a reader joins or adds what it asks for."""
    if isinstance(field, PerRow):  # joining objects would copy them
        return dataclasses.replace(field, concat=False)
    if isinstance(field, Field) and field.own_token == "add":  # counted by shard
        return dataclasses.replace(field, own_token="keep")
    return field


def _needs_torch(field: Any) -> bool:
    """Return True if a field has a dtype that NumPy lacks."""
    if isinstance(field, PerRow):
        values = field.values
        return isinstance(values, (list, tuple)) and any(map(is_tensor, values))
    dtype = getattr(field, "dtype", None)
    return dtype is not None and dtype_name(dtype) == "bfloat16"


def _name_kind(key: str, field: Any) -> FieldOptions:
    """Return a field without its values, its dtype by name."""
    kind = options_of(field)
    if kind.options["dtype"] is None or is_object(kind.options["dtype"]):
        return kind
    return kind._replace(
        options={**kind.options, "dtype": check_dtype_name(kind.options["dtype"], key)}
    )


def _store_field(
    key: str,
    field: AnyField,
    batch: Batch,
    offsets: Integers,
    of_responses: Integers,
    sources: Integers,
) -> _Stored:
    kind = _name_kind(key, field)
    if isinstance(field, PerRow):
        form, values, _ = per_row_values(key, field)
        if form != "number":
            values = [values[source] for source in sources.tolist()]
            if form == "array":
                return _store_arrays(kind, values)
            return _Stored(ColumnKind("object", kind, "", ()), values)
        if is_tensor(values) and is_only_torch(values.dtype):
            values = values.float()  # exact
        numbers = to_numpy(values)[sources]
        return _Stored(ColumnKind("number", kind, _dtype_of(numbers), numbers.shape[1:]), numbers)
    values = to_array(batch._data[key])
    if isinstance(field, Field) and field.ragged:
        ends = to_array(batch._data[offsets_key(key)])
        of_rows = of_responses if field.align == "response" else offsets
        pair = Ragged(values, ends[of_rows]), Ragged(np.diff(ends), of_rows)
        return _Stored(ColumnKind("ragged", kind, dtype_name(batch._data[key].dtype), ()), pair)
    is_empty = len(values) == 0 or _are_missing(field.rows)
    of_values = (kind, dtype_name(batch._data[key].dtype), values.shape[1:], is_empty)
    if isinstance(field, Field):
        is_of_responses = batch.spec.table[key].align == "response"
        column = Ragged(values, of_responses if is_of_responses else offsets)
        return _Stored(ColumnKind(field.align, *of_values), column)
    mask = batch.spec.captured_masks[key]
    runs = runs_of(~np.asarray(batch._data[mask]), offsets)
    counts = np.bincount(runs[:, 0], minlength=len(offsets) - 1)
    index = batch.spec.table[key].field
    assert index is not None
    align = batch.spec.fields[index].align
    columns = Ragged(values, offsets), Ragged(runs[:, 1:], offsets_of(counts))
    return _Stored(ColumnKind(align, *of_values), columns)


def _are_missing(rows: Any) -> bool:
    """Return True if all rows of a field are None."""
    if isinstance(rows, RowSpans):
        return rows.are_missing
    return isinstance(rows, (list, tuple)) and all(row is None for row in rows)


def _dtype_of(numbers: np.ndarray) -> str:
    """Return the name of the widest dtype of the numbers' kind."""
    if numbers.dtype.kind in "bf":
        return "bool" if numbers.dtype.kind == "b" else "float64"
    return "uint64" if numbers.max(initial=0) > np.iinfo(np.int64).max else "int64"


def _store_arrays(kind: FieldOptions, values: list[Any]) -> _Stored:
    kinds: dict[ArrayKind, int] = {}
    numbers = [kinds.setdefault(ArrayKind.of(value), len(kinds)) for value in values]
    arrays = list(kinds), np.array(numbers, np.int64)
    packed = [_pack(value) for value in values]
    return _Stored(ColumnKind("array", kind, "", (), arrays=arrays), packed)


def _pack(value: Any) -> Any:
    """Return a form that pickles out of band: torch pickles tensors by copying them."""
    if is_tensor(value):
        return Ragged(value.detach().cpu(), [0, len(value)])
    return value


def unpack(value: Any) -> Any:
    """Undo `_packed`."""
    return value.values if isinstance(value, Ragged) else value


def _narrow(mask: np.ndarray) -> np.ndarray:
    """Return a loss mask with one byte per token, if it holds only 0 and 1."""
    narrow = mask.astype(np.uint8) if ((mask == 0) | (mask == 1)).all() else mask
    return mask if np.signbit(mask).any() else narrow  # -0.0 stays what it is


def _loss_weights(
    batch: Batch, masks: _Stored | None, of_responses: Integers
) -> NDArray[np.float64]:
    """Sum the loss mask of each row, or count its response tokens."""
    if masks is None or masks.column.values.dtype != np.uint8:
        return loss_weights(batch._state)
    # Sums of 0 and 1 are exact in any order.
    holds = np.diff(of_responses) > 0
    weights, starts = np.zeros(len(holds)), of_responses[:-1][holds]
    weights[holds] = np.add.reduceat(masks.column.values, starts, dtype=np.int64)
    return weights


def _is_one_number_each(rewards: Any) -> bool:
    """Return True if rewards are certainly one number per row."""
    rewards = rewards.rows if isinstance(rewards, Field) else rewards
    if is_tensor(rewards) or isinstance(rewards, np.ndarray):
        return rewards.ndim == 1 and (is_tensor(rewards) or rewards.dtype != object)
    if not isinstance(rewards, (list, tuple)) or len(rewards) == 0:
        return False
    first = next((one for one in rewards if one is not None), 0.0)  # as `build_batch` reads them
    return isinstance(first, (bool, int, float, np.number, np.bool_)) or (
        is_tensor(first) and first.dim() == 0
    )


def _bytes(column: Any) -> int:
    """Return the bytes of a column."""
    if isinstance(column, tuple):
        return sum(map(_bytes, column))
    if isinstance(column, list):
        return sum(_bytes(unpack(value)) for value in column)
    if isinstance(column, Ragged):
        column = column.values
    return int(column.nbytes if hasattr(column, "nbytes") else np.asarray(column).nbytes)


def _part_offsets(offsets: Integers, num_bytes: int, part_bytes: int) -> Integers:
    """Cut rows into parts of about `part_bytes`; return their row offsets."""
    rows, tokens = len(offsets) - 1, max(int(offsets[-1]), 1)
    count = max(1, min(rows, round(num_bytes / part_bytes)))
    ends = np.searchsorted(offsets[1:], np.arange(1, count) * (tokens / count)) + 1
    return np.unique(np.concatenate([[0], np.minimum(ends, rows), [rows]])).astype(np.int64)
