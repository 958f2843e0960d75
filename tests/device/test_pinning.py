"""Pinned memory: the same batches, in slabs that go back to torch's allocator only.

Without an accelerator, ordinary memory is treated as pinned.
"""

import copy
import gc
import io
import logging
import pickle
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import NEEDS_FORK
from pinned_stand_in import INPUTS, fake_allocator, torch
from raising import raises

import fastcollate as fc
from fastcollate.memory import pinning
from fastcollate.testing.reference import assert_same


@pytest.fixture
def allocator():
    with fake_allocator() as allocator:
        yield allocator


def build(pool="pinned", **options):
    return fc.build_batch(**INPUTS, pool=pool, **options)


# Outputs


def test_every_dtype(allocator):
    rows = [[1, 0], [1]]
    dtypes = ["bool", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32"]
    fields = {dtype: fc.Field(rows, dtype=dtype) for dtype in dtypes}
    inputs = {"prompts": rows, "responses": rows, "pad_token_id": 0, "fields": fields}
    batch = fc.build_batch(**inputs, dtypes="compact", pool="pinned")
    assert_same(batch, fc.build_batch(**inputs, dtypes="compact"))
    assert batch["bfloat16"].dtype == torch.bfloat16


def test_packed(allocator):
    options = {"layout": fc.Packed(capacity=8)}
    batch = build(**options)
    assert_same(batch, build("default", **options))


def test_outputs_are_tensors_over_the_slab_itself(allocator):
    """torch knows copies of them by their storage; each has a version counter of its own."""
    batch = build()
    slab = allocator.slabs[0]()
    assert {tensor.untyped_storage().data_ptr() for tensor in batch.values()} == {slab.data_ptr()}
    assert all(tensor.data_ptr() % 64 == 0 for tensor in batch.values())
    assert all(tensor._base is None for tensor in batch.values())
    before = [tensor._version for tensor in batch.values()]
    batch.rewards.add_(1)
    after = [tensor._version for tensor in batch.values()]
    changed = [new - old for old, new in zip(before, after, strict=True)]
    assert dict(zip(batch, changed, strict=True)) == {**dict.fromkeys(batch, 0), "rewards": 1}


def test_an_empty_output(allocator):
    batch = fc.build_batch([[1], [2]], [[], []], pad_token_id=0, pool="pinned")
    assert batch.response_mask.shape == (2, 0)
    assert batch.input_ids.tolist() == [[1], [2]]


def test_what_makes_batches_pins_them(allocator):
    builder = fc.BatchBuilder(pad_token_id=0, pool="pinned")
    builder.add([1], [2])
    assert builder.finish().input_ids.tolist() == [[1, 2]]
    collate = fc.Collator(pad_token_id=0, pool="pinned")
    assert collate([{"prompt": [1], "response": [2]}]).input_ids.tolist() == [[1, 2]]
    assert len(allocator.sizes) == 2


def test_a_bad_number_leaves_nothing(allocator):
    pool = fc.memory.BufferPool(pin_memory=True, depth=1)
    for _ in range(3):
        with pytest.raises(TypeError, match="word"):
            fc.build_batch([["word"]], [[1]], pad_token_id=0, pool=pool)
    assert pool.live_bytes == 0
    assert all(slab() is None for slab in allocator.slabs)


def test_errors_of_shape_take_no_memory(allocator):
    with pytest.raises(ValueError, match="rewards"):
        fc.build_batch([[1]], [[2]], rewards=[[1, 2]], pad_token_id=0, pool="pinned")
    assert allocator.sizes == []


def test_pickling_a_batch_carries_each_output_once(allocator):
    batch = build()
    again = pickle.loads(pickle.dumps(batch))
    assert_same(again, batch)
    assert sum(t.untyped_storage().nbytes() for t in again.values()) == sum(
        t.nbytes for t in batch.values()
    )
    assert_same(copy.deepcopy(batch), batch)
    buffer = io.BytesIO()
    torch.save(batch, buffer)
    buffer.seek(0)
    assert_same(torch.load(buffer, weights_only=False), batch)


# The pool


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_more_batches_are_alive_than_depth(depth, allocator):
    pool = fc.memory.BufferPool(pin_memory=True, depth=depth, timeout=0.02)
    alive = [build(pool) for _ in range(depth)]
    with pytest.raises(TimeoutError, match=rf"depth={depth}\) .*larger depth"):
        build(pool)
    alive.pop()
    alive.append(build(pool))
    assert len(allocator.sizes) == depth + 1


KEEPERS = {
    "view": lambda batch: batch.input_ids[1:],
    "detached": lambda batch: batch.rewards.detach(),
    "storage": lambda batch: batch.rewards.untyped_storage(),
    "numpy": lambda batch: batch.rewards.numpy()[:1],
    "graph": lambda batch: (torch.ones(2, 3, requires_grad=True) * batch.rewards).sum(),
}


@pytest.mark.parametrize("kept", KEEPERS)
def test_a_batch_is_alive_as_long_as_anything_made_of_it(kept, allocator):
    pool = fc.memory.BufferPool(pin_memory=True, depth=1, timeout=0.01)
    batch = build(pool)
    size = pool.live_bytes
    keeper = KEEPERS[kept](batch)
    del batch
    gc.collect()
    assert pool.live_bytes == size > 0
    with pytest.raises(TimeoutError):
        build(pool)
    del keeper
    gc.collect()
    assert pool.live_bytes == 0
    build(pool)


def test_a_slab_is_never_written_again(allocator):
    """A dead slab goes back to the allocator; the next one comes from there."""
    pool = fc.memory.BufferPool(pin_memory=True, depth=1)
    for number in range(1, 4):
        batch = build(pool)
        del batch
        assert len(allocator.sizes) == number
        assert all(slab() is None for slab in allocator.slabs)


def test_waiting_ends_when_a_batch_dies(allocator):
    pool = fc.memory.BufferPool(pin_memory=True, depth=1, timeout=30)
    held = [build(pool)]
    built = []
    thread = threading.Thread(target=lambda: built.append(build(pool)))
    thread.start()
    held.clear()
    thread.join(30)
    assert len(built) == 1


def test_a_long_wait_is_logged(allocator, monkeypatch, caplog):
    monkeypatch.setattr(pinning, "REPORT_AFTER", 0.001)
    pool = fc.memory.BufferPool(pin_memory=True, depth=1, timeout=0.05)
    batch = build(pool)
    with caplog.at_level(logging.WARNING), pytest.raises(TimeoutError):
        build(pool)
    assert [record.message for record in caplog.records] == [
        "a batch waits for one of 1 pinned batch to be deleted (depth=1)"
    ]
    assert batch.input_ids is not None


def test_threads_keep_to_the_depth(allocator):
    pool = fc.memory.BufferPool(pin_memory=True, depth=2, timeout=30)
    counts = []

    def work(_):
        for _ in range(20):
            batch = build(pool)
            counts.append(len(pool._slabs.sizes()))
            assert batch.input_ids.tolist() == [[0, 1, 2, 4], [3, 5, 6, 7]]
            del batch

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(work, range(4)))
    assert max(counts) <= 2


