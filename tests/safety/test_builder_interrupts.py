"""BatchBuilder under interrupts, exhausted memory, and calls in the midst of its own calls."""

import gc
import signal
import sys
import threading
from collections import Counter

import numpy as np
import pytest
from interrupting import NEEDS_TIMERS, handling_alarms, raising_at

import fastcollate as fc
from fastcollate import builder as builder_module
from fastcollate.testing.reference import assert_same

SECONDS = 20
"""What must happen happens long before; else a test fails instead of hanging."""


def in_time(act):
    """Act on a thread of its own, and fail if that hangs."""
    results = []

    def work():
        try:
            results.append(act())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), "it hangs"
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


def row(number, length=3):
    """Return arguments of `add` of every kind, all of which hold the number."""
    return {
        "prompt": [number] * length,
        "response": np.full(length + 1, number),
        "rewards": [float(number)] * (length + 1),
        "loss_mask": [1] * (length + 1),
        "logprobs": np.full(length + 1, number, np.float32),
        "fields": {
            "pair": fc.Field(np.full((length + 1, 2), float(number))),
            "number": fc.PerRow(number),
        },
        "uid": number,
    }


def new_builder(**options):
    return fc.BatchBuilder(pad_token_id=0, array_type="numpy", **options)


def check(batch, numbers, length=3):
    """Check that a batch is that of whole rows."""
    again = new_builder()
    for number in numbers:
        again.add(**row(number, length))
    assert_same(batch, again.finish())
    assert batch.uids == list(numbers)


def finished(builder, built):
    """Finish a builder, unless it is empty or another call has done so."""
    try:
        built.append(builder.finish())
    except (RuntimeError, ValueError) as error:
        if not any(text in str(error) for text in ("another call", "the batch is empty")):
            raise


# Calls in the midst of calls


class Calls:
    """An id that does something when it is compared, as a build does, or freed."""

    def __init__(self, when, act):
        self.when, self.act = when, act

    def __eq__(self, other):
        if self.when == "compared":
            self.act()
        return True

    __hash__ = None

    def __del__(self):
        if self.when == "freed":
            self.act()


@pytest.mark.parametrize("use", [repr, len])
@pytest.mark.parametrize("when", ["compared", "freed"])
def test_what_runs_within_finish_may_look_at_the_builder(when, use):
    builder = new_builder(merge="exact")
    seen = []
    for number in range(2):
        ids = Calls(when, lambda: seen.append(use(builder)))
        builder.add([1], [2 + number], trajectory_id=ids, loss_mask=[1])
    del ids
    in_time(builder.finish)
    gc.collect()
    during, after = ("BatchBuilder of 2 rows, 4 tokens", "BatchBuilder of 0 rows, 0 tokens")
    if use is len:
        during, after = 2, 0
    assert set(seen) == ({during} if when == "compared" else {after})


@pytest.mark.parametrize("use", [repr, len, fc.BatchBuilder.clear])
def test_what_runs_within_clear_may_use_the_builder(use):
    builder = new_builder()
    builder.add([1], [2], uid=Calls("freed", lambda: use(builder)))
    in_time(builder.clear)
    assert len(builder) == 0


@pytest.mark.parametrize("count", [1, 200])
def test_rows_that_are_added_within_finish_are_those_of_the_next_batch(count):
    builder = new_builder(merge="exact")
    added = iter(range(100, 100 + count))

    def add():
        for number in added:
            builder.add([number], [number], trajectory_id=number)

    for number in range(3):
        builder.add([number], [number], trajectory_id=Calls("compared", add))
    first = in_time(builder.finish)
    assert first.input_ids.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert len(builder) == count
    second = builder.finish()
    assert second.input_ids.tolist() == [[n, n] for n in range(100, 100 + count)]
    assert second.trajectory_ids == list(range(100, 100 + count))


@pytest.mark.parametrize("other", ["finish", "clear"])
@pytest.mark.parametrize("fails", [False, True])
def test_rows_are_in_one_batch_only(other, fails):
    """The one that is done first has them, and the memory may be written over since."""
    builder = new_builder(merge="exact")
    results, once = [], iter([1])

    def act():
        for _ in once:
            results.append(getattr(builder, other)())
            builder.add([7] * 3, [8] * 3, trajectory_id="x")
            if fails:
                raise ValueError("of its own")

    for _ in range(2):
        builder.add([1], [2], trajectory_id=Calls("compared", act))
    with pytest.raises(RuntimeError, match="another call has finished or cleared the same rows"):
        in_time(builder.finish)
    if other == "finish":
        assert results[-1].input_ids.tolist()[0][-2:] == [1, 2]
    assert builder.finish().trajectory_ids == ["x"]


