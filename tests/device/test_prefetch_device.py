"""prefetch to a device: the batches arrive, and no slab is written while it is read.

The device is a fake one, on the host: its copies read their source only when they are done, so a
slab that is written too early shows in the values.
"""

import logging
import random
import threading
import time
from collections import Counter, OrderedDict, UserDict, namedtuple
from collections.abc import Mapping
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from conftest import share
from hypothesis import given
from hypothesis import strategies as st
from pinned_stand_in import fake_allocator

import fastcollate as fc
from fastcollate.device import prefetching, staging, streams
from fastcollate.testing.reference import assert_same

torch = pytest.importorskip("torch")

SECONDS = 30
Pair = namedtuple("Pair", "first second")


class Event:
    """Done when the device says so; remembers whether the host has looked since."""

    def __init__(self):
        self.is_done = self.was_seen = False

    def query(self):
        self.was_seen |= self.is_done
        return self.is_done


class FakeLane:
    """A device whose copies complete on command, one by one."""

    def __init__(self, *, finishes=True):
        self.lock = threading.Lock()
        self.pending = []  # (what the device gets, what it reads, event)
        self.log = []
        self.sizes = []
        self.finishes = finishes
        self.has_memory = True

    def begin(self):
        self.thread = threading.current_thread()

    def pinned(self, size):
        self.sizes.append(size)
        return torch.full((size,), 0xAB, dtype=torch.uint8) if self.has_memory else None

    def copy(self, source):
        on_device = torch.full_like(source, 0xCD)
        event = Event()
        with self.lock:
            self.pending.append((on_device, source, event))
            self.log.append(("copy", source.data_ptr()))
        if self.finishes:
            self.finish()
        return on_device, event

    def finish(self):
        """Do the oldest copy that is not done."""
        with self.lock:
            if self.pending:
                on_device, source, event = self.pending.pop(0)
                on_device.copy_(source)
                event.is_done = True
                self.log.append(("done", source.data_ptr()))

    def hand_over(self, done, slabs):
        # Streams are ordered by this; the host sees nothing.
        self.log.append(("hand over", [slab.data_ptr() for slab in slabs]))


@pytest.fixture
def lane(monkeypatch):
    """Whatever the device is called, it is the fake one."""
    lane = FakeLane()
    use(lane, monkeypatch)
    return lane


def use(lane, monkeypatch):
    monkeypatch.setattr(prefetching, "lane_to", lambda device: lane)
    monkeypatch.setattr(prefetching, "resolve_device", lambda device: torch.device("cpu"))


def batch_of(number, *, rows=2, length=3, **options):
    ids = np.full((rows, length), number)
    inputs = {"prompts": ids, "responses": ids, "rewards": ids.astype(np.float32)}
    return fc.build_batch(**inputs, pad_token_id=0, uids=[number] * rows, **options)


def is_all(batch, number):
    return bool((batch.input_ids == number).all() and (batch.rewards == number).all())


# Received items


@pytest.mark.parametrize(
    "options", [{}, {"layout": "jagged"}, {"layout": fc.Packed(12)}, {"dtypes": "compact"}]
)
def test_batches_arrive(options, lane):
    expected = [batch_of(number, **options) for number in range(5)]
    with fc.prefetch((batch_of(n, **options) for n in range(5)), "cuda") as batches:
        for batch, wanted in zip(batches, expected, strict=True):
            assert_same(batch, wanted)
            assert batch.plan == wanted.plan
            assert batch.uids == wanted.uids
            storages = {
                v.untyped_storage().data_ptr() for v in batch.values() if hasattr(v, "is_cpu")
            }
            assert len(storages) == 1
            assert batch.metrics["handover/copies"] == 1
    assert batches.metrics["prefetch/copies"] == 5
    assert batches.metrics["prefetch/bytes"] == 5 * batch.metrics["handover/bytes"]
    assert len(lane.sizes) == 1  # one slab was enough, as each copy was done at once


