"""Batches on devices: the same outputs, brought there by one copy.

Without a GPU, they are copied on the host, or to the meta device, which has no values.
"""

import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
from conftest import share
from hypothesis import given
from hypothesis import strategies as st
from pinned_stand_in import INPUTS, fake_allocator
from strategies import extras, rollouts

import fastcollate as fc
from fastcollate.device import staging, to_device
from fastcollate.memory import in_flight, pinning, slabs
from fastcollate.memory.slabs import CACHE_LINE
from fastcollate.testing.reference import assert_same, build_batch_loops

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

LAYOUTS = ["left", "two_segment", "right", "jagged"]
PACKED = {"layout": fc.Packed(capacity=8)}


def build(**options):
    return fc.build_batch(**INPUTS, **options)


def copied_on_the_host(batch):
    """Copy a batch as `Batch.to` does, with the host as the device."""
    tensors = to_device.check_tensors(batch._state)
    transfer = to_device.Transfer()
    target = torch.device("cpu")
    moves = to_device.copy_tensors(
        tensors, to_device.slab_of(batch._state, tensors), target, False, transfer
    )
    return batch._of(to_device.rebuild(batch._state, moves, transfer))


def storages(batch):
    return {value.untyped_storage().data_ptr() for value in batch.values()}


class Copies(TorchDispatchMode):
    """Counts copies to another device."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._to_copy.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("layout", LAYOUTS)
@share(2)
@given(drawn=st.data())
def test_outputs_are_those_of_the_host(layout, drawn):
    data = drawn.draw(rollouts())
    options = {
        "pad_token_id": 3,
        "layout": layout,
        **drawn.draw(extras(data, "torch")),
    }
    batch = fc.build_batch(**data._asdict(), **options)
    expected = build_batch_loops(**data._asdict(), **options)
    assert_same(copied_on_the_host(batch), expected)
    assert_same(batch, expected)
    with fake_allocator():
        assert_same(fc.build_batch(**data._asdict(), **options, pool="pinned"), expected)
        assert_same(copied_on_the_host(batch.pin_memory()), expected)


@pytest.mark.parametrize("options", [*({"layout": name} for name in LAYOUTS), PACKED])
def test_one_copy_for_all_outputs(options):
    batch = build(**options)
    tables = len(batch.row_cu_seqlens) if options is PACKED else 0
    with Copies() as copies:
        on_device = batch.to("meta")
    assert copies.count == 1 + tables
    again = copied_on_the_host(batch)
    assert again.metrics["handover/copies"] == 1 + tables
    assert again.metrics["handover/bytes"] >= sum(
        value.nbytes for value in batch.values() if isinstance(value, torch.Tensor)
    )
    assert_same(again, batch)
    for value, here in zip(on_device.values(), batch.values(), strict=True):
        if isinstance(here, torch.Tensor):
            assert value.device.type == "meta"
            assert (value.dtype, value.shape) == (here.dtype, here.shape)
        elif isinstance(here, list):
            assert [table.shape for table in value] == [table.shape for table in here]
            assert {table.device.type for table in value} == {"meta"}
        else:
            assert value == here


def test_outputs_on_a_device_share_a_storage_but_no_version():
    again = copied_on_the_host(build())
    assert len(storages(again)) == 1
    before = [tensor._version for tensor in again.values()]
    again.rewards.add_(1)
    changes = [t._version - old for t, old in zip(again.values(), before, strict=True)]
    assert changes == [0, 0, 0, 0, 1]
    assert all(tensor._base is None for tensor in again.values())


def test_everything_else_is_kept():
    turns = {"trajectory_ids": ["a", "a"], "is_last_step": [False, True], "uids": [2, 2]}
    batch = fc.build_batch([[1], [1, 2]], [[2], [3]], pad_token_id=0, **turns, merge="exact")
    for again in (batch.to("meta"), copied_on_the_host(batch)):
        assert again.plan == batch.plan
        assert again.spec is batch.spec
        assert again.merge_plan is batch.merge_plan
        assert (again.uids, again.trajectory_ids, again.is_last_step) == ([2], ["a"], [True])
        assert again.is_padding is None
        assert again.prompt_lens.tolist() == batch.prompt_lens.tolist()
    step = fc.build_batch([[1]] * 3, [[2]] * 3, pad_token_id=0)
    shard = step.select(fc.plan_step(step, dp_size=2).shard(0, 1))
    assert shard.to("meta").is_padding == shard.is_padding


def test_what_is_there_already_stays():
    batch = build()
    assert batch.to("cpu") is batch
    assert batch.to(torch.device("cpu"), non_blocking=True) is batch
    assert batch.to(torch.device("cpu", 0)) is batch
    on_device = batch.to("meta")
    assert on_device.to("meta") is on_device


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cuda", "cuda:0"),
        ("mps", "mps:0"),
        ("cuda:1", "cuda:1"),
        ("cpu", "cpu"),
        ("meta", "meta"),
    ],
)
def test_devices_are_named_as_their_tensors_name_them(name, expected):
    with FakeTensorMode():  # as if there were such devices
        assert to_device.resolve_device(name) == torch.device(expected)
        assert to_device.resolve_device(torch.device(name)) == torch.device(expected)


def test_no_device_is_an_error():
    with pytest.raises(TypeError):
        build().to(None)


def test_a_dtype_is_no_option():
    with pytest.raises(TypeError, match=r"non_blocking is torch\.float16; pass True or False"):
        build().to("cpu", torch.float16)


def test_values_are_those_at_the_time():
    batch = build()
    batch.rewards.fill_(7)
    assert (copied_on_the_host(batch).rewards == 7).all()
    batch.rewards.share_memory_()  # it is outside the slab from now on
    batch.rewards.fill_(8)
    again = copied_on_the_host(batch)
    assert (again.rewards == 8).all()
    assert again.metrics["handover/copies"] == 2


def test_gradients_flow_to_the_device():
    batch = build()
    batch.rewards.requires_grad_()
    again = copied_on_the_host(batch)
    again.rewards.sum().backward()
    assert (batch.rewards.grad == 1).all()


def test_batches_that_lie_in_pieces():
    """One that another process sent, or that was made from a mapping."""
    batch = build()
    for other in (pickle.loads(pickle.dumps(batch)), fc.Batch(dict(batch))):
        again = copied_on_the_host(other)
        assert_same(again, batch)
        assert again._state.transfer["handover/copies"] == 1  # they are small
    large = fc.build_batch([[1] * 20_000] * 2, [[2]] * 2, pad_token_id=0)
    again = copied_on_the_host(pickle.loads(pickle.dumps(large)))
    assert_same(again, large)
    assert again.metrics["handover/copies"] == 3  # the masks of responses are small
    assert again.metrics["handover/bytes"] == 2 * large.input_ids.nbytes + 2 * CACHE_LINE


def test_a_default_device_changes_nothing(monkeypatch):
    """Memory on the host stays there, whatever ``torch.set_default_device`` is."""
    batch = fc.Batch({"a": torch.arange(3), "b": torch.ones(2)})
    with torch.device("meta"):
        assert_same(copied_on_the_host(batch), dict(batch))
        assert_same(dict(copied_on_the_host(build())), dict(build()))
        slab = staging.Staging(NoMemory(), 1, lambda: False).take(9)
        assert to_device.is_on_host(slab.memory)
        monkeypatch.setattr(torch, "empty", lambda *_, **options: options)
        assert pinning.allocate(9)["device"] == "cpu"


class NoMemory:
    """A lane without pinned memory."""

    def pinned(self, size):
        return None


def test_rows_of_a_batch():
    batch = build()
    shard = fc.plan_step(batch, dp_size=2).shard(0, 1)
    assert_same(copied_on_the_host(batch.select(shard)), batch.select(shard))
    with fake_allocator():
        pinned = build(pool="pinned")
        assert_same(copied_on_the_host(pinned.select(shard)), batch.select(shard))
        assert_same(copied_on_the_host(pinned), batch)
        assert copied_on_the_host(pinned).metrics["handover/copies"] == 1


def test_arrays_per_row():
    images = [torch.ones(2, 3), torch.zeros(1, 2)]
    fields = {"images": fc.PerRow(images), "joined": fc.PerRow([[1], [2, 3]], concat=True)}
    batch = build(fields=fields)
    assert_same(copied_on_the_host(batch), batch)
    assert [image.device.type for image in batch.to("meta").images] == ["meta", "meta"]
    with fake_allocator():
        assert_same(batch.pin_memory(), batch)


def test_what_cannot_be_moved():
    with pytest.raises(TypeError, match="array_type='torch'"):
        build(array_type="numpy").to("cpu")
    with pytest.raises(TypeError, match="array_type='torch'"):
        build(array_type="numpy").pin_memory()


def test_a_batch_is_in_use_while_it_is_copied():
    """Its memory does not go back to the pool in the meantime."""
    pool = fc.memory.BufferPool(1 << 20)
    batch = build(pool=pool)
    slab = to_device.slab_of(batch._state, to_device.check_tensors(batch._state))
    del batch
    assert pool.idle_bytes == 0
    del slab
    assert pool.idle_bytes > 0


# Slabs


def test_a_common_slab_is_mostly_wanted():
    whole = torch.arange(100)
    storage = whole.untyped_storage()

    def part(start, length):
        return torch.empty(0, dtype=torch.int64).set_(storage, start, (length,), (1,))

    assert slabs.common_slab([part(0, 10), part(16, 10)]).nbytes == 26 * 8
    assert slabs.common_slab([part(17, 10), part(30, 9)]).nbytes == (39 - 16) * 8
    assert slabs.common_slab([part(0, 10), part(90, 10)]) is None
    assert slabs.common_slab([part(0, 10)]) is None
    assert slabs.common_slab([part(0, 10), torch.arange(10)]) is None
    assert slabs.common_slab([]) is None


@pytest.mark.parametrize(
    ("shape", "stride", "expected"),
    [((3,), (1,), 12), ((2, 3), (4, 1), 28), ((2, 3), (1, 2), 24), ((0, 3), (3, 1), 0)],
)
def test_span(shape, stride, expected):
    tensor = torch.zeros(100).as_strided(shape, stride)
    assert slabs.span(tensor) == expected


def test_where_in_a_slab_a_tensor_lies():
    slab = torch.zeros(64, dtype=torch.uint8)
    inside = slabs.over(slab[16:], 8, torch.empty(2, dtype=torch.int32))
    assert slabs.offset_in(slab, inside) == 16 + 8
    assert slabs.offset_in(slab[16:], inside) == 8
    assert slabs.offset_in(slab[32:], inside) is None
    assert slabs.offset_in(slab[:30], inside) is None
    odd = torch.frombuffer(slab.numpy(), dtype=torch.int32, count=2, offset=1)
    assert slabs.offset_in(slab, odd) is None


def test_values_that_are_worked_out_when_they_are_read():
    values = torch.tensor([1 + 2j, 3 - 4j])
    batch = fc.Batch({"as they are": values, "conjugate": values.conj(), "more": values[:1]})
    again = copied_on_the_host(batch)
    assert torch.equal(again["conjugate"], values.conj())
    assert torch.equal(again["as they are"], values)


def test_strided_outputs_keep_their_strides():
    batch = fc.Batch({"a": torch.arange(12).view(3, 4).T, "b": torch.arange(12).view(3, 4)[:, 1:]})
    assert_same(
        {key: value.contiguous() for key, value in copied_on_the_host(batch).items()},
        {key: value.contiguous() for key, value in batch.items()},
    )


# Pinning


def test_pin_memory_keeps_everything():
    batch = pickle.loads(pickle.dumps(build(uids=["a", "b"])))
    with fake_allocator() as allocator:
        again = batch.pin_memory()
        assert len(allocator.sizes) == 1
    assert_same(again, batch)
    assert again.plan == batch.plan
    assert again.uids == ["a", "b"]
    assert len(storages(again)) == 1


def test_pin_memory_of_a_data_loader():
    from torch.utils.data._utils.pin_memory import pin_memory

    batch = build(uids=["a", "b"])
    with fake_allocator() as allocator:
        again = pin_memory(batch)
        assert len(allocator.sizes) == 1
    assert type(again) is fc.Batch
    assert again.plan == batch.plan
    assert_same(again, batch)


def test_what_is_pinned_stays(monkeypatch):
    batch = build()
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
    with fake_allocator() as allocator:
        assert batch.pin_memory() is batch
    assert allocator.sizes == []


@pytest.mark.parametrize(("has_bus", "sizes"), [(False, []), (True, [2 * 64])])
def test_small_tensors_go_through_pinned_memory_to_a_device_with_a_bus(has_bus, sizes, monkeypatch):
    monkeypatch.setattr(to_device, "has_bus", lambda target: has_bus)
    batch = fc.Batch({"a": torch.arange(3), "b": torch.ones(2)})
    with fake_allocator() as allocator:
        batch.to("meta")
        assert allocator.sizes == []
        batch.to("meta", non_blocking=True)
    assert allocator.sizes == sizes


def test_pin_memory_where_it_fails():
    batch = build()
    with fake_allocator() as allocator:
        allocator.fails = True
        with pytest.warns(UserWarning, match="cannot be pinned"):
            assert batch.pin_memory() is batch


# Copies in flight


class Event:
    """One of a device, that is done when it is said to be."""

    is_done = False

    def query(self):
        return self.is_done


def test_changes_in_flight_are_found():
    copies, first, second = in_flight.InFlight(), Event(), Event()
    source = torch.zeros(9, dtype=torch.uint8)
    copies.add(source[:3], first, "batch 0")
    copies.add(source[3:], second, "batch 1")
    source[4] = 1
    copies.check()
    first.is_done = True
    copies.check()
    second.is_done = True
    with pytest.raises(RuntimeError, match="batch 1 was changed on the host while its copy"):
        copies.check()
    copies.check()


def test_who_waits_for_memory_gets_that_of_copies_that_are_done():
    copies, event = in_flight.InFlight(), Event()
    source = torch.zeros(9, dtype=torch.uint8)
    storage = StorageWeakRef(source.untyped_storage())
    copies.add(source, event, "a batch")
    source[0] = 1
    del source
    in_flight.let_go_of_all()
    assert not storage.expired()
    event.is_done = True
    in_flight.let_go_of_all()
    assert storage.expired()
    with pytest.raises(RuntimeError, match="a batch was changed on the host"):
        copies.check()
    copies.check()


def test_copies_of_many_threads_are_watched():
    class Yielding:
        def query(self):
            time.sleep(0)  # another thread's turn
            return True

    copies = in_flight.InFlight()

    def work(_):
        for _ in range(100):
            copies.add(torch.zeros(9, dtype=torch.uint8), Yielding(), "a batch")
            copies.check()

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(work, range(4)))


def test_debug_mode_watches_batches(monkeypatch):
    events = []

    class Module:
        current_stream = "the stream of {}".format

        class Event(Event):
            def record(self, stream):
                assert stream == "the stream of meta"  # that of the copy
                events.append(self)

    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
    monkeypatch.setattr(torch, "get_device_module", lambda device: Module)
    batch = build()
    batch.to("meta", non_blocking=True)
    assert events == []
    monkeypatch.setenv("FASTCOLLATE_DEBUG", "1")
    batch.to("meta", non_blocking=True)
    batch.to("meta")
    batch.rewards.add_(1)
    assert len(events) == 1
    events[0].is_done = True
    with pytest.raises(RuntimeError, match="was changed on the host"):
        batch.to("meta")
    batch.to("meta", non_blocking=True)
    events[1].is_done = True
    batch.to("meta")


def test_debug_mode_watches_no_memory_that_is_not_copied(monkeypatch):
    class Module:
        current_stream = "the stream of {}".format

        class Event:
            record = Mock()
            query = Mock(return_value=True)

    monkeypatch.setenv("FASTCOLLATE_DEBUG", "1")
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
    monkeypatch.setattr(torch, "get_device_module", lambda device: Module)
    whole = torch.zeros(4, 3)
    part = fc.Batch({"part": whole[:, 1:]})
    part.to("meta", non_blocking=True)
    whole[:, 0] = 1
    part.to("meta", non_blocking=True)


def test_copies_to_the_host_are_done_when_they_are_returned(monkeypatch):
    seen = []

    def to(tensor, target, *, non_blocking, copy):
        seen.append(non_blocking)
        return torch.zeros(tensor.shape, dtype=tensor.dtype)

    on_device = build().to("meta")
    monkeypatch.setattr(torch.Tensor, "to", to)
    assert on_device.to("cpu", non_blocking=True).input_ids.device.type == "cpu"
    assert seen == [False]


def test_pageable_memory_is_never_copied_asynchronously(monkeypatch):
    """It may be recycled as soon as the batch is gone."""
    seen = []
    real = torch.Tensor.to

    def to(tensor, *args, non_blocking=False, **options):
        seen.append(non_blocking)
        return real(tensor, *args, **options)

    monkeypatch.setattr(torch.Tensor, "to", to)
    build().to("meta", non_blocking=True)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
    build().to("meta", non_blocking=True)
    build().to("meta")
    assert seen == [False, True, False]


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("options", [*({"layout": name} for name in LAYOUTS), PACKED])
@pytest.mark.parametrize("pool", ["default", "pinned"])
def test_on_the_gpu(options, pool):
    batch = build(**options, pool=pool)
    on_device = batch.to("cuda", non_blocking=True)
    assert {value.device for value in on_device.values() if isinstance(value, torch.Tensor)} == {
        torch.device("cuda", torch.cuda.current_device())
    }
    assert on_device.to("cuda") is on_device
    torch.cuda.synchronize()
    assert_same(on_device.to("cpu"), batch)


@pytest.mark.gpu
def test_copies_from_many_threads():
    def work(number):
        for _ in range(20):
            batch = fc.build_batch(
                [[number] * 1000] * 9, [[number]] * 9, pad_token_id=0, pool="pinned"
            )
            assert (batch.to("cuda", non_blocking=True).input_ids == number).all()

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(work, range(4)))
