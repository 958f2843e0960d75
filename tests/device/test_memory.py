"""Reuse of memory: never while it is viewed, and with the same results."""

import copy
import gc
import io
import pickle
import queue
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import NEEDS_FORK, NEEDS_TORCH, share
from hypothesis import given
from hypothesis import strategies as st
from strategies import as_inputs, rollouts

import fastcollate as fc
from fastcollate.testing.reference import assert_same
from frameworks.numpy_rows import build_batch_numpy

ROWS, LENGTH = 4, 100
OUTPUTS = ["input_ids", "attention_mask", "response_mask", "loss_mask", "rewards"]
MEBIBYTE = 1 << 20


def build(number, array_type="numpy", *, rows=ROWS, **options):
    """Build a batch whose ids and rewards are all this number, so that mixing it up shows."""
    ids = np.full((rows, LENGTH), number)
    return fc.build_batch(
        ids,
        ids,
        pad_token_id=0,
        rewards=ids.astype(np.float32),
        array_type=array_type,
        **options,
    )


def address(batch):
    return np.asarray(batch.input_ids).__array_interface__["data"][0]


@pytest.fixture
def pool():
    return fc.memory.BufferPool(1 << 30)


def use(pool, *sizes):
    """Take all memory of the pool, fill it, and return it."""
    batches = [build(9, rows=rows, pool=pool) for rows in sizes or (ROWS, ROWS, 1)]
    for batch in batches:
        for value in batch.values():
            value.view(np.uint8)[...] = 0xAB


# Recycling


def test_memory_is_recycled_when_a_batch_is_gone(array_type, pool):
    batch = build(1, array_type, pool=pool)
    first, size = address(batch), pool.live_bytes
    assert size >= sum(np.asarray(value).nbytes for value in batch.values())
    assert pool.idle_bytes == 0
    for number in range(2, 12):
        del batch
        assert (pool.idle_bytes, pool.live_bytes) == (size, 0)
        batch = build(number, array_type, pool=pool)
        assert (pool.idle_bytes, pool.live_bytes) == (0, size)
        assert address(batch) == first
        assert_same(batch, build(number, pool=None))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults")
@pytest.mark.parametrize("rows", [1_000, 40_000])  # on the heap, and mapped
def test_steady_calls_take_no_page_faults(rows, array_type, pool):
    import resource

    ids = np.ones((rows, LENGTH), np.int64)
    inputs = {"prompts": ids, "responses": ids, "pad_token_id": 0, "array_type": array_type}

    def faults(**options):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        batch = fc.build_batch(**inputs, **options)
        assert sum(value.nbytes for value in batch.values()) == rows * LENGTH * 44
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    # A plan of 40,000 rows takes megabytes. The system's allocator keeps such blocks only once it
    # has seen a larger one freed, as it has in any program that trains.
    np.ones(1 << 21).sum()
    for _ in range(3):
        faults(pool=pool)
    assert min(faults(pool=pool) for _ in range(5)) <= 20


@pytest.mark.parametrize("key", OUTPUTS)
def test_memory_is_recycled_when_the_last_output_is_gone(key, array_type, pool):
    batch = build(1, array_type, pool=pool)
    first = address(batch)
    output = batch[key]
    del batch
    use(pool)
    assert pool.live_bytes > 0
    assert_same({key: output}, {key: build(1, pool=None)[key]})
    del output
    assert pool.live_bytes == 0
    # The pool has the memory of both by now.
    taken = [build(2, array_type, pool=pool) for _ in range(3)]
    assert first in map(address, taken)


def test_outputs_lie_on_cache_lines(array_type, pool):
    use(pool)
    for memory in (None, pool):
        for value in build(1, array_type, rows=1, pool=memory).values():
            assert np.asarray(value).__array_interface__["data"][0] % 64 == 0