def test_a_pool_can_be_printed_at_any_time(allocator, monkeypatch):
    """As by a signal handler, or by a finalizer that runs wherever memory is taken."""
    pool, printed = fc.memory.BufferPool(pin_memory=True), []

    def allocate(size):
        printed.append(repr(pool))
        return allocator(size)

    monkeypatch.setattr(pinning, "allocate", allocate)
    thread = threading.Thread(target=build, args=(pool,), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert printed == [
        "BufferPool(pin_memory=True, depth=2): 0 pinned batches alive, of 0 bytes, rounded up to 0"
    ]


def test_nothing_is_locked_while_memory_is_allocated(allocator, monkeypatch):
    """It takes long, and a handler of warnings may wait for another thread."""
    pool, sizes = fc.memory.BufferPool(pin_memory=True), []

    def allocate(size):
        thread = threading.Thread(target=lambda: sizes.append(pool.live_bytes), daemon=True)
        thread.start()
        thread.join(30)
        return allocator(size)

    monkeypatch.setattr(pinning, "allocate", allocate)
    build(pool)
    assert sizes == [0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupt_takes_no_place(error, allocator, monkeypatch):
    pool = fc.memory.BufferPool(pin_memory=True, depth=1, timeout=5)

    def allocate(size):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(pinning, "allocate", allocate)
        for _ in range(3):
            with pytest.raises(error):
                build(pool)
    build(pool)


def test_a_place_is_taken_while_memory_is_allocated(allocator, monkeypatch):
    pool = fc.memory.BufferPool(pin_memory=True, depth=1, timeout=0.01)

    def allocate(size):
        monkeypatch.setattr(pinning, "allocate", allocator)
        with pytest.raises(TimeoutError, match="1 pinned batch of the pool"):
            build(pool)
        return allocator(size)

    monkeypatch.setattr(pinning, "allocate", allocate)
    build(pool)


def test_rounding_is_shown(allocator):
    pool = fc.memory.BufferPool(pin_memory=True)
    batch = build(pool, labels="aligned")
    size = allocator.sizes[0]
    assert size & (size - 1)  # no power of two, or there is nothing to be seen
    assert pool.live_bytes == 1 << size.bit_length()
    assert repr(pool) == (
        f"BufferPool(pin_memory=True, depth=2): 1 pinned batch alive, of {size} bytes, "
        f"rounded up to {1 << size.bit_length()}"
    )
    del batch
    assert (pool.live_bytes, pool.idle_bytes, pool.max_bytes) == (0, 0, None)


@pytest.mark.parametrize(
    ("size", "expected"), [(0, 1), (1, 1), (2, 2), (3, 4), (512, 512), (513, 1024)]
)
def test_rounded(size, expected):
    assert pinning.round_up(size) == expected


def test_a_pool_smaller_than_one_batch(allocator):
    pool = fc.memory.BufferPool(128, pin_memory=True)
    with raises(r"batch has .* bytes, for which torch takes .* max_bytes=128"):
        build(pool)
    assert allocator.sizes == []


def test_bytes_of_all_batches_are_bounded(allocator):
    size = pinning.round_up(build().input_ids.untyped_storage().nbytes())
    pool = fc.memory.BufferPool(2 * size, pin_memory=True, depth=9, timeout=0.01)
    alive = [build(pool), build(pool)]
    with pytest.raises(TimeoutError, match="larger depth or max_bytes"):
        build(pool)
    assert len(alive) == 2


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({}, "TypeError: max_bytes is None"),
        ({"pin_memory": 1}, "TypeError: pin_memory is 1; pass True or False"),
        ({"pin_memory": True, "depth": 0}, "depth is 0"),
        ({"pin_memory": True, "depth": "x"}, "TypeError: depth is 'x'"),
        ({"pin_memory": True, "timeout": 0}, "timeout is 0"),
        ({"pin_memory": True, "timeout": None}, "TypeError: timeout is None"),
        ({"pin_memory": True, "max_bytes": -1}, "max_bytes is -1"),
    ],
)
def test_bad_pools(arguments, pattern):
    with raises(pattern):
        fc.memory.BufferPool(**arguments)


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({"pool": "pin"}, "TypeError: pool is 'pin'; pass a BufferPool, 'default', 'pinned' or"),
        ({"array_type": "numpy"}, "pool='pinned' gives tensors, but array_type"),
        (
            {
                "pool": fc.memory.BufferPool(pin_memory=True),
                "array_type": "numpy",
            },
            "a pool of pinned memory gives tensors",
        ),
    ],
)
def test_bad_arguments(arguments, pattern, allocator):
    with raises(pattern):
        build(**arguments)
    options = {"pad_token_id": 0, "pool": "pinned", **arguments}
    with raises(pattern):
        fc.BatchBuilder(**options)


