"""Context parallelism: each rank computes a part of each packed sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastcollate.arguments import checked_count, checked_int, counted, suggests_names
from fastcollate.arrays import (
    checked_array,
    concatenate,
    describe,
    flattened,
    is_tensor,
    places_of,
    taken,
)
from fastcollate.batch import Array, Batch


@suggests_names
def cp_split(batch: Batch[Array], cp_size: int, cp_rank: int) -> Batch[Array]:
    """Return one context-parallel rank's part of a packed batch.

    ``build_batch(cp=(cp_size, cp_rank))`` writes only this part.

    Each padded sequence, and the padding at the end of a row, is cut into ``2 * cp_size`` chunks
    of equal length. Rank r gets chunks r and ``2 * cp_size - 1 - r``, which balances causal
    attention between ranks.

    Parameters
    ----------
    batch
        In the packed layout, built with a `multiple_of` divisible by ``2 * cp_size``. With
        ``shift="next_token"`` every position holds the values of the token that it predicts, so
        that no rank needs another rank's values.
    cp_size
        Number of ranks that share a sequence; with 1 the batch is not cut.
    cp_rank
        Index of the rank.

    Returns
    -------
    Batch
        The same keys. Outputs with a value per position, (N, W, ...), become
        (N, W / cp_size, ...): the rank's two chunks of each padded sequence, in order. Others are
        unchanged, including the boundaries of whole sequences, which kernels need. The plan is
        that of the whole batch: merge results by :func:`cp_merge`, then ``gather`` them. Methods
        that read all values, such as ``to_layout`` and ``normalize``, need the whole batch.

    Raises
    ------
    ValueError
        Another layout; a padded sequence that cannot be cut into chunks; a size below 1, or an
        invalid rank; a batch that is a part already.
    TypeError
        An argument that is no batch or no integer.
    MissingPlanError
        A batch that was made from a mapping.

    Notes
    -----
    The chunks are those of Megatron-LM's and Transformer Engine's load balancing
    (``thd_get_partitioned_indices`` of ``cu_seqlens_padded``).

    Examples
    --------
    >>> batch = fc.build_batch(
    ...     [[1, 2], [5]], [[3, 4], [6]], pad_token_id=0, array_type="numpy",
    ...     layout=fc.Packed.single_row(multiple_of=4),
    ... )
    >>> batch.input_ids
    array([[1, 2, 3, 4, 5, 6, 0, 0]])
    >>> fc.parallel.cp_split(batch, 2, 0).input_ids
    array([[1, 4, 5, 0]])
    >>> fc.parallel.cp_split(batch, 2, 1).input_ids
    array([[2, 3, 6, 0]])
    """
    _check_packed(batch)
    cp_size = checked_count("cp_size", cp_size, "a number of ranks")
    cp_rank = checked_int("cp_rank", cp_rank, "a rank")
    if not 0 <= cp_rank < cp_size:
        raise ValueError(f"cp_rank is {cp_rank}; pass a rank from 0 to {cp_size - 1}")
    spec = batch.spec
    per_token = {output.key for output in spec.table if output.align in ("sequence", "response")}
    if cp_size == 1:
        return batch._with_data(dict(batch._data))
    positions = _positions_of(batch, cp_size, cp_rank)
    return batch._with_data(
        {
            key: _at(value, positions) if key in per_token else value
            for key, value in batch._data.items()
        },
        _spec=spec._replace(cp=(cp_size, cp_rank)),
        _model_mask=None,  # models take whole rows
    )


@suggests_names
def cp_merge(parts: Sequence[Any], batch: Batch) -> Any:
    """Merge per-token outputs of all context-parallel ranks.

    Parameters
    ----------
    parts
        One array or tensor (N, W / cp_size, ...) of each rank, in order, on one device. Gradients
        of tensors flow through.
    batch
        The batch that was split, or any part of it.

    Returns
    -------
    array or tensor
        (N, W, ...), in the order before :func:`cp_split`.

    Raises
    ------
    ValueError
        No parts; shapes that are not those of the batch's parts; another layout.
    TypeError
        Parts that are no arrays, or of different kinds.
    MissingPlanError
        A batch that was made from a mapping.
    """
    _check_packed(batch)
    if is_tensor(parts) or isinstance(parts, np.ndarray) or not isinstance(parts, Sequence):
        raise TypeError(f"parts is {describe(parts)}; pass a sequence of one array per rank")
    if len(parts) == 0:
        raise ValueError("parts is empty; pass one array per rank")
    parts = [checked_array(f"parts[{rank}]", part) for rank, part in enumerate(parts)]
    size = len(parts)
    per_rank = [_positions_of(batch, size, rank) for rank in range(size)]
    leading = per_rank[0].shape
    for rank, part in enumerate(parts):
        if is_tensor(part) != is_tensor(parts[0]) or part.dtype != parts[0].dtype:
            raise TypeError(
                f"parts[{rank}] is {describe(part)}, but parts[0] is {describe(parts[0])}; "
                "pass parts of one kind and dtype"
            )
        if tuple(part.shape[:2]) != leading or part.shape != parts[0].shape:
            raise ValueError(
                f"parts[{rank}] has shape {tuple(part.shape)}; pass {leading} with the same "
                f"trailing dimensions for each of {counted(len(parts), 'rank')}"
            )
    positions = np.concatenate([of_rank.ravel() for of_rank in per_rank])
    sources = np.empty_like(positions)
    sources[positions] = np.arange(len(positions))
    flat = [flattened(part, 2) for part in parts]
    return _at(concatenate(flat), sources.reshape(leading[0], -1), 1)


def _check_packed(batch: Any) -> None:
    if not isinstance(batch, Batch):
        raise TypeError(f"batch is {describe(batch)}; pass a Batch in the packed layout")
    if not batch.plan.is_packed:
        raise ValueError(
            f"the batch has layout={batch.plan.layout!r}, but context parallelism splits packed "
            "batches; build it with layout=fc.Packed(...)"
        )


def _positions_of(batch: Batch, cp_size: int, cp_rank: int) -> np.ndarray:
    """Return the flat positions in (N, W) of a rank's chunks: int64 (N, W / cp_size)."""
    plan = batch.plan
    positions = places_of(*plan.chunks(cp_size, cp_rank))
    return positions.reshape(plan.num_output_rows, plan.width // cp_size)


def _at(values: Any, positions: np.ndarray, leading: int = 2) -> Any:
    """Take values by flat positions over the leading dimensions."""
    flat = flattened(values, leading)
    return taken(flat, positions.ravel()).reshape(*positions.shape, *flat.shape[1:])
