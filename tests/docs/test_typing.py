"""Programs like those of the README pass a strict type checker."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import fastcollate as fc

pytestmark = pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")

PROGRAM = (Path(__file__).parents[1] / "helpers" / "typed_program.py").read_text()

CONFIG = """
[mypy]
strict = true
follow_imports = silent
[mypy-torch.*]
follow_imports = skip
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Keep mypy's cache of NumPy and of the package for the next program."""
    return tmp_path_factory.mktemp("mypy")


def checked(program, folder, cache):
    (folder / "program.py").write_text(program)
    (folder / "mypy.ini").write_text(CONFIG)
    # A wheel is found by itself, and mypy wants no path that it finds.
    found = Path(fc.__file__).parent.parent
    path = {} if found.name == "site-packages" else {"MYPYPATH": str(found)}
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(cache), "program.py"],
        cwd=folder,
        env={**os.environ, **path},
        capture_output=True,
        text=True,
        check=False,
    )
    return run.returncode, run.stdout + run.stderr


def test_what_is_wrong_in_a_program(tmp_path, cache):
    lines = PROGRAM.replace("batch.max_seqlen, int", "batch.max_seqlen, str").split("\n")
    wrong = [n for n, line in enumerate(lines, 1) if "type: ignore" in line or "str)" in line]
    code, said = checked(re.sub("  # type: ignore.*", "", "\n".join(lines)), tmp_path, cache)
    assert code == 1
    assert sorted(set(map(int, re.findall(r"(?m)^program.py:(\d+): error", said)))) == wrong
