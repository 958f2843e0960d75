"""Runs of example scripts in a process of their own, as a reader runs them."""

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"

START = """
import runpy, sys
sys.path.insert(0, {folder!r})  # as Python does for a script
{before}
sys.argv = [{path!r}, *{arguments!r}]
runpy.run_path({path!r}, run_name="__main__")
"""


def run_example(script, *arguments, before=""):
    """Run a script of `examples`, after some statements; return the finished process."""
    path = EXAMPLES / script
    code = START.format(folder=str(path.parent), path=str(path), arguments=arguments, before=before)
    # Python finds the package where this process does.
    paths = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment, capture_output=True, text=True, encoding="utf-8", timeout=300,
    )  # fmt: skip


def output_of(script, *arguments):
    """Return the output of a script, which has to succeed without an error or a warning."""
    run = run_example(script, *arguments)
    assert run.returncode == 0, run.stderr
    return run.stdout


def numbers(name, text):
    """Return the numbers after a name, in order."""
    return [float(found) for found in re.findall(rf"{name} (-?[\d.]+)", text)]
