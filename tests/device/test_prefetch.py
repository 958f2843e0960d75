"""prefetch: the same items in the same order, from another thread that ends when it should."""

import gc
import logging
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from random import Random

import numpy as np
import pytest
from conftest import NEEDS_FORK
from hypothesis import given
from hypothesis import strategies as st
from interrupting import NEEDS_TIMERS, handling_alarms
from raising import raises

import fastcollate as fc
from fastcollate.device import prefetching

SECONDS = 30
"""What must happen happens long before; else a test fails instead of hanging."""


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "fastcollate-prefetch"]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    assert not threads()
    yield
    gc.collect()
    end = time.monotonic() + SECONDS
    while threads() and time.monotonic() < end:
        time.sleep(0.001)
    assert not threads()


class Gated:
    """Gives its numbers one by one, each when it is let through."""

    def __init__(self, count):
        self.count = count
        self.gate = threading.Semaphore(0)
        self.begun = 0
        self.has_begun = threading.Condition()

    def __iter__(self):
        for number in range(self.count):
            with self.has_begun:
                self.begun += 1
                self.has_begun.notify_all()
            assert self.gate.acquire(timeout=SECONDS)
            yield number

    def await_begun(self, count):
        with self.has_begun:
            assert self.has_begun.wait_for(lambda: self.begun >= count, SECONDS)


def raises_at(count, error):
    yield from range(count)
    raise error


# Items


@given(items=st.lists(st.integers()), depth=st.integers(1, 4))
def test_items_come_in_order(items, depth):
    assert list(fc.prefetch(items, depth=depth)) == items
    assert list(fc.prefetch(iter(items), depth=depth)) == items


def test_it_is_for_one_epoch():
    batches = fc.prefetch([1, 2])
    assert list(batches) == [1, 2]
    assert next(batches, None) is None
    with pytest.raises(RuntimeError, match="this prefetch is at its end; make another one for ea"):
        list(batches)
    found = []
    late = threading.Thread(target=lambda: found.extend(batches))  # others took all items
    late.start()
    late.join(SECONDS)
    assert found == []
    assert not late.is_alive()


def test_it_runs_on_another_thread_from_the_start():
    seen = []

    def items():
        seen.append(threading.current_thread())
        yield 1

    with fc.prefetch(items()) as batches:
        end = time.monotonic() + SECONDS
        while not seen and time.monotonic() < end:
            time.sleep(0.001)
        assert [thread.name for thread in seen] == ["fastcollate-prefetch"]
        assert next(batches) == 1


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_more_items_are_begun_than_depth(depth):
    gated = Gated(8)
    for _ in range(8):
        gated.gate.release()
    with fc.prefetch(gated, depth=depth) as batches:
        for taken in range(5):
            gated.await_begun(min(taken + depth, 8))
            time.sleep(0.01)
            assert gated.begun == min(taken + depth, 8)
            assert next(batches) == taken


def test_what_was_handed_over_is_not_kept():
    class Item:
        pass

    with fc.prefetch((Item() for _ in range(5)), depth=1) as batches:
        for item in batches:
            trace = weakref.ref(item)
            del item
            gc.collect()
            assert trace() is None


# Errors


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("error", [ValueError("bad row"), SystemExit(3), KeyboardInterrupt()])
def test_errors_come_in_place_of_their_item(count, error):
    batches = fc.prefetch(raises_at(count, error), depth=2)
    for number in range(count):
        assert next(batches) == number
    with pytest.raises(type(error)) as caught:
        next(batches)
    assert caught.value is error
    assert "raises_at" in [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert list(batches) == []


def test_an_error_keeps_nothing_alive():
    class Source:
        def __iter__(self):
            return self

        def __next__(self):
            raise ValueError("bad")

    source = Source()
    trace = weakref.ref(source)
    batches = fc.prefetch(source)
    gc.disable()  # nor does it lie in a cycle, which may be kept for long
    try:
        try:
            next(batches)
        except ValueError:
            batches.close()
        del source, batches
        assert trace() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ({"iterable": 3}, "TypeError: iterable is 3 .*pass an iterable of batches"),
        ({"iterable": {"input_ids": [[1]]}}, "TypeError: pass a list or generator of batches"),
        ({"depth": 0}, "depth is 0"),
        ({"depth": 1.5}, "TypeError: depth is 1.5"),
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": "x"}, "TypeError: timeout is 'x'"),
    ],
)
def test_bad_arguments(arguments, pattern):
    with raises(pattern):
        fc.prefetch(**{"iterable": [1], **arguments})


# Waiting


