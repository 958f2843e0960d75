"""Shards as few arrays, each one of a batch's outputs or a span of it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from fastcollate.batch import Batch
from fastcollate.blocks.checking import intact
from fastcollate.common.arguments import tally
from fastcollate.common.arrays import (
    dtype_name,
    is_only_torch,
    is_tensor,
    tensor_of_bits,
    to_array,
    to_tensor,
)


class Shards(NamedTuple):
    """Serialized shards: arrays, which pickle out of band, and all else by shard."""

    arrays: list[np.ndarray]
    batches: list[tuple[bytes, bytes]]
    """Per shard, the pickles of a batch without its plan, or of a mapping, and of the plan."""


class _Piece(NamedTuple):
    """An output as items of one of the arrays; for a tensor also its dtype."""

    array: int
    start: int
    stop: int
    dtype: str | None


class _Arrays:
    """Spans of arrays; adjacent ones are joined."""

    def __init__(self) -> None:
        self._spans: list[tuple[np.ndarray, int, int]] = []
        self._ends: dict[tuple[Any, ...], int] = {}

    def add(self, source: np.ndarray, start: int, stop: int, dtype: str | None) -> _Piece:
        """Add some items of an array."""
        memory = (source.ctypes.data, source.shape, source.dtype.str)
        index = self._ends.pop((*memory, start), len(self._spans))
        if index == len(self._spans):
            self._spans.append((source, start, stop))
        source, first, _ = self._spans[index]
        self._spans[index] = (source, first, stop)
        self._ends[(*memory, stop)] = index
        return _Piece(index, start - first, stop - first, dtype)

    def arrays(self) -> list[np.ndarray]:
        """Return all spans."""
        return [source[start:stop] for source, start, stop in self._spans]


def pack_arrays(batch: Mapping[str, Any], shards: Sequence[Mapping[str, Any]]) -> Shards:
    """Return shards of a batch, or of another mapping, with their memory as separate arrays.

    Rows of shards that are contiguous in the batch are one span of its memory.
    """
    arrays = _Arrays()

    def piece(value: Any, whole: Any) -> Any:
        if isinstance(value, list):
            return [piece(one, None) for one in value]
        dtype = dtype_name(value.dtype) if is_tensor(value) else None
        if dtype is None and not isinstance(value, np.ndarray):
            return value
        array = np.ascontiguousarray(to_array(value))
        if whole is not None and type(whole) is type(value):
            whole = to_array(whole)
            if (start := _start_in(array, whole)) is not None:
                return arrays.add(whole, start, start + len(array), dtype)
        return arrays.add(array, 0, len(array), dtype)

    batches = []
    for shard in shards:
        own = shard._data if isinstance(shard, Batch) else shard
        outputs = {key: piece(value, batch.get(key)) for key, value in own.items()}
        if not isinstance(shard, Batch):
            batches.append((_pickle(outputs), _pickle(None)))
            continue
        shard._state.check_whole()
        one = shard._replace(data=outputs, made_by=None, call=None)
        batches.append((_pickle(one), _pickle(shard.plan)))
    return Shards(arrays.arrays(), batches)


def _pickle(value: Any) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _start_in(array: np.ndarray, whole: np.ndarray) -> int | None:
    """Return the item of `whole` at which `array` begins, if it is a view of it; else None."""
    are_alike = array.dtype == whole.dtype and array.shape[1:] == whole.shape[1:]
    are_dense = array.flags.c_contiguous and whole.flags.c_contiguous
    if not are_alike or not are_dense or array.size * whole.size == 0:
        return None
    start, rest = divmod(array.ctypes.data - whole.ctypes.data, whole.strides[0])
    return start if rest == 0 and 0 <= start <= len(whole) - len(array) else None


def unpack(
    shards: Shards, index: int, copy: bool, name: str = "the shard"
) -> Batch | dict[str, Any]:
    """Return a shard over the arrays' memory, or in memory of its own.

    Raises
    ------
    ValueError
        The shards are not as they were packed; the message has the `name`.
    """

    def load(pickled: Any) -> Any:
        with intact(name):
            return pickle.loads(pickled)

    def receive(value: Any) -> Any:
        if isinstance(value, list):
            return [receive(one) for one in value]
        if not isinstance(value, _Piece):
            return value
        whole = shards.arrays[value.array]
        if not value.start <= value.stop <= len(whole):
            raise ValueError(
                f"an array has {tally(len(whole), 'item')}, expected at least {value.stop:,}"
            )
        array = whole[value.start : value.stop]
        array = array.copy() if copy else array
        if value.dtype is None:
            return array
        return (
            tensor_of_bits(array, value.dtype) if is_only_torch(value.dtype) else to_tensor(array)
        )

    with intact(name):
        pickled, plan = shards.batches[index]
        batch: Batch | dict[str, Any] = pickle.loads(pickled)
        data = {key: receive(value) for key, value in batch.items()}
    if not isinstance(batch, Batch):
        return data
    # The plan is unpickled on first use: that takes most of the time.
    return batch._with_data(data, made_by=cache(partial(load, plan)))