def test_labels_follow_a_changed_mask(lane):
    batch = batch_of(1, labels="aligned")
    batch.loss_mask[0] = 0
    with fc.prefetch([batch, {"nested": (batch,)}], "cuda") as batches:
        for moved in (next(batches), next(batches)["nested"][0]):
            assert moved.labels.tolist() == [[-100] * 6, [-100] * 3 + [1] * 3]


def test_items_of_every_kind_arrive(lane):
    class Knows(dict):
        extra = None

    knows = Knows(a=torch.ones(2))
    knows.extra = 3
    shared = torch.arange(4)
    item = {
        "batch": batch_of(1),
        "tensor": torch.arange(6).view(2, 3),
        "strided": torch.arange(6).view(2, 3).T,
        "empty": torch.ones(0, 3),
        "nested": [torch.ones(2, dtype=torch.bool), (torch.tensor(3.5), "text")],
        "pair": Pair(torch.ones(1), 2),
        "user": UserDict(a=torch.ones(1)),
        "ordered": OrderedDict(a=torch.ones(1)),
        "knows": knows,
        "counter": Counter(a=3),
        "array": np.arange(3),
        "number": 4,
        "none": None,
        "twice": [shared, shared],
    }
    with fc.prefetch([item], "cuda") as items:
        moved = next(items)
    assert list(moved) == list(item)
    assert_same(moved["batch"], item["batch"])
    for key in ("tensor", "strided", "empty"):
        assert torch.equal(moved[key], item[key])
        assert moved[key].dtype == item[key].dtype
    assert moved["nested"][0].tolist() == [True, True]
    assert moved["nested"][1][0].item() == 3.5
    assert moved["nested"][1][1] == "text"
    assert type(moved["pair"]) is Pair
    assert type(moved["user"]) is UserDict
    assert type(moved["ordered"]) is OrderedDict
    assert type(moved["knows"]) is Knows
    assert moved["knows"].extra == 3
    assert moved["counter"] == Counter(a=3)
    assert moved["array"] is item["array"]
    assert (moved["number"], moved["none"]) == (4, None)
    assert moved["twice"][0] is moved["twice"][1] is not shared
    assert len([entry for entry in lane.log if entry[0] == "copy"]) == 1


def test_what_a_lane_cannot_carry_is_moved_when_it_is_handed_over(lane):
    moved_by = []

    class Moves:
        def to(self, device):
            moved_by.append(threading.current_thread())
            return self

    weight = torch.ones(2, requires_grad=True)
    sparse = torch.eye(2).to_sparse()
    with fc.prefetch([[Moves(), weight, sparse, torch.ones(1)]], "cuda") as items:
        _, same_weight, same_sparse, _ = next(items)
    assert moved_by == [threading.current_thread()]
    assert same_weight.requires_grad
    assert same_sparse.is_sparse


def test_mappings_that_know_how_to_be_moved(lane):
    """As a TensorDict: an iteration gives rows instead of keys, and it has a device of its own."""

    class Rows(Mapping):
        device = "cpu"

        def __getitem__(self, key):
            raise AssertionError

        def __iter__(self):
            raise AssertionError

        def __len__(self):
            return 1

        def to(self, device):
            moved = Rows()
            moved.device = device
            return moved

    class Encoding(UserDict):
        def to(self, device):
            raise AssertionError("it would change itself")

    item = [Rows(), Encoding(a=torch.ones(2))]
    with fc.prefetch([item], "cuda") as items:
        rows, encoding = next(items)
    assert (item[0].device, rows.device) == ("cpu", torch.device("cpu"))
    assert encoding["a"] is not item[1]["a"]
    assert encoding["a"].tolist() == [1, 1]


def test_numpy_batches_are_refused(lane):
    with (
        fc.prefetch([batch_of(1), batch_of(2, array_type="numpy")], "cuda") as batches,
    ):
        assert is_all(next(batches), 1)
        with pytest.raises(TypeError, match="array_type='torch'"):
            next(batches)


