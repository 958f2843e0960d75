"""Blocks: rows stored in many processes, and shards built from the parts that they need."""

import dataclasses
import pickle
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastcollate as fc
from fastcollate.blocks.joining import joined
from fastcollate.blocks.reading import built, parts_of
from fastcollate.blocks.storing import stored
from fastcollate.testing.reference import assert_same
from fastcollate.testing.strategies import extras, trajectories

LAYOUTS = ["left", "two_segment", "right", "jagged"]
NAMES = ("uids", "trajectory_ids", "is_last_step", "is_padding")


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
    if isinstance(value, (fc.Field, fc.RoutedExperts)):
        return dataclasses.replace(value, rows=cut(value.rows, first, end))
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


def through_blocks(blocks, shard_of, options, merge=None, part_bytes=1 << 20):
    """Store blocks, join them, plan and build a shard, with everything carried in between."""
    put = [carried(stored(**columns, merge=merge, part_bytes=part_bytes)) for columns in blocks]
    step = carried(joined([table for table, _ in put], [f"worker {i}" for i in range(len(put))]))
    parts = [part for _, parts in put for part in parts]
    shard = shard_of(step)
    needed = parts_of(step, shard)
    return built(step, shard, {index: parts[index] for index in needed}, **options), len(needed)


@st.composite
def cases(draw, array_type):
    """Draw columns of trajectories, how they are merged, blocks of whole trajectories, options."""
    data = draw(trajectories(max_trajectories=5, max_turns=4, max_long_len=12))
    count = len(data.trajectory_ids)
    more = draw(extras(data.turns, array_type))
    options = {"pad_token_id": 7, "array_type": array_type}
    for name in ("position_ids", "labels"):
        if name in more:
            options[name] = more.pop(name)
    columns = {**data.turns._asdict(), **more}
    columns = {name: value for name, value in columns.items() if value is not None}
    # Those drawn for turns would be torn by trajectories.
    columns.pop("trajectory_ids", None)
    if draw(st.booleans()):
        columns["trajectory_ids"] = data.trajectory_ids
    if draw(st.booleans()) or "trajectory_ids" not in columns:
        columns["is_last_step"] = data.is_last_step
    ends = np.flatnonzero(data.is_last_step)[:-1] + 1
    chosen = draw(st.lists(st.sampled_from(ends), unique=True)) if len(ends) else []
    if "uids" in columns:  # one of each trajectory: those of a prompt follow each other
        trajectory = np.cumsum([0, *data.is_last_step[:-1]])
        columns["uids"] = [f"prompt {index // 2}" for index in trajectory.tolist()]
    merge = draw(st.sampled_from([None, "exact", "branch", "realign"]))
    return columns, merge, [0, *sorted(map(int, chosen)), count], options


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=60)
@given(data=st.data())
def test_a_shard_is_that_of_all_columns(layout, data):
    types = ["numpy"] + ["torch"] * (find_spec("torch") is not None)
    columns, merge, offsets, options = data.draw(cases(data.draw(st.sampled_from(types))))
    if layout != "jagged" and data.draw(st.booleans()):
        options["pad_to_multiple_of"] = data.draw(st.integers(1, 4))
    dp_size = data.draw(st.integers(1, 3))
    plans = []

    def shard_of(step):
        lens = step.plan.prompt_lens, step.plan.response_lens
        pads = data.draw(st.sampled_from(["copy", "synthetic"]))
        order = data.draw(st.sampled_from(["contiguous", "strided", "tokens"]))
        plan = fc.plan_step(lens, dp_size=dp_size, pad_rows=pads, shards=order)
        plans.append(plan.shard(0, data.draw(st.integers(0, dp_size - 1))))
        return plans[-1]

    blocks = split(columns, offsets)
    options |= {"layout": layout}
    batch, _ = through_blocks(
        blocks, shard_of, options, merge, data.draw(st.sampled_from([1, 64, 1 << 20]))
    )
    expected = fc.build_batch(**columns, merge=merge, rows=plans[0], **options)
    assert_same(batch, expected)
    assert batch.plan == expected.plan
    assert batch.merge_plan == expected.merge_plan
    for name in NAMES:
        assert getattr(batch, name) == getattr(expected, name), name