def test_a_timeout_says_what_keeps_it():
    gated = Gated(2)
    with fc.prefetch(gated, timeout=0.01) as batches:
        gated.await_begun(1)
        with pytest.raises(TimeoutError, match="the iterable has not returned item 0"):
            next(batches)
        gated.gate.release()
        gated.await_begun(2)
        assert next(batches) == 0  # it came, only later
        gated.gate.release()


def test_long_waits_are_logged(monkeypatch, caplog):
    monkeypatch.setattr(prefetching, "REPORT_EVERY", 0.02)
    monkeypatch.setattr(prefetching, "LOOK_EVERY", 0.01)
    gated = Gated(1)

    class Release(logging.Handler):
        def emit(self, record):
            gated.gate.release()

    handler = Release()
    logging.getLogger("fastcollate.device.prefetching").addHandler(handler)
    try:
        with caplog.at_level(logging.WARNING), fc.prefetch(gated) as batches:
            assert next(batches) == 0
    finally:
        logging.getLogger("fastcollate.device.prefetching").removeHandler(handler)
    assert "the iterable has not returned item 0" in caplog.text


def test_metrics():
    batches = fc.prefetch([1, 2, 3])
    names = ["items", "wait_seconds", "wait_fraction", "bytes", "copies"]
    assert batches.metrics == {f"prefetch/{name}": 0 for name in names}
    assert list(batches) == [1, 2, 3]
    assert batches.metrics["prefetch/items"] == 3
    assert 0 <= batches.metrics["prefetch/wait_fraction"] <= 1
    assert batches.metrics["prefetch/wait_seconds"] >= 0


def test_repr_says_how_far_it_is():
    with fc.prefetch([1, 2]) as batches:
        next(batches)
        assert repr(batches).startswith("Prefetcher: 1 of 2 items handed over, ")
    assert repr(batches).endswith(" waited, closed")
    assert "0 items" in repr(fc.prefetch(iter([])))


def test_length():
    assert len(fc.prefetch([1, 2, 3])) == 3
    with pytest.raises(TypeError, match="number of items is not known"):
        len(fc.prefetch(iter([1])))


# Closing


def test_closing_ends_the_thread():
    gated = Gated(5)
    with fc.prefetch(gated) as batches:
        gated.gate.release()
        assert next(batches) == 0
        gated.gate.release()
    assert not threads()
    batches.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(batches)


def test_closing_drops_what_is_in_the_making():
    class Item:
        pass

    traces, begun, goes_on = [], threading.Event(), threading.Event()

    def items():
        begun.set()
        assert goes_on.wait(SECONDS)
        item = Item()
        traces.append(weakref.ref(item))
        yield item

    batches = fc.prefetch(items())
    assert begun.wait(SECONDS)
    closing = threading.Thread(target=batches.close)
    closing.start()
    while not batches._work.is_stopped():
        time.sleep(0.001)
    goes_on.set()
    closing.join(SECONDS)
    gc.collect()
    assert [trace() for trace in traces] == [None]


def test_closing_drops_what_is_ready():
    class Item:
        pass

    traces = []

    def items():
        for _ in range(5):
            item = Item()
            traces.append(weakref.ref(item))
            yield item
            del item

    with fc.prefetch(items(), depth=3) as batches:
        next(batches)
    gc.collect()
    assert [trace() for trace in traces] == [None] * len(traces)


def test_a_generator_is_finished_when_it_is_closed():
    finished = threading.Event()

    def items():
        try:
            yield from range(100)
        finally:
            finished.set()

    with fc.prefetch(items()) as batches:
        next(batches)
    gc.collect()
    assert finished.wait(SECONDS)


def test_a_loop_that_is_left_ends_the_thread():
    for number in fc.prefetch(range(100)):
        if number == 3:
            break
    gc.collect()


def test_one_that_was_never_asked_ends_its_thread():
    fc.prefetch(range(100))
    gc.collect()


def test_closing_does_not_wait_for_ever(monkeypatch, caplog):
    monkeypatch.setattr(prefetching, "CLOSE_SECONDS", 0.01)
    gated = Gated(1)
    batches = fc.prefetch(gated)
    gated.await_begun(1)
    with caplog.at_level(logging.WARNING):
        batches.close()
    assert "closing a prefetch waits up to 0 s: the iterable has not returned item 0" in caplog.text
    assert "goes on after 0 s: the iterable has not returned item 0" in caplog.text
    gated.gate.release()


