"""Batches of rollouts that arrive one by one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import numpy as np

from fastcollate._fastcollate import FieldSpec, pack_ids
from fastcollate.arguments import check_bool, counted
from fastcollate.batch import Batch
from fastcollate.collating import LOGPROBS, LOSS_MASK, REWARDS, build_batch, check_options
from fastcollate.dtypes import taken_apart
from fastcollate.ingest.fields import Field, FieldKind, PerRow, RoutedExperts, kind_of
from fastcollate.ingest.storage import RowStore
from fastcollate.layouts import PackArgument, Shift, Tail
from fastcollate.memory import PoolArgument
from fastcollate.plan.merging import MergePlan

AnyField = Field | PerRow | RoutedExperts

T = TypeVar("T")


_IDS = ("uid", "trajectory_id", "is_last_step")
_ARGUMENTS = {"loss_mask": "loss_masks", "uid": "uids", "trajectory_id": "trajectory_ids"}
"""Names of `add` that `build_batch` has for all rows."""


_Column = RowStore | list[Any]
"""One argument or field of all rows: numbers in a store, or objects in a list."""


class BatchBuilder:
    """Collects rollouts as they arrive, for a batch that is then built at once.

    Rows are unboxed when they are added: a token takes 4 bytes instead of the 36 and more of a
    Python int in a list, and when the last rollout is in, the batch is a copy of arrays. Any
    thread may add rows. A builder belongs to its process: it cannot be pickled.

    Parameters
    ----------
    pad_token_id, merge, position_ids, labels, rows, layout, pack, shift, tail, pad_to, \
    pad_to_multiple_of, max_prompt_len, max_response_len, max_seq_len, dtypes, array_type, pool, \
    pin_memory
        As :func:`fastcollate.build_batch`. To be merged, turns of a trajectory are added one after
        the other.

    Raises
    ------
    ValueError, TypeError
        As there, for options that cannot be.

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

    def __init__(
        self,
        *,
        pad_token_id: int,
        merge: Literal["exact", "branch", "realign"] | MergePlan | None = None,
        position_ids: Literal["zero", "one", "repeat_last"] | None = None,
        labels: Literal["aligned", "shifted"] | None = None,
        rows: Literal["single"] | None = None,
        layout: Literal["left", "two_segment", "right", "jagged", "packed"] = "left",
        pack: PackArgument = None,
        shift: Shift = "none",
        tail: Tail = "extra_segment",
        pad_to: int | None = None,
        pad_to_multiple_of: int = 1,
        max_prompt_len: int | None = None,
        max_response_len: int | None = None,
        max_seq_len: int | None = None,
        dtypes: Literal["reference", "compact"] | Mapping[str, Any] = "reference",
        array_type: Literal["torch", "numpy"] = "torch",
        pool: PoolArgument = "default",
        pin_memory: bool = False,
    ) -> None:
        self._options: dict[str, Any] = {
            "pad_token_id": pad_token_id,
            "merge": merge,
            "position_ids": position_ids,
            "labels": labels,
            "rows": rows,
            "layout": layout,
            "pack": pack,
            "shift": shift,
            "tail": tail,
            "pad_to": pad_to,
            "pad_to_multiple_of": pad_to_multiple_of,
            "max_prompt_len": max_prompt_len,
            "max_response_len": max_response_len,
            "max_seq_len": max_seq_len,
            "dtypes": dtypes,
            "array_type": array_type,
            "pool": pool,
            "pin_memory": pin_memory,
        }
        check_options(**self._options)
        _, self._dtypes = taken_apart(dtypes)
        self._lock = threading.Lock()
        self._prompts, self._responses = RowStore(), RowStore()
        self._columns: dict[str, _Column] = {}
        self._fields: dict[str, tuple[FieldKind, _Column]] = {}

    def add(
        self,
        prompt: Any,
        response: Any,
        *,
        rewards: Any = None,
        loss_mask: Any = None,
        logprobs: Any = None,
        fields: Mapping[str, Field | PerRow | RoutedExperts] | None = None,
        uid: Any = None,
        trajectory_id: Any = None,
        is_last_step: bool | None = None,
    ) -> None:
        """Add a row. It is copied, so what it came in may change afterwards.

        Parameters
        ----------
        prompt, response
            Token ids, in any form that a row of :func:`fastcollate.build_batch` may have.
        rewards
            One number per response token, or one for the row.
        loss_mask, logprobs
            One number per response token.
        fields
            More fields by their keys, each an object as for ``build_batch`` that holds this row
            alone: ``{"advantages": fc.Field([0.5, 0.5])}``, ``{"reward_id": fc.PerRow(3)}``.
        uid, trajectory_id, is_last_step
            Kept per row.

        Raises
        ------
        ValueError, TypeError
            As ``build_batch``, naming the row by its place in the batch; also if the first row came
            with other fields than this one. The builder is as it was before then.
        """
        index = len(self._prompts)
        prompt = pack_ids("prompts", prompt, index)
        response = pack_ids("responses", response, index)
        values: dict[str, Any] = {}
        if loss_mask is not None:
            values["loss_mask"] = self._typed(LOSS_MASK).pack(loss_mask, index)
        if rewards is not None:
            values["rewards"] = _packed_rewards(self._typed(REWARDS), rewards, index)
        if logprobs is not None:
            values["logprobs"] = self._typed(LOGPROBS).pack(logprobs, index)
        for name, one in values.items():
            _check_len(_ARGUMENTS.get(name, name), index, one, response)
        if uid is not None:
            values["uid"] = uid
        if trajectory_id is not None:
            values["trajectory_id"] = trajectory_id
        if is_last_step is not None:
            check_bool("is_last_step", is_last_step)
            values["is_last_step"] = is_last_step
        given = {
            key: (kind_of(one), self._packed_field(key, one, index, prompt, response))
            for key, one in (fields or {}).items()
        }
        with self._lock:
            if len(self._prompts) == 0:
                self._start(values, given)
            self._check_like_first(values, given)
            self._prompts.append(prompt)
            self._responses.append(response)
            for name, value in values.items():
                self._columns[name].append(value)
            for key, (_, value) in given.items():
                self._fields[key][1].append(value)

    def finish(self, out: Batch | None = None) -> Batch:
        """Build the batch of all rows, and start anew.

        Parameters
        ----------
        out
            A batch whose memory to take over, as for :func:`fastcollate.build_batch`.

        Returns
        -------
        Batch
            What one call of ``build_batch`` would give for the same rows.

        Raises
        ------
        ValueError, TypeError
            As ``build_batch``, for an empty batch or rows that exceed fixed widths, for instance.
            The rows are kept then; :meth:`clear` forgets them.
        """
        return self._build_by(build_batch, out=out, **self._options)

    def clear(self) -> None:
        """Forget all rows. Their memory is kept for the next ones, as :meth:`finish` does."""
        with self._lock:
            self._clear()

    def __len__(self) -> int:
        """Return the number of rows that were added since the last batch."""
        return len(self._prompts)

    def __repr__(self) -> str:
        with self._lock:
            rows, tokens = len(self._prompts), self._prompts.tokens + self._responses.tokens
        return f"BatchBuilder of {counted(rows, 'row')}, {counted(tokens, 'token')}"

    def _build_by(self, build: Callable[..., T], **options: Any) -> T:
        """Let a function build something of all rows, which it gets as `build_batch` does.

        Rows are views of memory that the next ones are written to.
        """
        with self._lock:
            columns = {
                _ARGUMENTS.get(name, name): _rows(column) for name, column in self._columns.items()
            }
            if isinstance(columns.get("rewards"), list):
                columns["rewards"] = np.array(columns["rewards"])  # of the output's floats
            fields = {
                key: kind.make(_rows(column), **kind.options)
                for key, (kind, column) in self._fields.items()
            }
            result = build(
                self._prompts.rows(),
                self._responses.rows(),
                **columns,
                fields=fields or None,
                **options,
            )
            self._clear()
        return result

    def _typed(self, spec: FieldSpec) -> FieldSpec:
        """Return how a field is read, in the dtype that its output will have."""
        dtype = self._dtypes.get(spec.key)
        return spec if dtype is None else spec.with_dtype(dtype)

    def _packed_field(
        self, key: str, one: AnyField, index: int, prompt: np.ndarray, response: np.ndarray
    ) -> Any:
        """Return one row of a field as an object of its own."""
        if isinstance(one, Field):
            row = self._typed(one.spec(key)).pack(one.rows, index)
            if one.align == "response":
                _check_len(key, index, row, response)
            elif len(row) != len(prompt) + len(response):
                raise ValueError(
                    f"{key}[{index}] has {len(row)} items, but the row has "
                    f"{len(prompt) + len(response)} tokens; pass one value per token"
                )
            return row
        if isinstance(one, RoutedExperts):
            try:
                return np.asarray(one.rows)
            except ValueError as error:
                raise ValueError(f"{key}[{index}] cannot be read: {error}") from error
        if not isinstance(one, PerRow):
            raise TypeError(
                f"{key}[{index}] is {one!r:.80}; pass fc.Field, fc.PerRow or fc.RoutedExperts"
            )
        if one.values is None:
            raise ValueError(f"{key}[{index}] is None; every row needs a value")
        return one.values.clone() if hasattr(one.values, "clone") else np.array(one.values)

    def _clear(self) -> None:
        columns = [*self._columns.values(), *(column for _, column in self._fields.values())]
        for store in (self._prompts, self._responses, *columns):
            store.clear()

    def _start(self, values: Mapping[str, Any], given: Mapping[str, tuple[FieldKind, Any]]) -> None:
        """Let the first row say what all rows have; take what is there from the last batch."""
        self._columns = {
            name: _column(name in _IDS or value.ndim == 0, self._columns.get(name))
            for name, value in values.items()
        }
        self._fields = {
            key: (kind, _column(kind.make is PerRow, self._fields.get(key, (kind, None))[1]))
            for key, (kind, _) in given.items()
        }

    def _check_like_first(
        self, values: Mapping[str, Any], given: Mapping[str, tuple[FieldKind, Any]]
    ) -> None:
        """Check that a row has what the first one has."""
        index, advice = len(self._prompts), "pass it for every row or for none"
        for known, names in ((self._columns, values), (self._fields, given)):
            for name in known:
                if name not in names:
                    raise ValueError(f"row {index} has no {name}, but row 0 has; {advice}")
            for name in names:
                if name not in known:
                    raise ValueError(f"row {index} has {name}, but row 0 has not; {advice}")
        if index > 0 and "rewards" in values:
            is_number = values["rewards"].ndim == 0
            was_number = isinstance(self._columns["rewards"], list)
            if is_number != was_number:
                kinds = ("one per response token", "one number")
                raise TypeError(
                    f"rewards[{index}] is {kinds[is_number]}, but rewards[0] is "
                    f"{kinds[was_number]}; pass either for all rows"
                )
        for key, (kind, _) in given.items():
            if kind != (first := self._fields[key][0]):
                raise ValueError(f"row {index} has {key} as {kind}, but row 0 as {first}")


def _column(holds_objects: bool, last: _Column | None) -> _Column:
    """Return a column, that of the last batch if it is of the right kind: its memory is there."""
    kind = list if holds_objects else RowStore
    return last if isinstance(last, kind) else kind()


def _rows(column: _Column) -> Any:
    """Return what `build_batch` takes."""
    return column.rows() if isinstance(column, RowStore) else column


def _packed_rewards(spec: FieldSpec, rewards: Any, index: int) -> Any:
    is_number = getattr(rewards, "ndim", None) == 0 or not hasattr(rewards, "__len__")
    return spec.pack([rewards], index)[0] if is_number else spec.pack(rewards, index)


def _check_len(name: str, index: int, row: Any, response: np.ndarray) -> None:
    if row.ndim == 0:
        if len(response) == 0:
            raise ValueError(
                f"{name}[{index}] is one number for the whole row, but responses[{index}] is "
                "empty: there is no last response token to put it on"
            )
    elif len(row) != len(response):
        raise ValueError(
            f"{name}[{index}] has {len(row)} items, but responses[{index}] has {len(response)}; "
            "pass one value per response token"
        )
