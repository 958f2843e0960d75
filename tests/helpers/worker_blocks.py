"""Batches by way of the blocks of several workers."""

import dataclasses
import pickle
from itertools import pairwise

import numpy as np

import fastcollate as fc
from fastcollate.blocks import reading
from fastcollate.blocks.joining import join
from fastcollate.blocks.reading import parts_of
from fastcollate.blocks.storing import store
from fastcollate.options import Options


def carried(value):
    """Pickle and unpickle as Ray does: buffers out of band, in memory that is read-only."""
    buffers = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    # As Ray's, they are aligned to a cache line at least.
    return pickle.loads(data, buffers=[_aligned(buffer.raw()) for buffer in buffers])


def _aligned(raw):
    memory = np.zeros(raw.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    memory[start : start + raw.nbytes] = np.frombuffer(raw, np.uint8)
    return memoryview(memory[start : start + raw.nbytes]).toreadonly()


def cut(value, first, end):
    """Take items of a column or of a field."""
    if isinstance(value, fc.Field):
        if value.ragged and isinstance(value.rows, tuple):
            rows = tuple(column[first:end] for column in value.rows)
            return dataclasses.replace(value, rows=rows)
        return dataclasses.replace(value, rows=cut(value.rows, first, end))
    if isinstance(value, fc.WeightVersions):
        return dataclasses.replace(value, rows=cut(value.rows, first, end))
    if isinstance(value, (fc.RoutedExperts, fc.Captured)):
        starts = None if value.starts is None else value.starts[first:end]
        return dataclasses.replace(value, rows=cut(value.rows, first, end), starts=starts)
    if isinstance(value, fc.PerRow):
        return dataclasses.replace(value, values=cut(value.values, first, end))
    if isinstance(value, dict):
        return {key: cut(field, first, end) for key, field in value.items()}
    return value[first:end]


def split(columns, offsets):
    """Make the columns of each block."""
    return [
        {name: cut(value, first, end) for name, value in columns.items()}
        for first, end in pairwise(offsets)
    ]


def built(step, shard, parts, cp=None, **options):
    """Build a shard with unchecked options."""
    return reading.build(step, shard, parts, Options.check(**options), cp)


def through_blocks(blocks, shard_of, options, merge=None, part_bytes=1 << 20):
    """Store blocks, join them, plan and build a shard, with everything carried in between."""
    put = [carried(store(**columns, merge=merge, part_bytes=part_bytes)) for columns in blocks]
    step = carried(join([table for table, _ in put], [f"worker {i}" for i in range(len(put))]))
    parts = [part for _, parts in put for part in parts]
    shard = shard_of(step)
    needed = parts_of(step, shard)
    return built(step, shard, {index: parts[index] for index in needed}, **options), len(needed)


def field(*args, **options):
    return {"fields": {"extra": fc.Field(*args, **options)}}
