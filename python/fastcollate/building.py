"""Batches of rollouts that arrive one by one."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fastcollate._fastcollate import pack_ids
from fastcollate.arguments import counted
from fastcollate.batch import Batch
from fastcollate.collating import LOGPROBS, LOSS_MASK, REWARDS, build_batch, check_options
from fastcollate.fields import Field, PerRow, RoutedExperts
from fastcollate.memory import PoolArgument

AnyField = Field | PerRow | RoutedExperts


_ARGUMENTS = {"loss_mask": "loss_masks", "uid": "uids", "trajectory_id": "trajectory_ids"}
"""Names of `add` that `build_batch` has for all rows."""


@dataclass
class _Rows:
    """Rows that were added. Every column has one item for each."""

    prompts: list[np.ndarray] = field(default_factory=list)
    responses: list[np.ndarray] = field(default_factory=list)
    columns: dict[str, list[Any]] = field(default_factory=dict)
    """By the names of `add`'s arguments, and by the keys of extra fields."""
    fields: dict[str, AnyField] = field(default_factory=dict)
    """The extra fields of the first row."""


class BatchBuilder:
    """Collects rollouts as they arrive, for a batch that is then built at once.

    Rows are unboxed when they are added: a token takes 4 bytes instead of the 36 and more of a
    Python int in a list, and when the last rollout is in, the batch is a copy of arrays. Any
    thread may add rows. A builder belongs to its process: it cannot be pickled.

    Parameters
    ----------
    pad_token_id, position_ids, labels, layout, pad_to, pad_to_multiple_of, max_prompt_len, \
    max_response_len, max_seq_len, dtypes, array_type, pool
        As :func:`fastcollate.build_batch`.

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
        position_ids: Literal["zero", "one", "repeat_last"] | None = None,
        labels: Literal["aligned", "shifted"] | None = None,
        layout: Literal["left", "two_segment", "right", "jagged"] = "left",
        pad_to: int | None = None,
        pad_to_multiple_of: int = 1,
        max_prompt_len: int | None = None,
        max_response_len: int | None = None,
        max_seq_len: int | None = None,
        dtypes: Literal["reference", "compact"] | Mapping[str, Any] = "reference",
        array_type: Literal["torch", "numpy"] = "torch",
        pool: PoolArgument = "default",
    ) -> None:
        self._options: dict[str, Any] = {
            "pad_token_id": pad_token_id,
            "position_ids": position_ids,
            "labels": labels,
            "layout": layout,
            "pad_to": pad_to,
            "pad_to_multiple_of": pad_to_multiple_of,
            "max_prompt_len": max_prompt_len,
            "max_response_len": max_response_len,
            "max_seq_len": max_seq_len,
            "dtypes": dtypes,
            "array_type": array_type,
            "pool": pool,
        }
        check_options(**self._options)
        self._lock = threading.Lock()
        self._rows = _Rows()

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
        uid, trajectory_id
            Kept per row.

        Raises
        ------
        ValueError, TypeError
            As ``build_batch``, naming the row by its place in the batch; also if the first row came
            with other fields than this one. The builder is as it was before then.
        """
        index = len(self._rows.prompts)
        prompt = pack_ids("prompts", prompt, index)
        response = pack_ids("responses", response, index)
        values: dict[str, Any] = {}
        if loss_mask is not None:
            values["loss_mask"] = LOSS_MASK.pack(loss_mask, index)
        if rewards is not None:
            values["rewards"] = _packed_rewards(rewards, index)
        if logprobs is not None:
            values["logprobs"] = LOGPROBS.pack(logprobs, index)
        for name, one in values.items():
            _check_len(_ARGUMENTS.get(name, name), index, one, response)
        if uid is not None:
            values["uid"] = uid
        if trajectory_id is not None:
            values["trajectory_id"] = trajectory_id
        fields = dict(fields or {})
        for key, one in fields.items():
            values[key] = _packed_field(key, one, index, prompt, response)
        with self._lock:
            rows = self._rows
            if rows.prompts:
                _check_like_first(rows, index, values, fields)
            else:
                rows.columns = {name: [] for name in values}
                rows.fields = fields
            rows.prompts.append(prompt)
            rows.responses.append(response)
            for name, value in values.items():
                rows.columns[name].append(value)

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
        with self._lock:
            rows = self._rows
            columns: dict[str, Any] = {
                _ARGUMENTS.get(name, name): values for name, values in rows.columns.items()
            }
            if columns.get("rewards") and columns["rewards"][0].ndim == 0:
                columns["rewards"] = np.array(columns["rewards"])
            fields = {key: _with_values(one, columns.pop(key)) for key, one in rows.fields.items()}
            batch = build_batch(
                rows.prompts,
                rows.responses,
                **columns,
                fields=fields or None,
                out=out,
                **self._options,
            )
            self._rows = _Rows()
        return batch

    def clear(self) -> None:
        """Forget all rows."""
        with self._lock:
            self._rows = _Rows()

    def __len__(self) -> int:
        """Return the number of rows that were added since the last batch."""
        return len(self._rows.prompts)

    def __repr__(self) -> str:
        with self._lock:
            rows = len(self._rows.prompts)
            tokens = sum(map(len, self._rows.prompts)) + sum(map(len, self._rows.responses))
        return f"BatchBuilder of {counted(rows, 'row')}, {counted(tokens, 'token')}"