# Views of an output, with functions that read them. Each has to keep the memory from being
# recycled, after the output itself and the batch are gone.
VIEWS_OF_ARRAYS = {
    "itself": lambda array: array,
    "rows": lambda array: array[1:],
    "view of views": lambda array: array[1:].T[::2].swapaxes(0, 1)[:, 3:],
    "another dtype": lambda array: array.view(np.uint8)[:, 5:],
    "memoryview": memoryview,
    "cast memoryview": lambda array: memoryview(array).cast("B")[7:],
    "buffer": lambda array: np.frombuffer(array, np.uint8),
    "dlpack": np.from_dlpack,
    "broadcast": lambda array: np.broadcast_to(array, (2, *array.shape)),
    "strided": lambda array: np.lib.stride_tricks.as_strided(array, (3, 3), (4, 4)),
    "window": lambda array: np.lib.stride_tricks.sliding_window_view(array, 3, 1),
    "subclass": lambda array: array.view(np.ma.MaskedArray),
    "interface": lambda array: np.asarray(Interface(array)),
    "from torch": lambda array: tensor_module().from_numpy(array)[1:],
    "as a tensor": lambda array: tensor_module().as_tensor(array).T,
}

VIEWS_OF_TENSORS = {
    "itself": lambda tensor: tensor,
    "rows": lambda tensor: tensor[1:],
    "view of views": lambda tensor: tensor[1:].T[::2].unflatten(0, (-1, 2))[3:],
    "another dtype": lambda tensor: tensor.view(tensor.new_empty(0).int().dtype),
    "expanded": lambda tensor: tensor.expand(2, *tensor.shape),
    "detached": lambda tensor: tensor.detach(),
    "data": lambda tensor: tensor.data,
    "alias": lambda tensor: tensor.new_empty(0).set_(tensor),
    "split": lambda tensor: tensor.unbind()[1],
    "storage": lambda tensor: tensor.untyped_storage(),
    "array": lambda tensor: tensor.numpy(),
    "asarray": lambda tensor: np.asarray(tensor)[1:],
    "memoryview": lambda tensor: memoryview(tensor.numpy())[1:],
    "dlpack": lambda tensor: tensor_module().from_dlpack(tensor),
    "dlpack of a row": lambda tensor: tensor_module().from_dlpack(tensor[2]),
    "dlpack to NumPy": np.from_dlpack,
    "capsule": lambda tensor: Capsule(tensor),
    "parameter": lambda tensor: tensor_module().nn.Parameter(tensor)[1:],
    "nested": lambda tensor: nested(tensor),
    "part of nested": lambda tensor: nested(tensor).unbind()[1],
    "sparse": lambda tensor: sparse(tensor),
    "saved for backward": lambda tensor: Saved(tensor),
    "saved view": lambda tensor: Saved(tensor[1:].T),
    "views in a cycle": lambda tensor: Cycle(tensor[1:]),
}


def tensor_module():
    return pytest.importorskip("torch")


def nested(tensor):
    torch = tensor_module()
    offsets = torch.tensor([0, 3, LENGTH])
    return torch.nested.nested_tensor_from_jagged(tensor.view(-1)[:LENGTH], offsets)


def sparse(tensor):
    torch = tensor_module()
    values = tensor.view(-1)[:3]
    return torch.sparse_coo_tensor(torch.tensor([[0, 2, 5]]), values, check_invariants=False)


class Interface:
    """An object that shows an array by NumPy's protocol."""

    def __init__(self, array):
        self.array = array
        self.__array_interface__ = array.__array_interface__


class Capsule:
    """A tensor on its way to another library."""

    def __init__(self, tensor):
        self.capsule = tensor.__dlpack__()

    def read(self):
        return tensor_module().from_dlpack(self.capsule).numpy().copy()


class Saved:
    """A tensor that a graph alone holds."""

    def __init__(self, tensor):
        weight = tensor_module().ones(tensor.shape, requires_grad=True)
        self.loss = (weight * tensor).sum()
        self.weight = weight

    def read(self):
        self.weight.grad = None
        self.loss.backward(retain_graph=True)
        return self.weight.grad.numpy().copy()