def test_a_default_pool_may_be_pinned(allocator):
    pool = fc.memory.BufferPool(pin_memory=True, depth=3)
    before = fc.memory.set_default_pool(pool)
    try:
        batch = build("default")
        assert len(allocator.sizes) == 1
        assert pool.live_bytes > 0
        again = batch.to_layout("right")
        assert len(allocator.sizes) == 2
        assert_same(again.to_layout(fc.Left(pad_to=4)), build(pool=None))
        del batch, again
        # Arrays that have to be NumPy's are pageable.
        assert isinstance(build("default", array_type="numpy").input_ids, np.ndarray)
    finally:
        fc.memory.set_default_pool(before)


# Without pinned memory


def test_one_warning_and_pageable_memory(allocator):
    allocator.fails = True
    pool = fc.memory.BufferPool(pin_memory=True, depth=1)
    with pytest.warns(
        UserWarning, match="pageable memory: .* cannot be pinned: CUDA error: out of memory"
    ):
        first = build(pool)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = build(pool)  # and depth bounds nothing
        third = build()
    for batch in (first, second, third):
        assert_same(batch, build("default"))
    assert pool.live_bytes > 0  # they are recycled as those of other pools
    assert repr(pool).endswith(f"{pool.live_bytes} bytes of batches that could not be pinned")
    del batch, first, second
    assert pool.live_bytes == 0
    assert pool.idle_bytes > 0