def test_who_waits_is_told_that_it_is_closed(monkeypatch):
    monkeypatch.setattr(prefetching, "CLOSE_SECONDS", 0.01)
    gated = Gated(1)
    batches = fc.prefetch(gated)
    errors = []

    def wait():
        try:
            next(batches)
        except RuntimeError as error:
            errors.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    gated.await_begun(1)
    batches.close()
    waiting.join(SECONDS)
    gated.gate.release()
    assert len(errors) == 1
    assert "closed" in errors[0]


def test_many_threads_share_the_items():
    batches = fc.prefetch(range(1000), depth=4)
    taken, lock = [], threading.Lock()

    def take():
        for item in batches:
            with lock:
                taken.append(item)

    takers = [threading.Thread(target=take) for _ in range(4)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join(SECONDS)
    assert sorted(taken) == list(range(1000))


# Processes


def run(code, **options):
    return subprocess.run(
        [sys.executable, "-c", code], timeout=SECONDS * 2, capture_output=True, text=True, **options
    )


@NEEDS_FORK
def test_a_forked_child_is_told():
    result = run("""if True:
        import os, warnings
        import fastcollate as fc

        warnings.simplefilter("ignore")
        batches = fc.prefetch(range(5))
        child = os.fork()
        if child == 0:
            try:
                next(batches)
            except RuntimeError as error:
                assert "fork" in str(error)
                batches.close()
                raise SystemExit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert list(batches) == [0, 1, 2, 3, 4]
    """)
    assert result.returncode == 0, result.stderr


def test_a_program_ends_though_the_iterable_does_not():
    result = run("""if True:
        import time
        import fastcollate as fc

        def items():
            yield 1
            while True:
                time.sleep(0.01)
                yield 2

        batches = fc.prefetch(items())
        print(next(batches))
    """)
    assert (result.returncode, result.stdout, result.stderr) == (0, "1\n", "")


def test_a_program_ends_its_threads_before_it_finalizes_anything():
    result = run("""if True:
        import logging, weakref

        logging.basicConfig()  # so that waiting is told

        class Kept:
            pass

        kept = Kept()
        weakref.finalize(kept, print, "finalized")  # in the end, after what is imported from now on

        import fastcollate as fc

        batches = fc.prefetch(range(9))
        print(next(batches))
    """)
    # Nothing was waited for.
    assert (result.returncode, result.stdout, result.stderr) == (0, "0\nfinalized\n", "")


def test_a_program_waits_for_the_item_in_the_making():
    result = run("""if True:
        import time
        import fastcollate as fc

        def items():
            yield 1
            time.sleep(1)
            print("made", flush=True)
            yield 2

        batches = fc.prefetch(items())
        print(next(batches), flush=True)
    """)
    expected = (0, "1\nmade\n", "")
    assert (result.returncode, result.stdout, result.stderr) == expected


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
def test_an_interrupt_ends_a_wait():
    """Ctrl-C while the iterable hangs: the program ends at once, by KeyboardInterrupt."""
    code = """if True:
        import signal, time
        import fastcollate as fc
        import fastcollate.device.prefetching as own

        def items():
            print("hangs", flush=True)
            time.sleep(1000)
            yield 1

        signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored
        own.CLOSE_SECONDS = 0.1
        with fc.prefetch(items()) as batches:
            next(batches)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "hangs\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGINT, errors
    assert "KeyboardInterrupt" in errors


def test_an_interrupt_leaves_the_items_where_they_are(monkeypatch):
    gated = Gated(2)
    batches = fc.prefetch(gated)
    real = batches._work._came.wait

    def interrupted(seconds):
        monkeypatch.setattr(batches._work._came, "wait", real)
        raise KeyboardInterrupt

    gated.await_begun(1)
    monkeypatch.setattr(batches._work._came, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    for _ in range(2):
        gated.gate.release()
    assert list(batches) == [0, 1]


@NEEDS_TIMERS
def test_a_storm_of_interrupts():
    """Items come in order until the end, though whoever waits is interrupted again and again."""
    random, may_raise = Random(0), False

    def interrupt(*_):
        nonlocal may_raise
        if may_raise:
            may_raise = False
            raise KeyboardInterrupt

    with handling_alarms(interrupt):
        for _ in range(30):
            batches, taken, is_done = fc.prefetch(range(200)), [], False
            end = time.monotonic() + SECONDS
            while not is_done and time.monotonic() < end:
                try:
                    may_raise = True
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 2e-4))
                    taken.append(next(batches))
                except KeyboardInterrupt:
                    pass
                except StopIteration:
                    is_done = True
                may_raise = False
            assert is_done
            assert taken == sorted(set(taken))
            assert len(taken) > 100  # an item that is interrupted on its way is lost


def test_items_are_not_looked_into():
    array = np.arange(3)
    assert next(fc.prefetch([array])) is array