def test_errors_of_the_device_come_in_place_of_their_item(lane):
    real = lane.copy

    def copy(source):
        if len(lane.log) > 3:
            raise RuntimeError("out of memory")
        return real(source)

    lane.copy = copy
    with fc.prefetch((batch_of(n) for n in range(9)), "cuda", depth=1) as batches:
        assert is_all(next(batches), 0)
        with pytest.raises(RuntimeError, match="out of memory"):
            list(batches)


def test_items_come_after_one_that_cannot_be_handed_over(lane):
    class Stays:
        def to(self, device):
            raise RuntimeError("it stays")

    with fc.prefetch([Stays(), 1], "cuda", depth=3) as items:
        items._work.join(SECONDS)  # both are ready, and there are no more
        with pytest.raises(RuntimeError, match="it stays"):
            next(items)
        assert list(items) == [1]


def test_a_timeout_tells_that_it_is_copied(lane):
    held = threading.Event()
    lane.copy = lambda source: held.wait(SECONDS)
    with fc.prefetch([batch_of(1)], "cuda", timeout=0.2) as batches:
        with pytest.raises(TimeoutError, match="item 0 came, but it is copied to cpu"):
            next(batches)
        held.set()


def test_a_device_without_streams():
    with fc.prefetch([batch_of(1), {"a": torch.ones(2), "b": 3}], "meta") as items:
        batch, mapping = items
    assert batch.input_ids.device.type == "meta"
    assert batch.plan == batch_of(1).plan
    assert mapping["a"].device.type == "meta"
    assert mapping["b"] == 3
    with fc.prefetch([batch_of(1)], torch.device("cpu")) as batches:
        assert is_all(next(batches), 1)


def test_sparse_tensors_move_by_themselves():
    sparse = torch.eye(3).to_sparse()
    with fc.prefetch([sparse], "meta") as items:
        assert next(items).is_sparse
        assert items.metrics["prefetch/bytes"] == 3 * (2 * 8 + 4)  # two places and a number each
    batch = fc.Batch({"a": torch.arange(4), "sparse": sparse}).to("meta")
    assert batch["sparse"].is_sparse
    assert batch["a"].device.type == "meta"


def test_no_such_device():
    with pytest.raises(RuntimeError, match="device"):
        fc.prefetch([1], "teapot")


# Slabs are written again only after the host has seen that they were read


@share(2)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    depth=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_late_copies_read_what_was_meant(sizes, depth, seed):
    lane, chance = FakeLane(finishes=False), random.Random(seed)
    done = threading.Event()

    def be_the_device():
        while not done.is_set() or lane.pending:
            if chance.random() < 0.3:
                lane.finish()
            time.sleep(0)

    with pytest.MonkeyPatch.context() as patch:
        use(lane, patch)
        device = threading.Thread(target=be_the_device)
        device.start()
        try:
            made = (batch_of(n, rows=size) for n, size in enumerate(sizes))
            with fc.prefetch(made, "cuda", depth=depth) as batches:
                kept = list(batches)
        finally:
            done.set()
            device.join(SECONDS)
    assert not lane.pending
    for number, batch in enumerate(kept):
        assert is_all(batch, number)
    assert len(kept) == len(sizes)
    # There are two, each of which is only replaced by a larger one.
    assert len(lane.sizes) <= 2 * len(set(sizes))


def test_a_slab_waits_for_its_own_copy(monkeypatch):
    lane = FakeLane(finishes=False)
    use(lane, monkeypatch)
    with fc.prefetch((batch_of(n) for n in range(4)), "cuda", depth=9) as batches:
        await_copies(lane, 2)
        time.sleep(0.05)
        assert len(lane.log) == 2  # both slabs are being read
        first = next(batches)  # handing over orders streams, and tells the host nothing
        time.sleep(0.05)
        assert [what for what, _ in lane.log] == ["copy", "copy", "hand over"]
        lane.finish()
        await_copies(lane, 3)
        assert lane.log[4] == lane.log[0]  # the first slab again, after its copy was done
        assert lane.log[3] == ("done", lane.log[0][1])
        assert is_all(first, 0)
        for _ in range(3):
            lane.finish()
            time.sleep(0.01)
        await_copies(lane, 4)
        while lane.pending:
            lane.finish()
        assert [is_all(batch, n) for n, batch in enumerate(batches, 1)] == [True] * 3