class Cycle:
    """A tensor that only the garbage collector can free."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.me = self

    def read(self):
        return self.tensor.numpy().copy()


def read(view):
    """Copy the values of a view."""
    if hasattr(view, "read"):
        return view.read()
    if hasattr(view, "is_nested") and view.is_nested:
        return np.concatenate([part.numpy() for part in view.unbind()])
    if hasattr(view, "is_sparse") and view.is_sparse:
        return view._values().numpy().copy()
    if type(view).__name__ == "UntypedStorage":
        return np.array(view.tolist())
    if hasattr(view, "detach"):
        view = view.detach().numpy()
    return np.array(view)


def keeps_the_memory(array_type, view_of, pool):
    batch = build(7, array_type, pool=pool)
    view = view_of(batch.rewards)
    del batch
    if not isinstance(view, Capsule):  # which can be read once
        before = read(view)
        assert before.any()
    for _ in range(3):
        assert pool.live_bytes > 0
        use(pool)
    after = read(view)
    if isinstance(view, Capsule):
        before = np.full_like(after, 7)
    np.testing.assert_array_equal(after, before)
    del view
    gc.collect()
    assert pool.live_bytes == 0


@pytest.mark.parametrize("view", VIEWS_OF_ARRAYS)
def test_views_of_arrays_keep_the_memory(view, pool):
    keeps_the_memory("numpy", VIEWS_OF_ARRAYS[view], pool)


@NEEDS_TORCH
@pytest.mark.parametrize("view", VIEWS_OF_TENSORS)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_views_of_tensors_keep_the_memory(view, pool):
    keeps_the_memory("torch", VIEWS_OF_TENSORS[view], pool)


@NEEDS_TORCH
def test_tensors_of_arrays_keep_the_memory(pool):
    torch = tensor_module()
    keeps_the_memory("numpy", lambda array: torch.from_numpy(array)[1:], pool)
    keeps_the_memory("numpy", lambda array: torch.as_tensor(array).T, pool)


@NEEDS_TORCH
def test_shared_memory_is_a_copy(pool):
    """`share_memory_` moves a tensor's values away; the slab stays with the other outputs."""
    batch = build(1, "torch", pool=pool)
    shared, other = batch.rewards.share_memory_(), batch.input_ids
    del batch
    use(pool)
    assert (other == 1).all()
    assert (shared[:, -LENGTH:] == 1).all()
    del other
    assert pool.live_bytes == 0
    use(pool)
    assert (shared[:, -LENGTH:] == 1).all()


def copies_of(batch):
    yield copy.deepcopy(batch)
    yield pickle.loads(pickle.dumps(batch))
    if not isinstance(batch.input_ids, np.ndarray):
        torch = tensor_module()
        file = io.BytesIO()
        torch.save({"batch": dict(batch), "view": batch.rewards[1:]}, file)
        file.seek(0)
        yield torch.load(file)["batch"]
        yield {key: value.clone() for key, value in batch.items()}


def test_copies_keep_no_memory(array_type, pool):
    batch = build(1, array_type, pool=pool)
    expected = build_batch_numpy(
        np.full((ROWS, LENGTH), 1),
        np.full((ROWS, LENGTH), 1),
        pad_token_id=0,
        rewards=np.full((ROWS, LENGTH), 1.0),
    )
    copies = list(copies_of(batch))
    del batch
    gc.collect()
    assert pool.live_bytes == 0
    use(pool)
    for again in copies:
        assert_same(again, expected)


@NEEDS_TORCH
def test_each_output_is_copied_and_versioned_alone(pool):
    torch = tensor_module()
    use(pool)
    batch = build(1, "torch", pool=pool)
    for key, output in batch.items():
        assert output.untyped_storage().nbytes() == output.nbytes
        assert copy.deepcopy(output).untyped_storage().nbytes() == output.nbytes
        file = io.BytesIO()
        torch.save(output, file)
        assert len(file.getvalue()) < output.nbytes + 4_000
        others = [batch[other] for other in batch if other != key]
        before = [other._version for other in others]
        output.add_(1)
        assert [other._version for other in others] == before
    weight = torch.ones(ROWS, LENGTH, requires_grad=True)
    loss = (weight * batch.rewards).sum()
    batch.input_ids.add_(1)
    loss.backward()  # an error if the rewards' version had changed


def test_memory_comes_back_after_errors(array_type, pool):
    ids = [[1, 2], [3, "bad"]]
    for _ in range(3):
        with pytest.raises(TypeError, match="bad"):
            fc.build_batch(ids, ids, pad_token_id=0, array_type=array_type, pool=pool)
        assert pool.live_bytes == 0
        assert pool.idle_bytes > 0


