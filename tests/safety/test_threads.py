"""Threads that share objects as documented, with the GIL and without it."""

import subprocess
import sys
import sysconfig
import threading

import pytest
from stress_threads import stress

from fastcollate._fastcollate import group_offsets


@pytest.fixture
def hasty_switches():
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hasty_switches")
def test_threads_share_inputs_a_pool_and_a_builder():
    """For long by ``python tests/helpers/stress_threads.py``."""
    steps, _ = stress(threads=6, seconds=2.0)
    assert steps > 50


@pytest.mark.usefixtures("hasty_switches")
def test_ids_that_another_thread_replaces():
    """Non-ASCII texts without other references."""
    ids = [f"\u03b1{index // 4}" for index in range(400)]
    is_done = False

    def replace():
        step = 0
        while not is_done:
            step += 1
            ids[step % 400] = f"\u03b1{step % 400 // 4}"

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for _ in range(300):
            offsets, _ = group_offsets(ids, "uids", True)
            assert offsets.tolist() == list(range(0, 401, 4))
    finally:
        is_done = True
        thread.join()


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this build of Python has a GIL"
)
def test_the_gil_stays_off():
    code = "import sys, fastcollate; assert not sys._is_gil_enabled()"
    subprocess.run([sys.executable, "-c", code], check=True)