def await_copies(lane, count):
    end = time.monotonic() + SECONDS
    while sum(what == "copy" for what, _ in lane.log) < count:
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("first_done", [0, 1])
def test_whichever_slab_is_done_is_taken(first_done):
    lane = FakeLane(finishes=False)
    slabs = staging.Staging(lane, 2, lambda: False)
    taken = [slabs.take(10), slabs.take(10)]
    # Nothing reads them yet: one that was taken and not copied is free.
    assert taken[0] is taken[1]
    events = [Event(), Event()]
    taken[0].done = events[0]
    second = slabs.take(10)
    assert second is not taken[0]
    second.done = events[1]
    events[first_done].is_done = True
    again = slabs.take(10)
    assert again is [taken[0], second][first_done]
    assert events[first_done].was_seen


def test_the_smallest_slab_that_fits_is_taken():
    lane = FakeLane()
    slabs = staging.Staging(lane, 2, lambda: False)
    small = slabs.take(10)
    small.done = Event()
    large = slabs.take(1000)
    small.done.is_done = True
    assert slabs.take(9) is small
    assert slabs.take(16) is small  # torch gives as much anyway
    assert slabs.take(17) is large
    assert lane.sizes == [16, 1024]
    huge = slabs.take(5000)
    assert lane.sizes == [16, 1024, 8192]
    assert slabs.take(900) in (large, huge)


def test_a_slab_that_is_too_small_makes_room_for_a_larger_one():
    lane = FakeLane()
    slabs = staging.Staging(lane, 1, lambda: False)
    slabs.take(10)
    large = slabs.take(1000)
    assert slabs.take(10) is large
    assert lane.sizes == [16, 1024]


def test_waiting_for_slabs_ends_when_it_is_stopped():
    slabs = staging.Staging(FakeLane(), 1, lambda: True)
    slabs.take(1).done = Event()
    with pytest.raises(staging.StoppedError):
        slabs.take(1)


def test_long_waits_for_slabs_are_logged(monkeypatch, caplog):
    monkeypatch.setattr(staging, "REPORT_EVERY", 0.001)
    event = Event()

    class Finish(logging.Handler):
        def emit(self, record):
            event.is_done = True

    slabs = staging.Staging(FakeLane(), 1, lambda: False)
    slabs.take(1).done = event
    logger, handler = logging.getLogger("fastcollate.device.staging"), Finish()
    logger.addHandler(handler)
    try:
        with caplog.at_level(logging.WARNING):
            slabs.take(1)
    finally:
        logger.removeHandler(handler)
    assert "the copies of 1 slabs have not finished" in caplog.text


def test_closing_while_slabs_are_read(monkeypatch):
    lane = FakeLane(finishes=False)
    use(lane, monkeypatch)
    with fc.prefetch((batch_of(n) for n in range(9)), "cuda", depth=9):
        await_copies(lane, 2)
    assert not [t for t in threading.enumerate() if t.name == "fastcollate-prefetch"]


def test_without_pinned_memory_batches_arrive_all_the_same(lane):
    lane.has_memory = False
    with fc.prefetch((batch_of(n) for n in range(3)), "cuda") as batches:
        assert [is_all(batch, n) for n, batch in enumerate(batches)] == [True] * 3


# Streams


class FakeModule:
    """Stands for torch's module of a device with streams; it keeps a log of its calls."""

    def __init__(self):
        self.log = log = []
        self.current = "current stream"
        module = self

        class Stream:
            def __init__(self, device):
                log.append(("new stream", device))

        class Event:
            def record(self, stream):
                log.append(("record", stream))

        class Current:
            def wait_event(self, event):
                log.append(("wait", event))

        class OnStream:
            def __init__(self, stream):
                self.stream = stream

            def __enter__(self):
                module.current = self.stream

            def __exit__(self, *_):
                module.current = "current stream"

        self.Stream, self.Event, self.stream = Stream, Event, OnStream
        self.of_consumer = Current()

    def set_device(self, device):
        self.log.append(("on device", device))

    def current_stream(self, device):
        return self.of_consumer


