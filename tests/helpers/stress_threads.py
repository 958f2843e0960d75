"""Threads that build, merge, plan, add to one builder and share one pool, each result compared.

    python tests/helpers/stress_threads.py --threads 16 --seconds 600

They read the same rows, which do not change: results are those of one thread, byte by byte. Other
lists are changed by some threads while the rest reads them: then a batch has nothing but what they
held at some time, or the call raises an error that says so.
"""

from __future__ import annotations

import argparse
import array
import faulthandler
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import fastcollate as fc

PATIENCE = 120.0
"""Seconds without a step after which a thread hangs."""

ROWS = 24


class Seven:
    """A token id that lets other threads run while it is read."""

    def __index__(self) -> int:
        time.sleep(0)
        return 7


def as_bytes(value: Any) -> Any:
    """Return arrays, wherever they are, as bytes with what says how to read them."""
    if isinstance(value, Mapping):
        return {key: as_bytes(one) for key, one in value.items()}
    if isinstance(value, list):
        return list(map(as_bytes, value))
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return value


class Work:
    """Input of all threads, their calls, and the expected results."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        prompts = [rng.integers(0, 10**9, n).tolist() for n in rng.integers(1, 60, ROWS)]
        responses = [rng.integers(0, 10**9, n).tolist() for n in rng.integers(1, 60, ROWS)]
        rewards = [rng.random(len(row)).tolist() for row in responses]
        kinds: list[Callable[[list[int]], Any]] = [
            list,
            tuple,
            np.array,
            lambda row: np.array(row, ">i4"),
            lambda row: array.array("q", row),
        ]
        mixed = [kinds[index % len(kinds)](row) for index, row in enumerate(prompts)]
        offsets = np.cumsum([0, *map(len, responses)])
        ragged = fc.Ragged(np.concatenate(responses), offsets)
        scores = fc.Ragged(np.concatenate(rewards).astype(np.float32), offsets)
        more = {"scores": fc.Field(scores), "numbers": fc.PerRow(np.arange(ROWS))}
        lists = {"prompts": prompts, "responses": responses, "rewards": rewards}
        self.builds: list[dict[str, Any]] = [
            lists,
            lists | {"layout": fc.TwoSegment(multiple_of=8)},
            lists | {"layout": "jagged", "dtypes": "compact"},
            lists | {"layout": fc.Packed(capacity=256)},
            {"prompts": mixed, "responses": ragged, "fields": more, "loss_mask": rewards},
            {"prompts": ragged, "responses": mixed, "layout": "right"},
        ]
        # Each prompt goes on from the turn before, but for the third of four, which has drifted.
        turns: tuple[list[Any], list[Any]] = ([], [])
        for index in range(ROWS):
            before = turns[0][-1] + turns[1][-1] if index % 4 else []
            drift = [*before[:-1], 1] if index % 4 == 2 else before
            turns[0].append(drift + prompts[index][:5])
            turns[1].append(responses[index])
        arrays = tuple([np.array(row) for row in rows] for rows in turns)
        policies = ("exact", "branch", "realign")
        self.merges = [(rows, policy) for rows in (turns, arrays) for policy in policies]
        self.trajectory_ids = [f"t{index // 4}" for index in range(ROWS)]
        # Texts that are equal, but not the same objects, and not ASCII.
        self.uids = ["".join(["\u03b1", str(index // 4)]) for index in range(ROWS)]
        self.lengths = rng.integers(1, 200, 500).tolist()
        self.pool = fc.memory.BufferPool(1 << 22)
        self.options = {"pad_token_id": 0, "array_type": "numpy", "pool": self.pool}
        self.one_thread = {
            "build": [self.build(index) for index in range(len(self.builds))],
            "merge": [self.merge(index) for index in range(len(self.merges))],
            "plan": [self.plan(0)],
        }
        self.rows = list(zip(prompts, responses, rewards, strict=True))
        self.index_of = {tuple(row[0] + row[1]): index for index, row in enumerate(self.rows)}
        self.builder = fc.BatchBuilder(layout="jagged", **self.options)
        self.added: list[int] = []
        self.finished: list[int] = []
        self.finishing = threading.Lock()
        self.changing: list[list[Any]] = [[7] * 50 for _ in range(8)]
        self.made: list[fc.Batch | None] = [None] * 4
        self.refused = Counter[str]()

    # Calls with the same results as in one thread

    def build(self, index: int) -> Any:
        """Build a batch."""
        return as_bytes(fc.build_batch(**self.builds[index], **self.options))

    def merge(self, index: int) -> Any:
        """Merge turns, and build a batch of them."""
        rows, policy = self.merges[index]
        plan = fc.merge_turns(*rows, trajectory_ids=self.trajectory_ids, policy=policy)
        batch = fc.build_batch(*rows, merge=plan, **self.options)
        return as_bytes(plan.to_dict()), as_bytes(batch), str(plan.report)

    def plan(self, _: int) -> Any:
        """Plan a step, pack and part."""
        lens = np.array(self.lengths[:ROWS])
        step = fc.plan_step(lens, uids=self.uids, prompts_per_mini_batch=2, dp_size=2)
        bins = fc.planning.pack(self.lengths, fc.Packed(512))
        return (
            as_bytes(step.to_dict()),
            as_bytes(list(bins._values())),
            fc.planning.partition(self.lengths, 7),
        )

    def same_as_one_thread(self, what: str) -> None:
        """Do one of these, and compare."""
        index = random.randrange(len(self.one_thread[what]))
        assert getattr(self, what)(index) == self.one_thread[what][index], (what, index)

    # Interference between threads

    def add(self) -> None:
        """Add a row to the builder of all."""
        index = random.randrange(ROWS)
        prompt, response, rewards = self.rows[index]
        self.builder.add(prompt, np.array(response), rewards=rewards)
        self.added.append(index)

    def finish(self) -> None:
        """Build the batch of the rows that are there, one thread at a time."""
        if self.finishing.acquire(blocking=False):
            try:
                if len(self.builder) > 0:
                    self.check_finished(self.builder.finish())
            finally:
                self.finishing.release()

    def check_finished(self, batch: fc.Batch) -> None:
        """Compare with a batch of the same rows."""
        ends = np.cumsum(batch.plan.prompt_lens + batch.plan.response_lens)[:-1]
        found = [self.index_of[tuple(row.tolist())] for row in np.split(batch.input_ids, ends)]
        columns = zip(*[self.rows[index] for index in found], strict=True)
        rows = dict(zip(("prompts", "responses", "rewards"), map(list, columns), strict=True))
        expected = fc.build_batch(**rows, layout="jagged", pad_token_id=0, array_type="numpy")
        assert as_bytes(batch) == as_bytes(expected), "builder"
        self.finished += found

    def replace(self) -> None:
        """Build a batch in place of one that any thread made, and leave it to any thread."""
        slot, index = random.randrange(len(self.made)), random.randrange(len(self.builds))
        batch = fc.build_batch(**self.builds[index], **self.options)
        self.made[slot] = batch
        assert as_bytes(batch) == self.one_thread["build"][index], ("replace", index)

    def change(self) -> None:
        """Change lists that others read."""
        row = random.choice(self.changing)
        how = random.randrange(5)
        if how == 0:
            row.append(7)
        elif how == 1 and len(row) > 100:
            row.clear()
        elif how == 2:
            row[len(row) // 2 :] = [7] * random.randrange(50)
        elif how == 3:
            row.insert(0, random.choice([7, np.int64(7), Seven()]))
        else:
            row.reverse()

    def read_changing(self) -> None:
        """Read lists that others change."""
        rows = self.changing
        try:
            if random.random() < 0.5:
                fc.merge_turns(rows, rows, trajectory_ids=[0] * len(rows))
                return
            batch = fc.build_batch(rows, rows, **self.options)
        except ValueError as error:
            if "changed from" not in str(error):
                raise
            self.refused["changed"] += 1
            return
        assert (batch.input_ids == 7 * batch.attention_mask).all(), "changing"


STEPS: list[tuple[Callable[[Work], None], int]] = [
    (lambda work: work.same_as_one_thread("build"), 4),
    (lambda work: work.same_as_one_thread("merge"), 3),
    (lambda work: work.same_as_one_thread("plan"), 2),
    (Work.add, 6),
    (Work.finish, 1),
    (Work.replace, 3),
    (Work.change, 4),
    (Work.read_changing, 3),
]
"""Steps of a thread, and their weights."""


def stress(threads: int, seconds: float, seed: int = 0) -> tuple[int, Counter[str]]:
    """Let threads work together.

    Returns
    -------
    tuple
        Number of steps, and of inputs or `out` found changed.

    Raises
    ------
    Exception
        The first that a thread raised: what was wrong.
    """
    work = Work(seed)
    counts = [0] * threads
    errors: list[BaseException] = []
    end = time.monotonic() + seconds
    steps, weights = zip(*STEPS, strict=True)

    def run(thread: int) -> None:
        try:
            while time.monotonic() < end and not errors:
                random.choices(steps, weights)[0](work)
                counts[thread] += 1
        except BaseException as error:
            errors.append(error)

    every = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(threads)]
    for thread in every:
        thread.start()
    last, since = list(counts), [time.monotonic()] * threads
    while any(thread.is_alive() for thread in every):
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        time.sleep(min(1.0, seconds / 10))
        now = time.monotonic()
        for index, thread in enumerate(every):
            if counts[index] != last[index] or not thread.is_alive():
                last[index], since[index] = counts[index], now
            elif now - since[index] > PATIENCE:
                faulthandler.dump_traceback()
                raise TimeoutError(f"thread {index} hangs after {counts[index]} steps")
    faulthandler.cancel_dump_traceback_later()
    if errors:
        raise errors[0]
    work.finish()  # of what was added last
    assert Counter(work.added) == Counter(work.finished), "rows were lost, or came twice"
    return sum(counts), work.refused


def scaling(work: Work, seconds: float = 1.0) -> dict[str, float]:
    """Measure how many times as much two threads do as one, each with rows of its own."""
    rows = [list(range(1000)) for _ in range(100)]
    inputs = {"lists": rows, "arrays": [np.array(row) for row in rows]}
    ids = [0] * 5 + [1] * 95

    def build(rows: list[Any]) -> None:
        fc.build_batch(rows, rows, **work.options)

    def merge(rows: list[Any]) -> None:
        fc.merge_turns(rows, rows, trajectory_ids=ids)

    def done(step: Callable[[list[Any]], None], rows: list[Any], threads: int) -> int:
        counts = [0] * threads
        start = threading.Barrier(threads)

        def run(thread: int) -> None:
            own = [row.copy() for row in rows]
            start.wait()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                step(own)
                counts[thread] += 1

        every = [threading.Thread(target=run, args=(index,)) for index in range(threads)]
        for thread in every:
            thread.start()
        for thread in every:
            thread.join()
        return sum(counts)

    return {
        f"{step.__name__}, {kind}": round(done(step, rows, 2) / done(step, rows, 1), 2)
        for step in (build, merge)
        for kind, rows in inputs.items()
    }


def main() -> None:
    """Work for the given time."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sys.setswitchinterval(1e-6)
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(f"Python {sys.version}, {'with the' if has_gil else 'without a'} GIL", flush=True)
    print(f"two threads do so many times as much as one: {scaling(Work(0))}", flush=True)
    steps, refused = stress(arguments.threads, arguments.seconds, arguments.seed)
    print(f"{steps:,} steps of {arguments.threads} threads, all right; refused: {dict(refused)}")


if __name__ == "__main__":
    main()
