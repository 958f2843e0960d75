"""TRL's trainers have the same losses with our functions and collators as with their own."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from frameworks.installed import FOLDER

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not (FOLDER / "trl").exists()
    or any(find_spec(name) is None for name in ("accelerate", "datasets", "transformers")),
    reason="needs `make peers`, accelerate, datasets and transformers",
)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    # TRL alone: the other frameworks of the folder must not be found by its imports.
    folder = tmp_path_factory.mktemp("trl")
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
        [sys.executable, "-W", "ignore", ROOT / "tests/helpers/trl_trainers.py"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stderr.splitlines()[-1])


@pytest.mark.parametrize(("name", "runs"), [("sft bfd_split", 3), ("sft wrapped", 2), ("dpo", 2)])
def test_losses_are_the_same(found, name, runs):
    own, *ours = found[name]
    assert len(set(own)) == len(own) == 3
    assert ours == [own] * (runs - 1)


def test_the_trainer_calls_ours(found):
    assert "trl.trainer.sft_trainer.pack_dataset" in found["bindings"]


def test_the_snippets_of_the_page(found):
    patched, packed, preferences = found["page"]
    assert patched == packed
    assert len(set(patched)) == len(set(preferences)) == 3
