"""Balancing functions that replace ``verl.utils.seqlen_balancing``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fastcollate import _fastcollate
from fastcollate.batch import Batch
from fastcollate.common.arguments import (
    check_count,
    check_int,
    check_integer,
    id_list,
    suggests_names,
)
from fastcollate.common.arrays import describe, dtype_name, is_array, ranges_of, to_numpy
from fastcollate.compat.verl.mappings import is_tensordict, jagged_lengths, pick
from fastcollate.plan.costs import check_weights, flops_costs
from fastcollate.plan.grouping import starts_of
from fastcollate.plan.shard import shard_of_rows
from fastcollate.rows.lengths import MAX_TOKENS, Integers, check_lengths

NEVER = 1 << 62
"""A number of micro-batches that is never reached."""

DEVICES = {"nccl": "cuda", "hccl": "npu", "xccl": "xpu"}
"""The device type that each ``torch.distributed`` backend needs for its tensors."""


MAX_PARTS = 1 << 24
"""Most parts: each is a list, even if empty."""


@suggests_names
def calculate_workload(seqlen_list: Any) -> Any:
    """Estimate the relative cost of sequences of L tokens: ``24576 * L + L**2``.

    Parameters
    ----------
    seqlen_list
        Lengths: a tensor or array of any shape, or a number.

    Returns
    -------
    Tensor, array or number
        The costs, of the type, shape, dtype and device of `seqlen_list`.

    Raises
    ------
    TypeError
        `seqlen_list` is of another type than above.

    Notes
    -----
    ``verl.utils.seqlen_balancing.calculate_workload`` of verl 0.9.1. Integers wrap around as there:
    pass int64 lengths, as verl does.
    """
    if not (is_array(seqlen_list) or isinstance(seqlen_list, (int, float, np.number))):
        raise TypeError(f"seqlen_list is {describe(seqlen_list)}; pass a tensor or an array")
    return 24576 * seqlen_list + seqlen_list**2


@suggests_names
def karmarkar_karp(seqlen_list: Any, k_partitions: int, equal_size: bool) -> list[list[int]]:
    """Partition numbers into parts of about equal sums, by the largest differencing method.

    Parameters
    ----------
    seqlen_list
        N finite, non-negative numbers, such as lengths or workloads: a list, a tensor or an array
        (N,).
    k_partitions
        Number of parts.
    equal_size
        If True, all parts have N / `k_partitions` items.

    Returns
    -------
    list[list[int]]
        The indices of each part, in the order in which they were added; parts by descending sum.
        Without `equal_size`, parts are empty if there are too few numbers.

    Raises
    ------
    AssertionError
        With `equal_size`, `k_partitions` does not divide N.
    IndexError
        There are no numbers, or `k_partitions` is below 1.
    ZeroDivisionError
        `k_partitions` is 0, with `equal_size`.
    ValueError
        A number is negative or not finite, which verl does not check.
    TypeError
        An argument is of another type than above.

    Notes
    -----
    ``verl.utils.seqlen_balancing.karmarkar_karp`` of verl 0.9.1, the same indices in the same
    order. Numbers of a tensor or array are added in its dtype, as in verl, except integers, which
    are added exactly, and 16-bit floats, which are added in float32.
    """
    weights = check_weights("seqlen_list has", seqlen_list, "item")
    if k_partitions > MAX_PARTS:
        raise ValueError(f"k_partitions is {k_partitions}; pass at most {MAX_PARTS}")
    return _parts(weights, k_partitions, equal_size, "grown")


@suggests_names
def get_seqlen_balanced_partitions(
    seqlen_list: Any, k_partitions: int, equal_size: bool
) -> list[list[int]]:
    """Partition numbers as :func:`karmarkar_karp`, into non-empty parts.

    Parameters
    ----------
    seqlen_list, k_partitions, equal_size
        As in :func:`karmarkar_karp`.

    Returns
    -------
    list[list[int]]
        The indices of each part, ascending; parts by descending sum.

    Raises
    ------
    AssertionError
        There are fewer numbers than parts; or as in :func:`karmarkar_karp`.
    IndexError, ZeroDivisionError, ValueError, TypeError
        As in :func:`karmarkar_karp`.

    Notes
    -----
    ``verl.utils.seqlen_balancing.get_seqlen_balanced_partitions`` of verl 0.9.1.
    """
    weights = check_weights("seqlen_list has", seqlen_list, "item")
    k = check_integer("k_partitions", k_partitions, "a number of parts")
    if len(weights) < k:
        raise AssertionError(
            f"seqlen_list has {len(weights)} items, but k_partitions is {k}; pass at most "
            f"{len(weights)} as k_partitions"
        )
    return _parts(weights, k, equal_size, "karmarkar_karp")


@suggests_names
def get_group_balanced_partitions(
    seqlen_list: Any, uid_list: Any, k_partitions: int
) -> list[list[int]]:
    """Partition rows by cost into parts with the same number of prompt groups, which stay whole.

    Parameters
    ----------
    seqlen_list
        The tokens of N rows: a list, a tensor or an array of integers (N,).
    uid_list
        N ids: consecutive rows with equal ids are a group.
    k_partitions
        Number of parts.

    Returns
    -------
    list[list[int]]
        The rows of each part, ascending; parts by descending cost, the sum of
        ``24576 * L + L * L`` over rows of L tokens.

    Raises
    ------
    AssertionError
        `seqlen_list` and `uid_list` have different lengths; there are fewer groups than parts, or
        `k_partitions` does not divide their number.
    IndexError, ZeroDivisionError
        As in :func:`karmarkar_karp`.
    ValueError
        A length is negative or above 2**31, which verl does not check.
    TypeError
        An argument is of another type than above.

    Notes
    -----
    ``verl.utils.seqlen_balancing.get_group_balanced_partitions`` of verl 0.9.1. An id that recurs
    after another begins a new group, as in verl.
    """
    lengths, uids = check_lengths("seqlen_list", seqlen_list), id_list("uid_list", uid_list)
    k = check_integer("k_partitions", k_partitions, "a number of parts")
    if len(lengths) != len(uids):
        raise AssertionError(
            f"seqlen_list has {len(lengths)} items, but uid_list has {len(uids)}; "
            "pass one of each per row"
        )
    starts = starts_of("uid_list", uids)
    if len(starts) < k:
        raise AssertionError(
            f"uid_list has {len(starts)} groups, but k_partitions is {k}; pass at most "
            f"{len(starts)} as k_partitions"
        )
    sizes = np.diff(starts, append=len(uids))
    costs = np.add.reduceat(flops_costs(lengths), starts) if len(starts) > 0 else lengths
    parts = get_seqlen_balanced_partitions(costs, k, True)
    return [ranges_of(starts[part], sizes[part]).tolist() for part in parts]


def _parts(weights: Any, k_partitions: Any, equal_size: Any, algorithm: str) -> list[list[int]]:
    k = check_integer("k_partitions", k_partitions, "a number of parts")
    if equal_size and len(weights) % k != 0:
        raise AssertionError(
            f"seqlen_list has {len(weights)} items, which k_partitions={k} does not divide; "
            "pass a divisor of that as k_partitions, or equal_size=False"
        )
    if k < 1 or len(weights) == 0:
        raise IndexError(
            f"seqlen_list has {len(weights)} items, and k_partitions is {k}; "
            "pass at least one item and k_partitions of 1 or more"
        )
    return _fastcollate.lists_of(*_fastcollate.partition(weights, k, algorithm, bool(equal_size)))


@suggests_names
def rearrange_micro_batches(
    batch: Any,
    max_token_len: int,
    dp_group: Any | None = None,
    num_batches_divided_by: int | None = None,
    same_micro_num_in_dp: bool = True,
    min_num_micro_batch: int | None = None,
    use_dynamic_bsz_balance: bool = True,
    force_group_size: int = 1,
) -> tuple[list[Any], list[list[int]]]:
    """Split a rank's batch into micro-batches of about equal cost within a token limit.

    Takes the smallest number of micro-batches for which a Karmarkar-Karp partition by the cost
    ``24576 * L + L * L`` of rows of L tokens has at most `max_token_len` tokens in each.

    Parameters
    ----------
    batch
        N rows: a TensorDict, a dict, or a :class:`fastcollate.Batch`. The first two have either
        ``input_ids``, a jagged nested tensor or a :class:`fastcollate.Ragged`, or
        ``attention_mask`` ``(N, S)``, a tensor or an array of integers or bools.
    max_token_len
        Most tokens of a micro-batch.
    dp_group
        The ``torch.distributed`` group of data-parallel ranks. All of them must call this.
    num_batches_divided_by
        The number of micro-batches is a multiple of this.
    same_micro_num_in_dp
        If True, all ranks of the group get the same number of micro-batches.
    min_num_micro_batch
        Least number of micro-batches.
    use_dynamic_bsz_balance
        If True, the cheapest micro-batches come at both ends; else they keep the order of the
        partition, the costliest first.
    force_group_size
        Number of consecutive rows that stay together.

    Returns
    -------
    micro_batches : list
        Of the type of `batch`. In a TensorDict or dict, arrays, tensors (nested ones as jagged),
        ``Ragged`` and, in a dict, lists with N items have the items of the micro-batch's rows;
        other values stay unchanged. Micro-batches of a Batch are made by its ``select``.
    indices : list[list[int]]
        The rows of each micro-batch, ascending.

    Raises
    ------
    AssertionError
        `max_token_len` is less than the width S, or, without one, than the longest row; N is no
        multiple of `force_group_size`.
    ValueError
        There are no rows, or too few for the number of micro-batches; rows that stay together have
        more tokens than `max_token_len`; `num_batches_divided_by` or `force_group_size` is below 1;
        the sum of a row of ``attention_mask`` is negative or above 2**31; another rank of the group
        raised an error for its batch.
    TypeError
        An argument is of another type than above.

    Notes
    -----
    ``verl.utils.seqlen_balancing.rearrange_micro_batches`` of verl 0.9.1. There, ranks of a group
    hang if one of them rejects its batch; here they communicate less often, so all ranks must use
    the same implementation.
    """
    limit = check_integer("max_token_len", max_token_len, "a number of tokens")
    group_size = check_count("force_group_size", force_group_size, "a number of rows")
    step, least = 1, 1
    if num_batches_divided_by is not None:
        step = check_count("num_batches_divided_by", num_batches_divided_by, "a number")
    if min_num_micro_batch is not None:
        least = check_int("min_num_micro_batch", min_num_micro_batch, "a number")
    ranks = _Ranks(dp_group if same_micro_num_in_dp else None)
    try:
        lengths = _parse_rows(batch, limit, group_size)
    except Exception:
        ranks.most(1, 0, 0, 0)
        raise
    num_rows = len(lengths)

    costs = flops_costs(lengths).reshape(-1, group_size).sum(1)
    lengths = lengths.reshape(-1, group_size).sum(1)
    num_groups = len(lengths)
    needed = max(1, least, -(-int(lengths.sum()) // max(limit, 1)))
    is_refused, needed, longest, fewest = ranks.most(0, needed, int(lengths.max()), -num_groups)
    count, fewest = -(-needed // step) * step, -fewest
    if is_refused:
        raise ValueError("another rank of dp_group raised an error for its batch; see that error")
    if longest > limit:
        raise ValueError(
            f"{group_size} rows that stay together have {longest} tokens, which exceeds "
            f"max_token_len={limit}; pass a larger max_token_len, or a smaller force_group_size"
        )
    order = (1, "small_ends") if use_dynamic_bsz_balance else None
    while True:
        if count > fewest:
            found_needed = f"{count} micro-batches" if count < NEVER else "more micro-batches"
            raise ValueError(
                f"max_token_len={limit} needs {found_needed}, but a rank can fill only {fewest}, "
                f"with {group_size} of its rows in each; pass a larger max_token_len, or more rows"
            )
        found = _fastcollate.split_micro_batches(costs, lengths, limit, count, step, True, order)
        own = NEVER if found is None else len(found[0]) - 1
        count, least = ranks.most(own, -own)
        if found is not None and count == -least:
            break
    offsets, groups = found
    rows = (groups[:, None] * group_size + np.arange(group_size)).reshape(-1)
    indices = _fastcollate.lists_of(offsets * group_size, rows)
    return _micro_batches(batch, num_rows, indices), indices


def _parse_rows(batch: Any, limit: int, group_size: int) -> Integers:
    """Return the tokens of each row, without communicating."""
    lengths, longest = _lengths(batch)
    num_rows = len(lengths)
    if num_rows == 0:
        raise ValueError("batch has no rows; pass at least one")
    if limit < longest:
        raise AssertionError(
            f"max_token_len is {limit}, but the batch has a width of {longest}; pass at least "
            f"{longest}"
        )
    if num_rows % group_size != 0:
        raise AssertionError(
            f"batch has {num_rows} rows, which force_group_size={group_size} does not divide; pass "
            f"a multiple of {group_size} rows"
        )
    return lengths


class _Ranks:
    """The ranks that must agree."""

    def __init__(self, group: Any | None) -> None:
        self.group = None
        if group is not None:
            from torch import distributed

            self.group = group if distributed.is_initialized() else None

    def most(self, *numbers: int) -> list[int]:
        """Return the elementwise maximum over all ranks."""
        if self.group is None:
            return list(numbers)
        import torch
        from torch import distributed

        backend = str(distributed.get_backend(self.group))
        device = DEVICES.get(backend, "cpu")
        tensor = torch.tensor(numbers, dtype=torch.int64, device=device)
        distributed.all_reduce(tensor, distributed.ReduceOp.MAX, self.group)
        return list(map(int, tensor.tolist()))


def _lengths(batch: Any) -> tuple[Integers, int]:
    """Return the tokens of each row, and the width."""
    if isinstance(batch, Batch):
        lengths = batch.plan.prompt_lens + batch.plan.response_lens
        return lengths, int(lengths.max(initial=0))
    if not (is_tensordict(batch) or isinstance(batch, Mapping)):
        raise TypeError(f"batch is {describe(batch)}; pass a TensorDict, a dict or a Batch")
    ids = batch["input_ids"]
    if hasattr(ids, "offsets"):
        is_nested = getattr(ids, "is_nested", False)
        lengths = jagged_lengths(ids) if is_nested else check_lengths("lengths", ids.lengths)
        return lengths, int(lengths.max(initial=0))
    mask = batch["attention_mask"]
    if not is_array(mask) or mask.ndim != 2:
        raise TypeError(f"attention_mask is {describe(mask)}; pass one of shape (rows, tokens)")
    if not dtype_name(mask.dtype).startswith(("int", "uint", "bool")):
        raise TypeError(f"attention_mask is {describe(mask)}; pass integers or bools")
    lengths = np.asarray(to_numpy(mask.sum(1))).astype(np.int64)
    if (row := _fastcollate.first_no_length(lengths, MAX_TOKENS)) is not None:
        raise ValueError(
            f"attention_mask[{row}] has the sum {lengths[row]}; pass 1 for tokens and 0 for padding"
        )
    return lengths, int(mask.shape[1])


def _micro_batches(batch: Any, num_rows: int, indices: list[list[int]]) -> list[Any]:
    if isinstance(batch, Batch):
        return batch._select([shard_of_rows(np.array(rows), num_rows) for rows in indices])
    return [pick(batch, num_rows, rows) for rows in indices]