def _packed_rewards(rewards: Any, index: int) -> Any:
    is_number = getattr(rewards, "ndim", None) == 0 or not hasattr(rewards, "__len__")
    return REWARDS.pack([rewards], index)[0] if is_number else REWARDS.pack(rewards, index)


def _packed_field(
    key: str, one: AnyField, index: int, prompt: np.ndarray, response: np.ndarray
) -> Any:
    """Return one row of a field as an object of its own."""
    if isinstance(one, Field):
        row = one.spec(key).pack(one.rows, index)
        if one.align == "response":
            _check_len(key, index, row, response)
        elif len(row) != len(prompt) + len(response):
            raise ValueError(
                f"{key}[{index}] has {len(row)} items, but the row has "
                f"{len(prompt) + len(response)} tokens; pass one value per token"
            )
        return row
    if isinstance(one, RoutedExperts):
        return np.array(one.rows)
    if not isinstance(one, PerRow):
        raise TypeError(
            f"{key}[{index}] is {one!r:.80}; pass fc.Field, fc.PerRow or fc.RoutedExperts"
        )
    if one.values is None:
        raise ValueError(f"{key}[{index}] is None; every row needs a value")
    return one.values.clone() if hasattr(one.values, "clone") else np.array(one.values)


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


def _check_like_first(
    rows: _Rows, index: int, values: Mapping[str, Any], fields: Mapping[str, AnyField]
) -> None:
    """Check that a row has what the first one has."""
    advice = "pass it for every row or for none"
    for name in rows.columns:
        if name not in values:
            raise ValueError(f"row {index} has no {name}, but the rows before it have; {advice}")
    for name in values:
        if name not in rows.columns:
            raise ValueError(f"row {index} has {name}, but the rows before it have not; {advice}")
    if "rewards" in values:
        found, expected = values["rewards"].ndim, rows.columns["rewards"][0].ndim
        if found != expected:
            kinds = ("one number", "one per response token")
            raise TypeError(
                f"rewards[{index}] is {kinds[found]}, but rewards[0] is {kinds[expected]}; "
                "pass either for all rows"
            )
    for key, one in fields.items():
        if _options(one) != _options(rows.fields[key]):
            raise ValueError(
                f"row {index} has {key} as {_options(one)}, but the rows before it as "
                f"{_options(rows.fields[key])}"
            )


def _options(one: AnyField) -> tuple[str, dict[str, Any]]:
    """Return all of a field but its values."""
    options = {item.name: getattr(one, item.name) for item in dataclasses.fields(one)[1:]}
    return type(one).__name__, options


def _with_values(one: AnyField, values: list[Any]) -> AnyField:
    """Return the field of all rows; its values come first."""
    return type(one)(values, **_options(one)[1])
