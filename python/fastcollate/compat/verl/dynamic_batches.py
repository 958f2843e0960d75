"""Micro-batches of DataProtos, in place of ``verl.utils.seqlen_balancing``."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from fastcollate.common.arguments import check_integer, suggests_names
from fastcollate.common.arrays import describe, is_array
from fastcollate.compat.verl.mappings import pick_rows
from fastcollate.compat.verl.seqlen_balancing import rearrange_micro_batches
from fastcollate.rows.columns import Ragged
from fastcollate.rows.lengths import Integers

PARTS = ("batch", "non_tensor_batch", "meta_info", "from_dict")
"""Attributes of a DataProto."""


@suggests_names
def prepare_dynamic_batch(
    data: Any,
    max_token_len: int,
    dp_group: Any | None = None,
    num_batches_divided_by: int | None = None,
    same_micro_num_in_dp: bool = True,
    min_num_micro_batch: int | None = None,
    use_dynamic_bsz_balance: bool = True,
) -> tuple[list[Any], list[list[int]]]:
    """Split a rank's batch into micro-batches of about equal cost within a token limit.

    Parameters
    ----------
    data
        N rows: a DataProto, or another object with its ``batch``, ``non_tensor_batch``,
        ``meta_info`` and ``from_dict``; or a batch as in :func:`rearrange_micro_batches`.
    max_token_len
        Most tokens of a micro-batch.
    dp_group, num_batches_divided_by, same_micro_num_in_dp
        As in :func:`rearrange_micro_batches`.
    min_num_micro_batch, use_dynamic_bsz_balance
        As in :func:`rearrange_micro_batches`.

    Returns
    -------
    micro_batches : list
        Of the type of `data`. In a DataProto, ``batch`` and ``non_tensor_batch`` have the
        micro-batch's rows, and ``meta_info`` is a deep copy.
    indices : list[list[int]]
        The rows of each micro-batch, ascending.

    Raises
    ------
    AssertionError, ValueError, TypeError
        As in :func:`rearrange_micro_batches`.

    Notes
    -----
    ``verl.utils.seqlen_balancing.prepare_dynamic_batch`` of verl 0.9.1.
    """
    is_data_proto = all(hasattr(data, name) for name in PARTS)
    micro_batches, indices = rearrange_micro_batches(
        data.batch if is_data_proto else data,
        max_token_len,
        dp_group=dp_group,
        num_batches_divided_by=num_batches_divided_by,
        same_micro_num_in_dp=same_micro_num_in_dp,
        min_num_micro_batch=min_num_micro_batch,
        use_dynamic_bsz_balance=use_dynamic_bsz_balance,
    )
    if not is_data_proto:
        return micro_batches, indices
    found = [
        type(data).from_dict(
            dict(micro_batch),
            {key: value[rows] for key, value in data.non_tensor_batch.items()},
            meta_info=copy.deepcopy(data.meta_info),
        )
        for micro_batch, rows in zip(micro_batches, indices, strict=True)
    ]
    return found, indices


@suggests_names
def restore_dynamic_batch(data: Any, batch_idx_list: Sequence[Iterable[int]]) -> Any:
    """Return rows to the order that they had before :func:`prepare_dynamic_batch`.

    Parameters
    ----------
    data
        The rows of all micro-batches, one micro-batch after another: a tensor (N, ...), a nested
        tensor, an array or a :class:`fastcollate.Ragged`.
    batch_idx_list
        The rows of each micro-batch, as :func:`prepare_dynamic_batch` returns them.

    Returns
    -------
    Tensor, array or Ragged
        As `data`; nested tensors as jagged ones. Gradients flow.

    Raises
    ------
    AssertionError
        `batch_idx_list` has more or fewer rows than `data`.
    IndexError
        A row is not below N.
    ValueError
        A row is missing, which verl does not check.
    TypeError
        An argument is of another type than above.

    Notes
    -----
    ``verl.utils.seqlen_balancing.restore_dynamic_batch`` of verl 0.9.1. Nested tensors keep their
    ragged dimension always; verl leaves that to torch, which takes the first where all rows have
    the same shape.
    """
    if not (is_array(data) or isinstance(data, Ragged)):
        raise TypeError(f"data is {describe(data)}; pass a tensor, an array or a Ragged")
    rows = [
        check_integer("batch_idx_list", row, "lists of row numbers")
        for row in chain.from_iterable(batch_idx_list)
    ]
    count = len(data) if isinstance(data, Ragged) else data.shape[0]
    if len(rows) != count:
        raise AssertionError(
            f"batch_idx_list has {len(rows)} rows, but data has {count}; pass the joined outputs "
            "of all its micro-batches as data"
        )
    return pick_rows(data, _inverse(rows))


def _inverse(rows: list[int]) -> Integers:
    """Return the place of each row."""
    places = np.full(len(rows), -1)
    if (wrong := next((row for row in rows if not 0 <= row < len(rows)), None)) is not None:
        raise IndexError(
            f"batch_idx_list has row {wrong}, but there are {len(rows)}; "
            f"pass rows from 0 to {len(rows) - 1}"
        )
    places[rows] = np.arange(len(rows))
    if (places < 0).any():
        raise ValueError(
            f"row {int(np.argmin(places))} is missing in batch_idx_list; pass each row once"
        )
    return places