@pytest.mark.skipif(
    hasattr(torch, "accelerator") and torch.accelerator.is_available(), reason="has an accelerator"
)
def test_without_an_accelerator(monkeypatch):
    monkeypatch.setattr(pinning, "_has_warned", False)
    with pytest.warns(UserWarning, match="torch finds no accelerator"):
        batch = build()
    assert_same(batch, build("default"))


def test_workers_of_a_data_loader_pin_nothing(monkeypatch):
    monkeypatch.setattr(pinning, "_has_warned", False)
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: object())
    with pytest.warns(UserWarning, match=r"pass DataLoader\(pin_memory=True\)"):
        build()


@NEEDS_FORK
def test_a_forked_child_has_slabs_of_its_own():
    """Those of the parent are none of its own, and a lock may have been held."""
    code = """if True:
        import os, warnings
        import torch
        import fastcollate as fc
        from fastcollate.memory import pinning

        warnings.simplefilter("ignore")
        pinning.obstacle = lambda: None
        pinning.allocate = lambda size: torch.empty(size, dtype=torch.uint8)
        pool = fc.memory.BufferPool(pin_memory=True, depth=1, timeout=5)
        batch = fc.build_batch([[1]], [[2]], pad_token_id=0, pool=pool)
        pool._slabs._lock.acquire()
        child = os.fork()
        if child == 0:
            try:
                assert pool.live_bytes == 0
                own = fc.build_batch([[3]], [[4]], pad_token_id=0, pool=pool)
                assert own.input_ids.tolist() == [[3, 4]]
                assert batch.input_ids.tolist() == [[1, 2]]
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# On a GPU


@pytest.mark.gpu
def test_pinned_for_the_gpu():
    pool = fc.memory.BufferPool(pin_memory=True, depth=2)
    for _ in range(5):
        batch = build(pool)
        assert all(tensor.is_pinned() for tensor in batch.values())
        on_device = batch.input_ids.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        assert on_device.tolist() == batch.input_ids.tolist()


@pytest.mark.gpu
def test_copies_in_flight_are_not_written_over():
    """The allocator waits for them, as it knows the tensors' storage."""
    rows = np.arange(1 << 20).reshape(64, -1)
    expected = torch.from_numpy(rows)
    inputs = [rows + number for number in range(4)]

    def made(ids):
        return fc.build_batch(ids, rows[:, :0], pad_token_id=0, pool="pinned")

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        # Memory for all, taken now: to take more may wait for the device, on either side.
        batches = [made(ids) for ids in inputs]
        copies = [batch.input_ids.to("cuda") for batch in batches]
        del batches, copies
        torch.cuda._sleep(1_000_000_000)
        copies = [made(ids).input_ids.to("cuda", non_blocking=True) for ids in inputs]
        assert not stream.query(), "the device has not slept long enough to show anything"
    stream.synchronize()
    for number, copied in enumerate(copies):
        assert torch.equal(copied.cpu(), expected + number)
