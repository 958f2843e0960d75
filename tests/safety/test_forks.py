"""Forks in the midst of a call: parent and child both build the batch."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

SECONDS = 60
"""What must happen happens long before; else a test fails instead of hanging."""

FORKING = """if True:
    import os, signal, sys, time
    import numpy as np
    import fastcollate as fc

    signal.alarm(40)  # whoever hangs is ended
    child = None

    def fork(*_):
        global child
        if child is None:
            child = os.fork()
        return 7

    class Forks:
        __index__ = fork

    def end(batch, expected):
        assert np.array_equal(batch.input_ids, expected)
        assert batch.attention_mask.all()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
"""


def run(code, seconds=SECONDS):
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING + code], check=True, timeout=seconds
    )


@pytest.mark.parametrize("row", [0, 1, 20, 59])
def test_an_item_that_forks_while_another_thread_helps(row):
    """More than 64 MiB, from where on there is one."""
    run(f"""
    rows = [[7] * 100_000] * 60
    rows[{row}] = [7] * 50_000 + [Forks()] + [7] * 49_999
    batch = fc.build_batch(rows, [[7]] * 60, pad_token_id=0, array_type="numpy")
    end(batch, np.full((60, 100_001), 7))
    """)


@pytest.mark.parametrize("after", [0.001, 0.02, 0.05])
def test_a_signal_handler_that_forks_while_other_threads_help(after):
    run(f"""
    rows = [np.full(100_000, 7)] * 150
    signal.signal(signal.SIGALRM, fork)
    signal.setitimer(signal.ITIMER_REAL, {after})
    for _ in range(100):
        batch = fc.build_batch(rows, [[7]] * 150, pad_token_id=0, array_type="numpy")
        if child is not None:
            break
    end(batch, np.full((150, 100_001), 7))
    """)


def test_threads_fork_while_another_builds():
    run("""
    import threading
    rows = [np.full(100_000, 7)] * 150
    ends = []

    def fork_often():
        for _ in range(20):
            one = os.fork()
            if one == 0:
                batch = fc.build_batch(rows[:80], [[7]] * 80, pad_token_id=0, array_type="numpy")
                os._exit(0 if (batch.input_ids == 7).all() else 1)
            ends.append(os.waitpid(one, 0)[1])

    thread = threading.Thread(target=fork_often)
    thread.start()
    while thread.is_alive():
        batch = fc.build_batch(rows, [[7]] * 150, pad_token_id=0, array_type="numpy")
        assert (batch.input_ids == 7).all()
    assert ends == [0] * 20
    """)


def test_forks_while_threads_share_a_pool():
    """Locks of pools are free in the child, or are not taken."""
    run("""
    import threading
    sys.setswitchinterval(1e-6)
    ids, expected = np.full((5, 10), 7), np.full((5, 20), 7)
    pool = fc.memory.BufferPool(1 << 20)

    def build():
        return fc.build_batch(ids, ids, pad_token_id=0, array_type="numpy", pool=pool)

    def work():
        while not is_done:
            build()

    def work_in_child():
        assert np.array_equal(kept.input_ids, expected)
        pool.clear()
        repr(pool)
        assert np.array_equal(build().input_ids, expected)

    is_done = False
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        kept = build()
        one = os.fork()
        if one == 0:
            signal.alarm(20)
            work_in_child()
            os._exit(0)
        assert os.waitpid(one, 0)[1] == 0
    is_done = True
    for thread in threads:
        thread.join()
    """)


CALLS = {
    "build": 'fc.build_batch(*turns, pad_token_id=0, array_type="numpy")',
    "build, lists": 'fc.build_batch(*lists, pad_token_id=0, array_type="numpy")',
    "builder": "([builder.add(*row) for row in zip(*lists)], builder.finish())",
    "check": "batch.check()",
    "gather": "batch.gather(batch.loss_mask)",
    "merge": 'fc.merge_turns(*turns, trajectory_ids=ids, policy="branch")',
    "micro-batches": "planning.micro_batches(lens, 4096, dp_size=4)",
    "pack": "planning.pack(lens, fc.Packed(4096))",
    "parse": "fc.rollouts.parse(bodies).to_arrow()['responses'].to_pylist()",
    "pickle": "pickle.loads(pickle.dumps(batch))",
    "select": "batch.select(rows=range(0, 20_000, 3))",
    "split": "planning.pack(lens, fc.Packed(16, oversize='split'))",
    "partition": "planning.partition(lens, 64)",
    "step": "fc.plan_step(lens, dp_size=4, layout=fc.Packed(4096))",
    "tree": "planning.prefix_tree(*turns).report",
    "tree, built": "fc.build_batch(*turns, **numpy, layout=fc.Tree(4096))",
    "tree, packed": "tree.pack(fc.Tree(4096))",
}


def test_forks_while_another_thread_calls():
    """No lock is held in the child, not even that of cached properties of old Pythons.

    Both have the results of a call without forks.
    """
    calls = "\n".join(f"        {name!r}: lambda: {call}," for name, call in CALLS.items())
    run(
        f"""
    import json
    import pickle
    import threading
    from fastcollate import planning
    lens = np.arange(20_000) % 199 + 1
    ids = np.arange(20_000) // 4

    def ragged(lens):
        return fc.Ragged(np.arange(lens.sum()) % 7, np.append(0, lens.cumsum()))

    turns = ragged(lens % 17 + 1), ragged(lens % 23 + 1)
    lists = [rows.to_list()[:2000] for rows in turns]
    batch = fc.build_batch(*turns, pad_token_id=0, array_type="numpy", layout="jagged")
    builder = fc.BatchBuilder(pad_token_id=0, array_type="numpy")
    body = json.dumps({{"prompt_token_ids": [1], "choices": [{{"token_ids": [2, 3]}}]}}).encode()
    bodies = [body] * 2000
    tree = planning.prefix_tree(*turns)
    numpy = {{"pad_token_id": 0, "array_type": "numpy"}}
    few = [rows[:50] for rows in lists]
    small = fc.build_batch(*few, **numpy)

    def fork_often(name, act, expected, ends):
        for _ in range(12):
            one = os.fork()
            if one == 0:
                signal.alarm(20)
                planning.pack(lens[:100], fc.Packed(4096))
                fc.plan_step(lens[:100], dp_size=2)
                planning.prefix_tree([[1, 2], [1]], [[3], [4]]).report
                fc.merge_turns([[1], [1, 2, 3]], [[2], [4]], trajectory_ids=[0, 0]).report
                again = fc.build_batch(*few, **numpy)
                assert pickle.dumps(again) == pickle.dumps(small)
                # Rows of the other thread's may be in the builder.
                assert pickle.dumps(act()) == expected or name == "builder"
                os._exit(0)
            ends.append(os.waitpid(one, 0)[1])

    calls = {{
{calls}
    }}
    for name, act in calls.items():
        signal.alarm(120)
        expected, ends = pickle.dumps(act()), []
        thread = threading.Thread(target=fork_often, args=(name, act, expected, ends))
        thread.start()
        while thread.is_alive():
            assert pickle.dumps(act()) == expected, name
        assert ends == [0] * 12, name
    """,
        600,
    )
