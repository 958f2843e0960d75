"""Pinning that fails halfway: no batch is half-made, and no memory is kept."""

import gc
from contextlib import suppress

import pytest
from interrupting import raising_at
from pinned_stand_in import INPUTS, fake_allocator, torch

import fastcollate as fc
from fastcollate.device import to_device
from fastcollate.memory import pinning
from fastcollate.testing.reference import assert_same


@pytest.fixture
def allocator():
    with fake_allocator() as allocator:
        yield allocator


def build(pool):
    return fc.build_batch(**INPUTS, pool=pool)


def is_whole(pool, allocator):
    """Check that nothing is left of a failed call, and that the next one works."""
    gc.collect()
    assert pool.live_bytes == 0
    assert all(slab() is None for slab in allocator.slabs)
    batch = build(pool)
    assert_same(batch, build("default"))
    assert pool.live_bytes > 0
    del batch
    gc.collect()
    return pool.live_bytes == 0


class Halfway(Exception):
    pass


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, Halfway])
def test_the_allocator_raises_after_it_allocated(error, allocator, monkeypatch):
    def fail(size):
        allocator(size)
        raise error

    pool = fc.memory.BufferPool(pin_memory=True, depth=1, timeout=0.01)
    with monkeypatch.context() as patch:
        patch.setattr(pinning, "allocate", fail)
        for _ in range(3):
            with pytest.raises(error):
                build(pool)
    assert len(allocator.sizes) == 3
    assert is_whole(pool, allocator)


def test_an_exception_at_any_step(allocator):
    """As a signal handler raises it, in the allocation and in what follows."""
    pool = fc.memory.BufferPool(pin_memory=True, depth=1, timeout=0.01)
    files = {pinning.__file__, to_device.__file__}
    for step in range(10_000):
        batch = None
        with (
            suppress(Halfway),  # its frames would keep the memory
            raising_at(step, Halfway(), lambda code: code.co_filename in files),
        ):
            batch = build(pool)
        if batch is not None:
            assert_same(batch, build("default"))
            break
        assert is_whole(pool, allocator), step
        allocator.slabs.clear()
    assert step > 100


@pytest.mark.parametrize(
    "memory",
    [
        lambda size: torch.zeros(size - 1, dtype=torch.uint8),
        lambda size: torch.zeros(0, dtype=torch.uint8),
        lambda size: torch.zeros(size, dtype=torch.int8),
        lambda size: torch.zeros(size, dtype=torch.int64),
        lambda size: torch.zeros(2 * size, dtype=torch.uint8)[::2],
        lambda size: torch.zeros((1, size), dtype=torch.uint8),
        lambda size: torch.zeros(1, dtype=torch.uint8).expand(size),
    ],
    ids=["short", "empty", "int8", "int64", "strided", "2-D", "expanded"],
)
def test_memory_that_is_not_as_asked_for(memory, allocator, monkeypatch):
    pool = fc.memory.BufferPool(pin_memory=True, depth=1, timeout=0.01)
    with monkeypatch.context() as patch:
        patch.setattr(pinning, "allocate", memory)
        with pytest.raises(
            (ValueError, TypeError), match=r"allocator returned|contiguous|cast|ndarray"
        ):
            build(pool)
    assert is_whole(pool, allocator)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(to_device, "pack_into"), (torch.Tensor, "copy_"), (to_device, "rebuild")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_pinning_a_batch_fails_halfway(owner, name, allocator, monkeypatch):
    batch = build("default")
    before = {key: value.clone() for key, value in batch.items()}

    def fail(*_):
        raise Halfway

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(Halfway):
            batch.pin_memory()
    gc.collect()
    assert len(allocator.sizes) == 1
    assert allocator.slabs[0]() is None
    assert_same(dict(batch), before)
    assert_same(batch.pin_memory(), batch)