@pytest.fixture
def module(monkeypatch):
    module = FakeModule()
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    streams._side_stream.cache_clear()
    yield module
    streams._side_stream.cache_clear()


def test_a_side_stream(module, monkeypatch):
    """Copies run on it, from memory of its own, and only pinned memory is read while they do."""
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda tensor, stream: module.log.append(("used by", stream))
    )
    copies = []
    real = torch.Tensor.copy_

    def copy_(tensor, source, non_blocking=False):
        copies.append((module.current, non_blocking))
        return real(tensor, source)

    monkeypatch.setattr(torch.Tensor, "copy_", copy_)
    lane = streams.Lane(torch.device("cpu"))
    stream = lane._stream
    source = torch.arange(8, dtype=torch.uint8)
    slab, done = lane.copy(source)
    assert torch.equal(slab, source)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: True)
    lane.copy(source)
    assert copies == [(stream, False), (stream, True)]
    assert module.log == [("new stream", torch.device("cpu")), *[("record", stream)] * 2]
    lane.hand_over(done, [slab])
    assert module.log[3:] == [("wait", done), ("used by", module.of_consumer)]


def test_all_lanes_to_a_device_share_a_stream(module):
    """The allocator keeps freed memory by stream, and there are many."""
    first, second = (streams.lane_to(torch.device("cuda", 1)) for _ in range(2))
    assert first._stream is second._stream
    assert streams.lane_to(torch.device("cuda", 0))._stream is not first._stream


def test_copies_are_made_where_their_device_is_the_current_one(module):
    lane = streams.lane_to(torch.device("cuda", 1))
    lane.begin()
    assert module.log[-1] == ("on device", torch.device("cuda", 1))


def test_a_lane_begins_on_the_thread_before_the_first_item(lane):
    def made():
        assert lane.thread is threading.current_thread()
        yield batch_of(1)

    with fc.prefetch(made(), "cuda") as batches:
        assert is_all(next(batches), 1)


@pytest.mark.parametrize("name", ["Stream", "Event", "stream", "set_device"])
def test_a_device_that_lacks_something_has_no_lane(name, monkeypatch):
    whole = {name: Mock() for name in ("Stream", "Event", "stream", "set_device")}
    del whole[name]
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace(**whole))
    assert streams.lane_to(torch.device("cuda", 0)) is None


@pytest.mark.parametrize("name", ["cpu", "meta", "mps"])
def test_devices_without_streams(name):
    assert streams.lane_to(torch.device(name)) is None


# Pinned batches


@pytest.fixture
def pinned(monkeypatch):
    """Ordinary memory that says it is pinned, if it is a slab of the fake allocator."""
    with fake_allocator() as allocator:

        def is_pinned(tensor):
            own = tensor.untyped_storage().data_ptr()
            slabs = [slab() for slab in allocator.slabs]
            return any(slab is not None and slab.data_ptr() == own for slab in slabs)

        monkeypatch.setattr(torch.Tensor, "is_pinned", is_pinned)
        yield allocator


def test_pinned_batches_are_copied_from_where_they_are(pinned, lane):
    made = (batch_of(n, pool="pinned") for n in range(3))
    with fc.prefetch(made, "cuda") as batches:
        for number, batch in enumerate(batches):
            assert_same(batch, batch_of(number))
            assert batch.metrics["handover/copies"] == 1
    assert lane.sizes == []  # no slab between


@pytest.mark.parametrize("debug", ["0", "1"])
def test_a_pool_and_prefetch_do_not_wait_for_each_other(debug, pinned, lane, monkeypatch):
    monkeypatch.setenv("FASTCOLLATE_DEBUG", debug)  # which holds batches until they are copied
    pool = fc.memory.BufferPool(pin_memory=True, depth=1, timeout=SECONDS)
    made = (batch_of(n, pool=pool) for n in range(9))
    with fc.prefetch(made, "cuda", depth=3) as batches:
        assert [is_all(batch, n) for n, batch in enumerate(batches)] == [True] * 9