# Recycled memory gives the results of fresh memory


@share(2)
@given(data=st.data())
def test_recycled_memory_gives_the_same(data, array_type):
    pool = fc.memory.BufferPool(1 << 30)
    alive = []
    for _ in range(4):
        inputs = data.draw(rollouts(max_rows=4))
        kinds = data.draw(as_inputs(inputs))
        pad = data.draw(st.sampled_from([0, 0, 7]))
        kind = data.draw(st.sampled_from([fc.Left, fc.TwoSegment, fc.Right]))
        options = {
            "pad_token_id": pad,
            "array_type": array_type,
            "layout": kind(multiple_of=data.draw(st.sampled_from([1, 1, 8]))),
        }
        expected = fc.build_batch(**kinds, **options, pool=None)
        batch = fc.build_batch(**kinds, **options, pool=pool)
        assert_same(batch, expected)
        for earlier, content in alive:
            assert_same(earlier, content)
        if data.draw(st.booleans()):
            alive.append((batch, expected))
        else:
            for value in batch.values():
                np.asarray(value).view(np.uint8)[...] = 0xAB
            del value
        del batch


DTYPES = {
    "default": "default",
    "compact": "compact",
    "float16": {"rewards": "float16", "loss_mask": "float16", "response_mask": "bool"},
    "bfloat16": {"rewards": "bfloat16", "logprobs": "bfloat16", "attention_mask": "int32"},
}


@pytest.mark.slow
@pytest.mark.parametrize("rows", [3, 400, 6000])  # the most of them take a second thread
@pytest.mark.parametrize("dtypes", DTYPES)
@pytest.mark.parametrize("layout", ["left", "two_segment", "right"])
def test_garbage_is_overwritten(layout, dtypes, rows, pool):
    array_type = "torch" if dtypes == "bfloat16" else "numpy"
    if array_type == "torch":
        pytest.importorskip("torch")
    rng = np.random.default_rng(rows)
    prompts, responses = (
        [np.arange(n) for n in rng.integers(1, 400, rows)] for _ in ("prompts", "responses")
    )
    field = [np.linspace(-1, 1, len(row), dtype=np.float32) for row in responses]
    if layout == "left":
        prompts[0] = prompts[0].tolist()  # which is read with the interpreter held
    inputs = {
        "prompts": prompts,
        "responses": responses,
        "rewards": rng.random(rows) if layout == "right" else field,
        "loss_mask": [abs(row) for row in field],
        "logprobs": field,
        "pad_token_id": 0,
        "layout": layout,
        "dtypes": DTYPES[dtypes],
        "array_type": array_type,
    }
    batch = fc.build_batch(**inputs, pool=pool)
    first = address(batch)
    for value in batch.values():
        as_bytes(value)[...] = 0xAB
    del value, batch
    again = fc.build_batch(**inputs, pool=pool)
    assert address(again) == first
    fresh = fc.build_batch(**inputs, pool=None)
    assert list(again) == list(fresh)
    for key in fresh:
        assert again[key].shape == fresh[key].shape
        assert (as_bytes(again[key]) == as_bytes(fresh[key])).all()


def as_bytes(output):
    if not isinstance(output, np.ndarray):
        output = output.view(tensor_module().uint8).numpy()  # NumPy has no bfloat16
    return output.view(np.uint8)


def test_memory_fits_a_batch_that_is_a_bit_larger(pool):
    sizes = [90, 91, 93, 90, 80, 55]
    assert len({address(build(1, rows=rows, pool=pool)) for rows in sizes}) == 1


# Pools


def test_small_batches_do_not_hold_large_memory(pool):
    large = build(1, rows=5000, pool=pool)
    size = pool.live_bytes
    assert size > 8 * MEBIBYTE
    del large
    small = build(1, rows=5, pool=pool)
    assert pool.idle_bytes == size
    assert pool.live_bytes < MEBIBYTE
    del small
    assert pool.idle_bytes > size
    assert build(1, rows=5000, pool=pool)
    assert pool.live_bytes == 0
    assert pool.idle_bytes > size


