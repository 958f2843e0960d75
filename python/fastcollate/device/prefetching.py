"""Building batches while earlier ones train."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

from fastcollate.common.arguments import check_count, check_seconds, suggests_names, tally
from fastcollate.common.arrays import describe
from fastcollate.device.prefetched_items import Blocking, HandOver, OnLane, Same
from fastcollate.device.staging import StoppedError
from fastcollate.device.streams import lane_to
from fastcollate.device.to_device import resolve_device
from fastcollate.memory.in_flight import pop_first

T = TypeVar("T")

REPORT_EVERY = 60.0
"""Seconds between warnings while an item is waited for."""

LOOK_EVERY = 1.0
"""Seconds after which a waiting thread checks the state again."""

CLOSE_SECONDS = 10.0
"""Seconds that closing waits for the thread, and that exit waits for all threads."""

_log = logging.getLogger(__name__)


@suggests_names
def prefetch(
    iterable: Iterable[T], device: Any = None, depth: int = 2, *, timeout: float | None = None
) -> Prefetcher[T]:
    """Build batches on another thread, and copy them to a device, while earlier ones train.

    Parameters
    ----------
    iterable
        An iterable of batches: a generator that builds them, a ``DataLoader``, ... That thread
        starts to consume it at once.
    device
        The target device, such as ``"cuda"`` or a rank's ``torch.device``; None leaves items on
        theirs. In items that are not a :class:`Batch`, tensors are searched for in mappings, lists
        and tuples.
    depth
        At most this many items are ready or being made, besides the one returned last.
    timeout
        Seconds of waiting for an item after which an error reports the cause. By default, a warning
        is logged every minute.

    Returns
    -------
    Prefetcher
        An iterator over one epoch, whose ``metrics`` include the time spent waiting. It is closed
        by the end of a ``with`` block, by ``close()``, and when it is garbage-collected; only the
        last does not wait for the thread, which may consume one more item of the iterable. Use
        ``with`` if the iterable is used again after the loop. Items that were read ahead and not
        returned are lost.

    Raises
    ------
    TypeError, ValueError
        Invalid arguments. An exception of the iterable or of a copy is raised in place of the item,
        with its traceback.
    ImportError
        torch, which `device` needs, is not installed.

    Notes
    -----
    The iterable runs on another thread, ahead of the loop: it must make new items, not change one
    that it returned before. Its objects must not be used elsewhere at the same time, and ``"cuda"``
    there means `device`, or the first GPU if `device` is not one, regardless of
    ``torch.cuda.set_device``.
    On a device with streams, an item belongs to the stream that is current when it is returned: to
    be used on another one, its tensors need ``record_stream``, as all tensors do.
    :func:`build_batch` releases the GIL for most of its time only if rows are arrays; reading lists
    competes with the training thread for it.

    Examples
    --------
    >>> collate = fc.Collator(pad_token_id=0)
    >>> lists_of_samples = [[{"prompt": [1, 2], "response": [3]}]]
    >>> with fc.prefetch(map(collate, lists_of_samples), device="cpu") as batches:  # or "cuda"
    ...     for batch in batches:
    ...         print(batch.input_ids.tolist())
    [[1, 2, 3]]
    """
    depth = check_count("depth", depth, "a number of items")
    if timeout is not None:
        timeout = check_seconds("timeout", timeout)
    if isinstance(iterable, Mapping):
        raise TypeError(f"iterable is {describe(iterable)}; pass a list or generator of batches")
    try:
        iterator = iter(iterable)
    except TypeError as error:
        raise TypeError(
            f"iterable is {describe(iterable)}; pass an iterable of batches, such as "
            "map(collate, lists_of_samples)"
        ) from error
    work = _Work(depth)
    move = Same() if device is None else _mover_to(device, work)
    return Prefetcher(iterator, move, work, _length(iterable), timeout)


def _mover_to(device: Any, work: _Work) -> Same:
    try:
        target = resolve_device(device)
    except ImportError as error:
        raise ImportError("device needs torch: pip install 'fastcollate[torch]'") from error
    lane = lane_to(target)
    return Blocking(target) if lane is None else OnLane(target, lane, work.is_stopped)


@suggests_names
class Prefetcher(Generic[T]):
    """The iterator that :func:`prefetch` returns. Yields each item once, in order."""

    def __init__(
        self,
        iterator: Iterator[T],
        move: Same,
        work: _Work,
        total: int | None,
        timeout: float | None,
    ) -> None:
        self._work, self._transfer = work, move.transfer
        self._total, self._timeout = total, timeout
        self._count, self._waited = 0, 0.0
        self._first = self._last = 0.0  # times of the first request and of the last return
        self._is_closed = False
        self._at_end: set[int] = set()  # the threads that have seen the last item
        weakref.finalize(self, work.stop)
        work.start(iterator, move)

    def __iter__(self) -> Prefetcher[T]:
        if threading.get_ident() in self._at_end:
            raise RuntimeError("this prefetch is at its end; make another one for each epoch")
        return self

    def __next__(self) -> T:
        if self._is_closed:
            raise RuntimeError("this prefetch is closed; make another one")
        if self._work.is_elsewhere():
            raise RuntimeError(
                "this prefetch was made before a fork, and its thread runs in the parent only; "
                "make it in the process that uses it"
            )
        begin = time.monotonic()
        self._first = self._first or begin
        try:
            item: T = self._work.take(self._timeout)()
        except StopIteration:
            self._at_end.add(threading.get_ident())
            raise
        finally:
            self._last = time.monotonic()
            self._waited += self._last - begin
        self._count += 1
        return item

    def __len__(self) -> int:
        """Return the total number of items, if it is known."""
        if self._total is None:
            raise TypeError("the number of items is not known, since the iterable has no length")
        return self._total

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the items so far, flat and ready to be logged.

        Returns
        -------
        dict
            ``prefetch/items``, the items returned; ``prefetch/wait_seconds``, the time spent
            waiting for them; ``prefetch/wait_fraction``, its fraction of the time from the first
            request to the last return; ``prefetch/bytes`` and ``prefetch/copies``, the bytes and
            number of copies to the device so far, including items not returned yet.
        """
        return {
            "prefetch/items": float(self._count),
            "prefetch/wait_seconds": self._waited,
            "prefetch/wait_fraction": self._wait_fraction(),
            "prefetch/bytes": float(self._transfer.bytes),
            "prefetch/copies": float(self._transfer.copies),
        }

    def close(self) -> None:
        """Stop the thread and drop the items that are ready.

        Waits up to 10 seconds for the thread: an iterable cannot be interrupted.
        """
        if not self._is_closed:
            self._is_closed = True
            self._work.stop()
            self._work.join(CLOSE_SECONDS)

    def __enter__(self) -> Prefetcher[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        count = tally(self._count, "item")
        if self._total is not None:
            count = f"{self._count} of {tally(self._total, 'item')}"
        state = ", closed" if self._is_closed else ""
        return f"Prefetcher: {count} handed over, {self._wait_fraction():.0%} waited{state}"

    def _wait_fraction(self) -> float:
        return self._waited / max(self._last - self._first, 1e-9)


class _Bell:
    """Wakes one waiting thread, or the next to wait.

    Unlike a condition, it stays valid when a signal handler raises within it. A ring may be lost
    then, so waiting threads also poll.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """Wake a thread."""
        with suppress(RuntimeError):  # it rings already
            self._lock.release()

    def wait(self, seconds: float) -> None:
        """Wait for a ring, for at most `seconds`."""
        self._lock.acquire(timeout=seconds)


class _Work:
    """The state that the thread and its consumers share. Neither keeps the other alive by it.

    It has no locks, so that signal handlers and finalizers may run anywhere: items are in a deque,
    and everything else is written by one side.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._process = os.getpid()
        # Rung for an item or the end, for room or a stop, and for the end of the thread.
        self._came, self._left, self._gone = _Bell(), _Bell(), _Bell()
        self._ready: deque[HandOver] = deque()
        self._error: BaseException | None = None
        self._has_ended = self._is_stopped = False
        self._doing = "the thread has not begun"
        self._thread: threading.Thread | None = None

    def is_elsewhere(self) -> bool:
        """Return True in a forked child: the thread stayed with the parent."""
        return os.getpid() != self._process

    def is_stopped(self) -> bool:
        """Return True if no more items are needed."""
        return self._is_stopped

    # On the consumers' threads

    def start(self, iterator: Iterator[Any], move: Same) -> None:
        """Begin to make items."""
        self._thread = threading.Thread(
            target=self._run, args=(iterator, move), name="fastcollate-prefetch", daemon=True
        )
        _working.add(self)
        self._thread.start()

    def take(self, timeout: float | None) -> HandOver:
        """Wait for the next item's hand-over, or raise the exception in its place."""
        begin = time.monotonic()
        report = begin + REPORT_EVERY
        while True:
            has_ended = self._has_ended  # before the last look
            if (hand_over := pop_first(self._ready)) is not None:
                self._left.ring()
                self._wake_others()
                return hand_over
            if has_ended:
                self._wake_others()
                error, self._error = self._error or StopIteration(), None
                try:
                    raise error
                finally:
                    del error  # whose traceback holds this frame
            if self._is_stopped:
                self._wake_others()
                raise RuntimeError(
                    "this prefetch was closed during the wait for an item; make another one"
                )
            waited = time.monotonic() - begin
            if timeout is not None and waited >= timeout:
                raise TimeoutError(
                    f"no item for {waited:.1f} s: {self._doing}; pass a longer timeout if that may "
                    "take longer"
                )
            if begin + waited >= report:
                _log.warning("no item for %.0f s: %s", waited, self._doing)
                report += REPORT_EVERY
            self._came.wait(LOOK_EVERY if timeout is None else min(LOOK_EVERY, timeout - waited))

    def _wake_others(self) -> None:
        """Pass a ring on if other threads may also wait for it."""
        if self._ready or self._has_ended or self._is_stopped:
            self._came.ring()

    def stop(self) -> None:
        """Let the thread end after its current item."""
        if self.is_elsewhere():
            return
        self._is_stopped = True
        self._ready.clear()
        self._left.ring()
        self._came.ring()

    def join(self, seconds: float) -> None:
        """Wait for the thread to end, for at most `seconds`."""
        if self._thread is None or self._thread is threading.current_thread():
            return
        if self.is_elsewhere():
            return
        if self._await_end(self._thread, min(LOOK_EVERY, seconds)):
            return
        _log.warning("closing a prefetch waits up to %.0f s: %s", seconds, self._doing)
        if not self._await_end(self._thread, max(seconds - LOOK_EVERY, 0.0)):
            _log.warning("a closed prefetch goes on after %.0f s: %s", seconds, self._doing)

    def _await_end(self, thread: threading.Thread, seconds: float) -> bool:
        """Wait for the thread to end; return True if it has.

        After an interrupt, Thread.is_alive and join alone may report a live thread as ended.
        """
        end = time.monotonic() + seconds
        while not self._has_ended and (left := end - time.monotonic()) > 0:
            self._gone.wait(min(left, LOOK_EVERY))
        if not self._has_ended:
            return False
        self._gone.ring()  # others may wait, too
        thread.join(max(end - time.monotonic(), 0.0))
        return not thread.is_alive()

    # On the thread

    def _run(self, iterator: Iterator[Any], move: Same) -> None:
        error: BaseException | None = None
        try:
            move.begin()
            for number in itertools.count():
                if not self._has_room():
                    break
                self._doing = f"the iterable has not returned item {number}"
                try:
                    item = next(iterator)
                except StopIteration:
                    break
                self._doing = f"item {number} came, but {move.doing}"
                hand_over = move(item)
                del item
                self._put(hand_over)
                del hand_over
            move.check()
        except StoppedError:
            pass
        except BaseException as caught:
            error = caught
        self._error = error
        self._doing = "the iterable has ended"
        self._has_ended = True
        self._came.ring()
        self._gone.ring()
        del error  # and with it, through its traceback, this frame

    def _has_room(self) -> bool:
        """Wait until another item may be made; False if stopped."""
        while len(self._ready) >= self._depth and not self._is_stopped:
            self._left.wait(LOOK_EVERY)
        return not self._is_stopped

    def _put(self, hand_over: HandOver) -> None:
        self._ready.append(hand_over)
        if self._is_stopped:
            self._ready.clear()
        self._came.ring()


_working: weakref.WeakSet[_Work] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """Stop all threads: one in compiled code at exit would abort the program."""
    every = list(_working)
    for work in every:
        work.stop()
    end = time.monotonic() + CLOSE_SECONDS
    for work in every:
        work.join(max(end - time.monotonic(), 0.0))


def _length(iterable: Any) -> int | None:
    try:
        return len(iterable)
    except TypeError:
        return None
