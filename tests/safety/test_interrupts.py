"""Ctrl-C ends long plans at once, however many sequences there are."""

import gc
from functools import cache, partial

import numpy as np
import pytest
from interrupting import NEEDS_TIMERS, longest_wait, time_after_signal

import fastcollate as fc

pytestmark = NEEDS_TIMERS

LENGTHS = np.random.default_rng(0).lognormal(6.5, 1, 3_000_000).clip(1, 16_384).astype(np.int64)
MANY = np.tile(LENGTHS, 2)


@cache
def rows():
    """Give many rows, of which some begin alike."""
    return np.random.default_rng(0).integers(0, 50, (400_000, 8), np.int32)


@cache
def tree():
    """Give the plan of as many rows, each of which shares half with the one before it."""
    shared = np.minimum(LENGTHS[1:], LENGTHS[:-1]) // 2
    return fc.planning.TreePlan(
        np.arange(len(LENGTHS)), np.append(0, shared), LENGTHS, np.zeros_like(LENGTHS)
    )


@cache
def chunks():
    """Give an Arrow column of many arrays."""
    pa = pytest.importorskip("pyarrow")
    return pa.chunked_array([pa.array([[1, 2]])] * 600_000)


def build(kind):
    """Build 600 million tokens, all of one object; the signal comes before most are written."""
    prompts = [kind([1] * 200_000)] * 3000
    fc.build_batch(prompts, [[1]] * 3000, pad_token_id=0, array_type="numpy")


LONG = {
    "build_batch of lists": lambda: build(list),
    "build_batch of arrays": lambda: build(np.array),
    "arrays of Arrow": lambda: fc.ragged(chunks()),
    "prefix_tree": lambda: fc.planning.prefix_tree(rows(), rows()),
    "pack a tree": lambda: tree().pack(fc.Tree(16_384)),
    "pack many trees": lambda: tree().pack(fc.Tree(16_384, min_bins=2_000_000)),
    "select": lambda: tree().select(np.arange(0, len(LENGTHS), 2)),
    "karmarkar_karp": lambda: fc.planning.partition(LENGTHS, 8),
    "many parts": lambda: fc.planning.partition(LENGTHS, 100_000),
    "float": lambda: fc.planning.partition(LENGTHS.astype(np.float32), 8),
    "equal_size": lambda: fc.planning.partition(LENGTHS, 8, equal_size=True),
    "lpt": lambda: fc.planning.partition(LENGTHS, 100_000, algorithm="lpt"),
    "lpt_swap": lambda: fc.planning.partition(LENGTHS, 2, algorithm="lpt_swap"),
    "plan_step": lambda: fc.plan_step(LENGTHS, dp_size=64, shard_by="flops"),
    "micro_batches": lambda: fc.planning.micro_batches(LENGTHS, 16_384, 8),
    "concat": lambda: fc.planning.pack(
        MANY, fc.Packed(16_384, algorithm="concat", oversize="split")
    ),
    "spread": lambda: fc.planning.pack(MANY, fc.Packed(16_384, min_bins=15_000_000)),
    **{
        algorithm: partial(
            fc.planning.pack, MANY, fc.Packed(16_384, algorithm=algorithm, oversize="own_bin")
        )
        for algorithm in ("ff", "ffd", "bfd", "mffd", "next_fit", "balanced")
    },
    "max_cost": lambda: fc.planning.pack(
        MANY, fc.Packed(16_384, algorithm="bfd", oversize="own_bin", max_cost=1e10)
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_a_signal_ends_the_call(name):
    waited = time_after_signal(LONG[name], 0.1, Interrupt)
    # Under 0.2 seconds where nothing else runs.
    assert waited < 1


class Interrupt(Exception):
    """Raised by the handler."""


@cache
def of_one_token(rows):
    """Give prompts and responses of one token each."""
    column = fc.Ragged(np.arange(rows, dtype=np.int32), np.arange(rows + 1))
    return column, column


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        lambda: fc.planning.pack(MANY, fc.Packed(512, oversize="split")),
        lambda: fc.planning.pack(MANY, fc.Packed(1 << 17), keep_together=np.arange(len(MANY)) // 4),
        lambda: fc.planning.partition(MANY, 64, algorithm="lpt"),
        lambda: fc.planning.partition(MANY, 1_500_000),
        lambda: fc.plan_step(MANY, dp_size=4, layout=fc.Packed(16_384)),
        lambda: fc.plan_step(MANY, dp_size=4, uids=list(map(str, range(len(MANY))))),
        lambda: fc.build_batch(*of_one_token(1_000_000), pad_token_id=0, array_type="numpy"),
    ],
    ids=[
        "pack, split",
        "pack, groups",
        "partition",
        "parts",
        "plan_step, packed",
        "plan_step, ids",
        "build_batch",
    ],
)
def test_signals_are_handled_all_along(call):
    assert any(longest_wait(call) < 0.25 for _ in range(3))


@pytest.mark.parametrize("is_on", [True, False])
def test_many_parts_leave_the_collector_as_it_is(is_on):
    frozen = gc.get_freeze_count()
    (gc.enable if is_on else gc.disable)()
    try:
        assert len(fc.planning.partition(LENGTHS[:300_000], 300_000)) == 300_000
        assert gc.isenabled() == is_on
        # Of the frozen objects, some may be dropped.
        assert (gc.get_freeze_count() > 0) == (frozen > 0)
    finally:
        gc.enable()