def test_the_longest_unused_is_freed_first():
    sizes = [300, 1000, 3000]
    measure = fc.memory.BufferPool(1 << 30)
    batches, bounds = [], []
    for rows in sizes:
        batches.append(build(1, rows=rows, pool=measure))
        bounds.append(measure.live_bytes)
    small = bounds[0]
    pool = fc.memory.BufferPool(bounds[-1] - small)
    batches = [build(1, rows=rows, pool=pool) for rows in sizes]
    while batches:
        del batches[0]
    assert pool.idle_bytes == pool.max_bytes
    batch = build(1, rows=300, pool=pool)
    assert pool.live_bytes == bounds[1] - small  # the smallest that is left
    del batch


@pytest.mark.parametrize("max_bytes", [0, 1, 64])
def test_more_than_max_bytes_is_not_kept(max_bytes, array_type):
    pool = fc.memory.BufferPool(max_bytes)
    for number in range(3):
        batch = build(number, array_type, pool=pool)
        assert pool.live_bytes > 0
        assert_same(batch, build(number, pool=None))
        del batch
        assert (pool.idle_bytes, pool.live_bytes) == (0, 0)


def test_what_is_too_large_to_keep_spares_the_rest():
    pool = fc.memory.BufferPool(MEBIBYTE)
    build(1, rows=10, pool=pool)
    idle = pool.idle_bytes
    assert idle > 0
    build(1, rows=1000, pool=pool)
    assert pool.idle_bytes == idle


def test_clear_frees_what_is_idle(array_type, pool):
    batch = build(1, array_type, pool=pool)
    use(pool)
    live = pool.live_bytes
    assert pool.idle_bytes > 0
    pool.clear()
    assert (pool.idle_bytes, pool.live_bytes) == (0, live)
    assert_same(batch, build(1, pool=None))
    del batch
    assert pool.idle_bytes == live


def test_batches_outlive_their_pool(array_type, pool):
    batch = build(1, array_type, pool=pool)
    del pool
    assert_same(batch, build(1, pool=None))


def test_pool_shows_its_sizes(pool):
    batch = build(1, pool=pool)
    assert pool.max_bytes == 1 << 30
    assert str(pool.max_bytes) in repr(pool)
    assert str(pool.live_bytes) in repr(pool)
    for name in ("max_bytes", "idle_bytes", "live_bytes", "new"):
        with pytest.raises(AttributeError):
            setattr(pool, name, 0)
    with pytest.raises(TypeError):
        pickle.dumps(pool)
    del batch


@pytest.mark.parametrize(
    ("max_bytes", "error"),
    [
        (-1, ValueError),
        (1 << 70, ValueError),
        (1.5, TypeError),
        ("1", TypeError),
        (None, TypeError),
    ],
)
def test_pools_of_no_size_are_refused(max_bytes, error):
    with pytest.raises(error, match=r"max_bytes is .*; pass a number of bytes"):
        fc.memory.BufferPool(max_bytes)


@pytest.mark.parametrize("bad", [3, "none", fc.memory.BufferPool, [], True])
def test_what_is_no_pool_is_refused(bad):
    with pytest.raises(TypeError, match="pass a BufferPool"):
        build(1, pool=bad)
    with pytest.raises(TypeError, match="pass a BufferPool or None"):
        fc.memory.set_default_pool(bad)
    with pytest.raises(TypeError, match="pass a BufferPool or None"):
        fc.memory.set_default_pool("default")


@pytest.fixture
def default_pool():
    default = fc.memory.set_default_pool(None)
    fc.memory.set_default_pool(default)
    yield default
    fc.memory.set_default_pool(default)


def test_default_pool(default_pool, pool, array_type):
    assert default_pool.max_bytes == 1 << 30
    before = default_pool.live_bytes
    batch = build(1, array_type)
    assert default_pool.live_bytes > before
    assert fc.memory.set_default_pool(pool) is default_pool
    for option in ({}, {"pool": "default"}):
        first = address(build(1, array_type, **option))
        assert address(build(1, array_type, **option)) == first
    assert (pool.idle_bytes > 0, pool.live_bytes) == (True, 0)
    pool.clear()
    assert fc.memory.set_default_pool(None) is pool
    assert_same(build(1, array_type), batch)
    assert pool.idle_bytes == 0
    fc.memory.set_default_pool(default_pool)
    del batch
    assert default_pool.live_bytes == before


