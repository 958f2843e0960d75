"""Batches of rollouts that are added one by one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NoReturn,
    TypeVar,
    cast,
    overload,
)

import numpy as np
from numpy.typing import NDArray

from fastcollate._fastcollate import FieldSpec, OutputTable, RowStore, StoredRow, stored_columns
from fastcollate.batch import Batch
from fastcollate.batch_mapping import Array
from fastcollate.build import build_batch, build_rows
from fastcollate.common.arguments import (
    check_bool,
    check_count,
    spells_out,
    suggests_names,
    tally,
    wrong_name,
)
from fastcollate.common.arrays import describe, is_array, read_array
from fastcollate.common.names import ListsNames
from fastcollate.common.row_columns import IDS, TOKENS, VALUES
from fastcollate.common.text import show
from fastcollate.options import Options, RowOptions
from fastcollate.rows.captured import Captures, check_from_first
from fastcollate.rows.fields import (
    ADVANTAGES,
    FIELDS,
    LOGPROBS,
    LOSS_MASK,
    REWARDS,
    AnyField,
    Field,
    FieldOptions,
    Rows,
    check_keys,
    check_mask_is_used,
    options_of,
    read_align,
    row_of,
)
from fastcollate.rows.per_row import PerRow, form_of, is_object, no_value, unreadable
from fastcollate.rows.plain_fields import versions_of_row, with_fields
from fastcollate.rows.ragged_fields import ragged_row, ragged_specs
from fastcollate.rows.row_kinds import NUMBERS, RowKinds, difference
from fastcollate.rows.tokens import (
    Tokens,
    check_continued,
    check_row_tokens,
    check_sampled,
    row_len,
)

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from fastcollate.plan.dtypes import ArrayType
    from fastcollate.rollouts.calls import Calls

T = TypeVar("T")

ROW_NAMES = {**TOKENS, **IDS}
"""Columns of `build_batch`, and their names as arguments of `add`."""

_ARGUMENTS = {name: column for column, name in ROW_NAMES.items()}
"""Arguments of `add`, and their names in `build_batch`."""

_TAKEN = (
    "another call has finished or cleared the same rows meanwhile; call finish in one thread only"
)


class _Row(NamedTuple):
    """A stored row."""

    kinds: RowKinds
    """Those of the first row, shared by all rows."""
    stored: StoredRow
    objects: list[Any]


@suggests_names
class BatchBuilder(ListsNames, Generic[Array]):
    """Collects rollouts as they arrive, and builds one batch of them.

    Rows are unpacked to arrays when they are added: a token takes 4 bytes instead of 36 or more as
    a Python int in a list, and the batch is then a copy of arrays. Any thread may add rows. A
    builder cannot be pickled.

    Parameters
    ----------
    pad_token_id, merge, position_ids, labels, layout, dtypes, array_type, pool
        As :func:`fastcollate.build_batch`. With `merge`, add the turns of a trajectory in order.

    Raises
    ------
    ValueError, TypeError
        As :func:`fastcollate.build_batch`, for invalid options.

    Examples
    --------
    >>> builder = fc.BatchBuilder(pad_token_id=0, array_type="numpy")
    >>> builder.add([1, 2], [3], rewards=1.0)
    >>> builder.add([4], [5, 6, 7], rewards=0.0)
    >>> builder
    BatchBuilder of 2 rows, 7 tokens
    >>> builder.finish().input_ids
    array([[0, 1, 2, 3],
           [4, 5, 6, 7]])
    """

    @overload
    def __init__(
        self: BatchBuilder[torch.Tensor],
        *,
        pad_token_id: int,
        array_type: Literal["torch"] = "torch",
        **options: Unpack[RowOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: BatchBuilder[NDArray[Any]],
        *,
        pad_token_id: int,
        array_type: Literal["numpy"],
        **options: Unpack[RowOptions],
    ) -> None: ...
    @spells_out(RowOptions.__optional_keys__, build_batch)
    def __init__(
        self,
        *,
        pad_token_id: int,
        array_type: ArrayType = "torch",
        **options: Unpack[RowOptions],
    ) -> None:
        if (message := wrong_name(BatchBuilder, options)) is not None:
            raise TypeError(message)
        self._options = Options.check_early(
            pad_token_id=pad_token_id, array_type=array_type, **options
        )
        # Held only for statements that call no Python code, so that signal handlers and
        # finalizers run before or after them.
        self._lock = threading.RLock()
        self._rows: list[_Row] = []
        self._store = RowStore()  # replaced when rows are dropped

    def add(
        self,
        prompt: Any = None,
        response: Any = None,
        *,
        sequence: Any = None,
        prompt_len: int | None = None,
        rewards: Any = None,
        loss_mask: Any = None,
        logprobs: Any = None,
        advantages: Any = None,
        fields: Mapping[str, AnyField | Rows] | None = None,
        uid: Any = None,
        trajectory_id: Any = None,
        is_last_step: bool | None = None,
    ) -> None:
        """Add a row. It is copied, so its arrays may change afterwards.

        Parameters
        ----------
        prompt, response
            Token ids, in any form that a row of :func:`fastcollate.build_batch` may have.
        sequence, prompt_len
            Instead of both, a whole sequence and its number of prompt tokens, as for
            ``build_batch``.
        rewards, advantages
            One number per response token, or one for the row.
        loss_mask, logprobs
            One number per response token. ``fc.Field(row, align="sequence")`` passes one per token
            of the sequence, for these, `rewards` and `advantages`.
        fields
            More fields by key, as for ``build_batch``, but with the values of this row only:
            ``{"ref_logprobs": [-0.5, -0.1]}``, ``{"reward_id": fc.PerRow(3)}``.
        uid, trajectory_id, is_last_step
            Kept per row.

        Raises
        ------
        ValueError, TypeError
            As ``build_batch``, naming the row by its index in the batch; also if the first row has
            other fields than this one. The builder is then unchanged.
        """
        tokens = check_row_tokens(prompt, response, sequence, prompt_len)
        if sequence is not None:
            given = {"rewards": rewards, "logprobs": logprobs, "advantages": advantages}
            check_sampled("prompt_len", prompt_len, loss_mask, **given)
            if self._options.merge is not None:
                check_continued("prompt_len", tokens)
        index = len(self._rows)
        if fields is not None:
            check_keys(fields)
            check_mask_is_used(fields, loss_mask)
            fields, loss_mask = versions_of_row(fields, loss_mask, tokens)
        values: dict[str, bool] = {}
        options: dict[str, FieldOptions] = {}
        first = next(iter(self._rows), None)
        arrays: list[tuple[FieldSpec | None, Any]] = []
        objects: list[Any] = []
        for one, of_key in (
            (loss_mask, LOSS_MASK),
            (rewards, REWARDS),
            (logprobs, LOGPROBS),
            (advantages, ADVANTAGES),
        ):
            if one is None:
                continue
            row, spec = read_align(one, of_key)
            spec = self._typed(spec)
            if isinstance(one, Field) and (one.dtype, one.default) != (None, None):
                options[spec.key] = options_of(replace(one, align="response"))
            values[spec.key] = spec.key in NUMBERS and _is_number(row)
            if row is None and spec.key in NUMBERS and first is not None:  # of either kind
                values[spec.key] = first.kinds.values.get(spec.key, True)
                if not values[spec.key]:
                    row = np.full(row_len(tokens, one.align), one.default)
            if values[spec.key]:
                row = spec.number(row, index)
                objects.append(row)
            arrays.append((spec, row))
        if is_last_step is not None:
            check_bool("is_last_step", is_last_step)
        for name, value in zip(IDS.values(), (uid, trajectory_id, is_last_step), strict=True):
            if value is not None:
                values[name] = True
                objects.append(value.item() if is_array(value) and value.ndim == 0 else value)
        if fields is None:
            fields = {}
        else:
            known = {} if first is None else first.kinds.fields
            fields = with_fields(fields, tokens, index, known)
        of_fields = {key: options_of(one) for key, one in fields.items()}
        kinds = RowKinds(values, of_fields, options)
        for key in sorted(fields):
            if isinstance(field := fields[key], PerRow):
                objects.append(_copy(key, index, field))
                continue
            if isinstance(field, Field) and field.ragged:
                objects.append(ragged_row(key, index, field, tokens))
                continue
            own, row = self._array(key, index, field)
            if own is not None and kinds.fields[key].is_of_rows:
                row = own.number(row, index)
                objects.append(row)
            arrays.append((own, row))
        for key in sorted(fields):
            if isinstance(field := fields[key], Captures):
                if (start := field.starts) is None:
                    check_from_first(f"{key}[{index}]", field.rows, tokens)
                    start = 0
                objects.append(check_count(f"starts of {key}[{index}]", start, "a token", least=0))
        if fields and index == 0:  # later rows have the same
            self._check_table([spec for spec, _ in arrays if spec is not None], fields)
        self._append(kinds, (index, tokens, arrays), objects)

    def extend(self, calls: Calls) -> None:
        """Add the rows of :class:`fastcollate.rollouts.Calls`, one of each call.

        Raises
        ------
        ValueError, TypeError
            As :meth:`add`; rows before the one that is named have been added.
        """
        if not hasattr(type(calls), "batch"):
            raise TypeError(
                f"calls is {describe(calls)}; pass what fc.rollouts.parse returned, or add rows by "
                "builder.add"
            )
        columns = calls.batch
        fields = columns.pop("fields", {})
        names = {**ROW_NAMES, **{name: name for name in VALUES}}
        given = [(names[column], values) for column, values in columns.items()]
        for row in range(len(calls)):
            of_row = {key: row_of(one, row) for key, one in fields.items()}
            self.add(**{name: values[row] for name, values in given}, fields=of_row)

    def finish(self) -> Batch[Array]:
        """Build the batch of all rows, and clear the builder.

        Returns
        -------
        Batch
            The same as of one call of ``build_batch`` with these rows.

        Raises
        ------
        ValueError, TypeError
            As ``build_batch``, for an empty batch or rows that exceed fixed widths, for instance.
            The rows are then kept; :meth:`clear` drops them.
        RuntimeError
            If another thread, or a signal handler, has finished or cleared the same rows meanwhile.

        Notes
        -----
        Rows added during the call belong to the next batch.
        """
        build = partial(build_rows, self._options)
        return cast("Batch[Array]", self._build_by(build))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a BatchBuilder cannot be pickled; pickle the batch of finish()")

    def clear(self) -> None:
        """Drop all rows. Their memory is kept for the next ones, as by :meth:`finish`."""
        is_done = False
        while not is_done:  # a faster call may have dropped fewer rows
            store, rows = self._store, list(self._rows)
            is_done = self._forget(store, rows)

    def __len__(self) -> int:
        """Return the number of rows added since the last batch."""
        return len(self._rows)

    def __repr__(self) -> str:
        rows = list(self._rows)
        tokens = sum(row.stored.num_tokens for row in rows)
        return f"BatchBuilder of {tally(len(rows), 'row')}, {tally(tokens, 'token')}"

    def _append(self, own: RowKinds, row: tuple[int, Tokens, Any], objects: list[Any]) -> None:
        """Add a row atomically, if it has the kinds of the first one."""
        rows = self._rows
        kinds, error = self._kinds_for(own)
        if error is not None:
            RowStore().write(*row, own)  # errors of the row itself come first
            raise error
        stored = self._store.write(*row, kinds)
        while True:
            added = (_Row(kinds, stored, objects),)
            with self._lock:
                if not rows or rows[0].kinds is kinds:
                    rows += added
                    store = self._store
                    break
            kinds, error = self._kinds_for(own)
            if error is not None:
                raise error
        # Only after the row is kept: the memory of dropped rows is overwritten.
        store.open(stored)

    def _kinds_for(self, own: RowKinds) -> tuple[RowKinds, Exception | None]:
        """Return the kinds of the first row, and an error if these differ."""
        first = next(iter(self._rows), None)
        if first is None:
            return own, None
        return first.kinds, difference(len(self._rows), own, first.kinds)

    def _build_by(self, build: Callable[..., T], **options: Any) -> T:
        """Call a function with all rows, as arguments of `build_batch`, and drop the rows.

        Rows are views of memory that is overwritten by later rows.
        """
        store, rows = self._store, list(self._rows)
        try:
            result = build(**_columns(rows), **options)
        except Exception as error:
            if self._store is not store:
                raise RuntimeError(_TAKEN) from error
            raise
        if not self._forget(store, rows):
            raise RuntimeError(_TAKEN)
        return result

    def _check_table(self, specs: list[FieldSpec], fields: Mapping[str, Any]) -> None:
        """Check that no two outputs of the batch have the same key."""
        for key, field in fields.items():
            if isinstance(field, Captures):
                specs.append(field.spec(key))
            elif isinstance(field, Field) and field.ragged:
                specs.extend(ragged_specs(key, field))
            elif isinstance(field, PerRow):
                align = "joined" if field.concat else _form(key, 0, field)
                specs.append(FieldSpec(key, key, align=align, dtype=None))
        layout = self._options.layout_of(None)
        outputs, _ = self._options.outputs._replace(by_key={}).of_batch(
            layout.name, [(None, one) for one in specs], "torch"
        )
        rounds_up = (getattr(layout, "multiple_of", None) or 1) > 1
        OutputTable.of_layout(layout.name, rounds_up, 0, specs, outputs)

    def _typed(self, spec: FieldSpec) -> FieldSpec:
        """Return the spec of a field with the dtype of its output."""
        dtype = self._options.outputs.by_key.get(spec.key)
        return spec if dtype is None else spec.with_dtype(dtype)

    def _array(self, key: str, index: int, one: Any) -> tuple[FieldSpec | None, Any]:
        """Return the spec and the values of one row of a field."""
        if isinstance(one, Field):
            return self._typed(one.spec(key)), one.rows
        if not isinstance(one, Captures):
            raise TypeError(f"{key}[{index}] is {show(one)}; pass {FIELDS}")
        try:
            routes = np.asarray(read_array(one.rows), order="C")
        except ValueError as error:
            raise unreadable(f"{key}[{index}]", error) from error
        if routes.ndim == 0 or routes.dtype.kind not in "biuf":
            raise TypeError(
                f"{key}[{index}] is {describe(one.rows)}; pass an array of numbers with one row "
                "per token"
            )
        return None, routes

    def _forget(self, store: RowStore, rows: list[_Row]) -> bool:
        """Drop these rows, the first ones, unless their store was replaced before."""
        fresh, span, is_empty = RowStore(), slice(len(rows)), False
        with self._lock:
            is_current = self._store is store
            if is_current:
                del self._rows[span]  # frees no objects: the caller has the rows
                self._store, is_empty = fresh, not self._rows
        if is_empty:
            fresh.take_over(store)
        return is_current


def _columns(rows: list[_Row]) -> dict[str, Any]:
    """Return the arguments of `build_batch` that hold these rows."""
    if not rows:
        return {"prompts": [], "responses": []}
    kinds = rows[0].kinds
    prompts, responses, *arrays = stored_columns([row.stored for row in rows])
    objects = map(list, zip(*[row.objects for row in rows], strict=True))
    values, fields = kinds.columns(iter(arrays), objects)
    for name in NUMBERS:
        if kinds.values.get(name) and name not in kinds.options:
            # float64, as rewards may be summed before rounding.
            values[name] = np.array(values[name])
    values = {_ARGUMENTS.get(name, name): column for name, column in values.items()}
    return {"prompts": prompts, "responses": responses, **values, "fields": fields or None}


def _is_number(row: Any) -> bool:
    """Return True if a row is one number."""
    return getattr(row, "ndim", None) == 0 or not hasattr(row, "__len__")


def _form(key: str, index: int, one: PerRow) -> str:
    """Return the alignment of a field's output, from one of its rows."""
    form = "object" if is_object(one.dtype) else form_of(f"{key}[{index}]", one.values)
    return "row" if form == "number" else form


def _copy(key: str, index: int, one: PerRow) -> Any:
    """Return a copy of one row of a field; objects other than numbers and arrays as they are."""
    if _form(key, index, one) == "object":
        return one.values
    if one.values is None:
        raise no_value(key, index)
    return one.values.clone() if hasattr(one.values, "clone") else np.array(read_array(one.values))
