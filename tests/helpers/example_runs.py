"""Runs of example scripts, as a reader runs them."""

import io
import os
import re
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import patch

EXAMPLES = Path(__file__).parents[2] / "examples"

START = """
import runpy, sys
sys.path.insert(0, {folder!r})  # as Python does for a script
{before}
sys.argv = [{path!r}, *{arguments!r}]
runpy.run_path({path!r}, run_name="__main__")
"""


def run_example(script, *arguments, before=""):
    """Run a script of `examples` in a new process, after some statements; return the process."""
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
    """Run a script of `examples` here, where torch is imported; return what it prints."""
    path = str(EXAMPLES / script)
    with patch.object(sys, "argv", [path, *arguments]), redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(path, run_name="__main__")
    return printed.getvalue()


def numbers(name, text):
    """Return the numbers after a name, in order."""
    return [float(found) for found in re.findall(rf"{name} (-?[\d.]+)", text)]