# Threads and processes


def test_threads_share_a_pool(array_type, pool):
    def work(first):
        rng = np.random.default_rng(first)
        alive = []
        for number in range(first, first + 100):
            rows = int(rng.integers(1, 30))
            alive.append((number, build(number, array_type, rows=rows, pool=pool)))
            while len(alive) > rng.integers(1, 5):
                number, batch = alive.pop(int(rng.integers(len(alive))))
                assert (batch.input_ids == number).all()
                assert (batch.rewards == number).all()
                assert (batch.attention_mask == 1).all()
                batch.input_ids[...] = -1
                batch.attention_mask[...] = -1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(6) as executor:
            list(executor.map(work, range(0, 6000, 1000)))
    finally:
        sys.setswitchinterval(interval)
    gc.collect()
    assert pool.live_bytes == 0


def test_memory_comes_back_from_other_threads(array_type, pool):
    batches = queue.SimpleQueue()

    def drop():
        while (batch := batches.get()) is not None:
            del batch

    thread = threading.Thread(target=drop)
    thread.start()
    for number in range(100):
        batches.put(build(number, array_type, pool=pool))
    batches.put(None)
    thread.join()
    assert pool.live_bytes == 0
    assert pool.idle_bytes > 0


@NEEDS_TORCH
def test_memory_comes_back_from_autograd(pool):
    """The graph is freed while it is walked, and with it what it saved."""
    torch = tensor_module()
    for number in range(1, 5):
        weight = torch.ones(ROWS, LENGTH, requires_grad=True)
        loss = (weight * build(number, "torch", pool=pool).rewards).sum()
        assert pool.live_bytes > 0
        use(pool)
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        assert pool.live_bytes == 0
        assert (weight.grad == number).all()


def run(code):
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@NEEDS_FORK
def test_a_forked_child_starts_with_an_empty_pool():
    run("""if True:
        import os
        import numpy as np
        import fastcollate as fc

        def build(number, **options):
            ids = np.full((50, 100), number)
            return fc.build_batch(ids, ids, pad_token_id=0, array_type="numpy", **options)

        def in_child(act):
            child = os.fork()
            if child == 0:
                try:
                    act()
                    os._exit(0)
                except BaseException:
                    import traceback
                    traceback.print_exc()
                    os._exit(1)
            assert os.waitpid(child, 0)[1] == 0

        pool = fc.memory.BufferPool(1 << 30)
        alive = build(1, pool=pool)
        build(2, pool=pool)
        idle, live = pool.idle_bytes, pool.live_bytes
        assert idle and live

        def child():
            global alive
            for other in (pool, fc.memory.set_default_pool(None)):
                assert (other.idle_bytes, other.live_bytes) == (0, 0)
            assert (alive.input_ids == 1).all()
            first = build(3, pool=pool)
            assert (first.input_ids == 3).all()
            assert (alive.input_ids == 1).all()
            size = pool.live_bytes
            del first
            assert (pool.idle_bytes, pool.live_bytes) == (size, 0)
            alive.input_ids[...] = 9
            alive = None  # the parent's memory: not the child's to recycle
            assert (pool.idle_bytes, pool.live_bytes) == (size, 0)
            again = build(4, pool=pool)
            assert (again.input_ids == 4).all()
            in_child(grandchild)
            assert pool.live_bytes == size

        def grandchild():
            assert (pool.idle_bytes, pool.live_bytes) == (0, 0)
            build(5, pool=pool)
            assert pool.idle_bytes > 0

        for _ in range(2):
            in_child(child)
            assert (pool.idle_bytes, pool.live_bytes) == (idle, live)
            assert (alive.input_ids == 1).all()
        taken = build(6, pool=pool)
        assert pool.idle_bytes == 0
        def rebuild():
            global taken
            taken = build(7, pool=pool)
            assert (taken.input_ids == 7).all()
        in_child(rebuild)
        assert (taken.input_ids == 6).all()
    """)