def test_threads_that_finish_share_the_rows_out():
    builder, lock = new_builder(), threading.Lock()
    done, numbers, built = threading.Event(), iter(range(4000)), []

    def add():
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            builder.add(**row(number, number % 50))

    def finish():
        while not done.is_set() or len(builder):
            finished(builder, built)

    adders = [threading.Thread(target=add) for _ in range(4)]
    finishers = [threading.Thread(target=finish) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in adders + finishers:
            thread.start()
        for thread in adders:
            thread.join(SECONDS)
        done.set()
        for thread in finishers:
            thread.join(SECONDS)
    finally:
        sys.setswitchinterval(interval)
    assert Counter(uid for batch in built for uid in batch.uids) == Counter(range(4000))
    for batch in built:
        numbers = np.array(batch.uids)
        lens = numbers % 50
        assert batch.prompt_lens.tolist() == lens.tolist()
        mask = batch.response_mask == 1
        expected = np.broadcast_to(numbers[:, None], mask.shape)
        assert (batch.rewards == np.where(mask, expected, 0)).all()
        assert (batch.pair == np.where(mask, expected, 0)[..., None]).all()
        tokens = batch.attention_mask == 1
        assert (batch.input_ids == np.where(tokens, numbers[:, None], 0)).all()


class Acting:
    """A token that does something when it is read."""

    def __init__(self, token, act):
        self.token, self.act = token, act

    def __index__(self):
        self.act()
        return self.token


@pytest.mark.parametrize("last", [5, 2**40])
@pytest.mark.parametrize("name", ["prompt", "response"])
@pytest.mark.parametrize("use", ["add", "finish", "clear"])
def test_what_runs_while_a_row_is_decoded_may_use_the_builder(use, name, last):
    """The memory that the row is decoded into is its own."""
    builder, built = new_builder(), []
    builder.add(**row(1))
    once = iter([1])

    def act():
        for _ in once:
            if use != "add":
                built.append(getattr(builder, use)())
            builder.add(**row(2, length=4))

    ids = [7] * (len(row(7)[name]) - 2)
    builder.add(**{**row(7), name: [*ids, Acting(6, act), last]})
    builder.add(**row(3))
    expected = new_builder()
    for number in [1, 2] if use == "add" else [2]:
        expected.add(**row(number, length=3 if number == 1 else 4))
    expected.add(**{**row(7), name: [*ids, 6, last]})
    expected.add(**row(3))
    assert_same(builder.finish(), expected.finish())
    if use == "finish":
        check(built[0], [1])


# Interrupts


def interrupted_at(step, act, exception):
    """Act, but raise before that step of the builder's own code. False if it has fewer steps."""
    try:
        with raising_at(step, exception, lambda code: code.co_filename == builder_module.__file__):
            act()
    except type(exception):
        return True
    return False


@pytest.mark.parametrize("exception", [KeyboardInterrupt(), MemoryError()])
@pytest.mark.parametrize("before", [0, 2])
def test_a_row_is_added_as_a_whole_or_not_at_all(before, exception):
    builder, step, is_interrupted = new_builder(), 0, True
    while is_interrupted:
        numbers = list(range(1, 1 + before))
        for number in numbers:
            builder.add(**row(number))
        is_interrupted = interrupted_at(step, lambda: builder.add(**row(9)), exception)
        assert len(builder) - before in ((0, 1) if is_interrupted else (1,))
        numbers += [9] * (len(builder) - before)
        builder.add(**row(3))
        check(builder.finish(), [*numbers, 3])
        step += 1
    assert step > 100


@pytest.mark.parametrize("act", ["finish", "clear"])
def test_rows_stay_or_go_together(act):
    builder, step, is_interrupted, stayed = new_builder(), 0, True, 0
    while is_interrupted:
        for number in (1, 2):
            builder.add(**row(number))
        is_interrupted = interrupted_at(step, getattr(builder, act), KeyboardInterrupt())
        assert len(builder) in (0, 2)
        if len(builder):
            stayed += 1
            check(builder.finish(), [1, 2])
        builder.add(**row(3))
        check(builder.finish(), [3])
        step += 1
    assert stayed > 20


def test_no_memory_for_a_row(monkeypatch):
    builder = new_builder()
    builder.add(**row(1, 10))

    def fail(*_, **__):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(np, "empty", fail)
        with pytest.raises(MemoryError):
            builder.add(**row(2, 100_000))
    builder.add(**row(3, 10))
    check(builder.finish(), [1, 3], 10)


@NEEDS_TIMERS
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("length", [3, 1000])
def test_a_storm_of_signals(length):
    """Handlers that raise, look, add and finish, wherever they come."""
    builder, random = new_builder(), np.random.default_rng(0)
    signals, built, may_raise = 0, [], False

    def handle(*_):
        nonlocal may_raise, signals
        signals += 1
        match signals % 4:
            case 0:
                repr(builder)
            case 1:
                builder.add(**row(signals + 10_000, length))
            case 2 if len(builder) > 20:
                finished(builder, built)
            case _ if may_raise:
                may_raise = False
                raise KeyboardInterrupt

    with handling_alarms(handle):
        for number in range(800):
            try:
                may_raise = True
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 2e-4))
                builder.add(**row(number, length))
                if number % 50 == 49:
                    finished(builder, built)
                may_raise = False
            except KeyboardInterrupt:
                pass
    finished(builder, built)
    for batch in built:
        check(batch, batch.uids, length)
    seen = Counter(uid for batch in built for uid in batch.uids)
    assert max(seen.values()) == 1
    # A batch that is done when the signal comes is lost: only its rows may be missing.
    assert signals > 50
    assert len(seen) > 100