def test_parts_of_pinned_batches(pinned, lane):
    whole = batch_of(3, rows=9, pool="pinned")
    rows = {"ids": whole.input_ids[2:3], "strided": whole.rewards[:, 1:], "all": whole.rewards}
    rows["one"] = batch_of(4, pool="pinned").rewards[:1, 0]  # contiguous, with a stride of 3
    rows["alone"] = batch_of(5, pool="pinned").rewards[:, 1:]
    with fc.prefetch([rows], "cuda") as items:
        moved = next(items)
    for key, value in rows.items():
        assert torch.equal(moved[key], value)


def test_all_memory_on_the_device_is_handed_over(pinned, lane):
    """Or it may be used again while the thread that asked for the item still reads it."""
    item = [batch_of(1, pool="pinned"), batch_of(2, pool="pinned"), torch.ones(3)]
    with fc.prefetch([item], "cuda") as items:
        first, second, tensor = next(items)
    memory = [
        value.untyped_storage().data_ptr() for value in (first.rewards, second.rewards, tensor)
    ]
    assert lane.log[-1] == ("hand over", memory)
    assert len(set(memory)) == 3


def test_changes_in_flight_are_found(pinned, monkeypatch):
    monkeypatch.setenv("FASTCOLLATE_DEBUG", "1")
    lane = FakeLane()
    use(lane, monkeypatch)
    kept = []

    def made():
        for number in range(3):
            kept.append(batch_of(number, pool="pinned"))
            yield kept[-1]
            kept[0].rewards.add_(1)

    with fc.prefetch(made(), "cuda", depth=1) as batches:
        assert is_all(next(batches), 0)
        with pytest.raises(RuntimeError, match="item 0 was changed on the host while its copy"):
            list(batches)


def test_changes_of_the_last_batch_are_found(pinned, lane, monkeypatch):
    monkeypatch.setenv("FASTCOLLATE_DEBUG", "1")

    def made():
        batch = batch_of(0, pool="pinned")
        yield batch
        batch.rewards.add_(1)

    with fc.prefetch(made(), "cuda") as batches:
        assert is_all(next(batches), 0)
        with pytest.raises(RuntimeError, match="item 0 was changed on the host while its copy"):
            next(batches)


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("pool", ["default", "pinned"])
@pytest.mark.parametrize("depth", [1, 3])
def test_on_the_gpu(pool, depth):
    """Batches of many sizes, used by slow kernels of another stream while the next ones come."""
    made = (batch_of(n, rows=100 * (n % 5 + 1), length=200, pool=pool) for n in range(40))
    sums = []
    with torch.cuda.stream(torch.cuda.Stream()), fc.prefetch(made, "cuda", depth=depth) as batches:
        for batch in batches:
            torch.cuda._sleep(2_000_000)
            sums.append((batch.input_ids.amin(), batch.input_ids.amax(), batch.rewards.mean()))
    torch.cuda.synchronize()
    for number, values in enumerate(sums):
        assert [value.item() for value in values] == [number] * 3


@pytest.mark.gpu
def test_a_model_trains_while_batches_come():
    weight = torch.ones(400, 400, device="cuda", requires_grad=True)
    made = (batch_of(n % 7, rows=64, length=200) for n in range(20))
    for batch in fc.prefetch(made, "cuda"):
        loss = (batch.input_ids.float() @ weight).mean()
        loss.backward()
    assert torch.isfinite(weight.grad).all()


@pytest.mark.gpu(count=2)
def test_the_thread_is_where_its_batches_go():
    seen = []

    def made():
        seen.append(torch.cuda.current_device())
        yield batch_of(1)

    with fc.prefetch(made(), "cuda:1") as batches:
        batch = next(batches)
    assert batch.input_ids.device == torch.device("cuda", 1)
    assert is_all(batch, 1)
    assert seen == [1]
