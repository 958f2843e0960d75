"""Scripts that train by TRL, in a process that finds TRL in `.peers`."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from frameworks.installed import FOLDER

ROOT = Path(__file__).parents[2]

NEEDS_TRL = pytest.mark.skipif(
    not (FOLDER / "trl").exists()
    or any(find_spec(name) is None for name in ("accelerate", "datasets", "transformers")),
    reason="needs `make peers`, accelerate, datasets and transformers",
)


def results_of(script, folder):
    """Run a script of `tests/helpers`, which prints JSON as its last line of stderr."""
    # TRL alone: the other frameworks of the folder must not be found by its imports.
    for path in FOLDER.glob("trl*"):
        (folder / path.name).symlink_to(path, target_is_directory=True)
    paths = [folder, ROOT, *filter(None, sys.path)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "HF_HOME": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    run = subprocess.run(
        [sys.executable, "-W", "ignore", ROOT / "tests/helpers" / script],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stderr.splitlines()[-1])
