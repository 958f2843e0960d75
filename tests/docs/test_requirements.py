"""Missing packages, old versions and an extension that is not built: one line that helps."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fastcollate as fc
from fastcollate.common import requirements

ROOT = Path(fc.__file__).parent
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"

OLD = (
    "import importlib.util, sys\n"
    "spec = importlib.util.spec_from_loader({0!r}, None)\n"
    "old = sys.modules[{0!r}] = importlib.util.module_from_spec(spec)\n"
    "old.__version__ = {1!r}"
)
MISSING = "import sys; sys.modules[{!r}] = None"  # an import of it fails as if it were not there
BATCH = "import fastcollate as fc; fc.build_batch([[1]], [[2]], pad_token_id=0)"


@pytest.mark.parametrize(
    ("before", "program", "message"),
    [
        (
            "import sys; sys.version_info = (3, 9, 18, 'final', 0)",
            "import fastcollate",
            "fastcollate needs Python 3.10 or newer, and this is 3.9.18: use another virtual "
            "environment",
        ),
        (
            MISSING.format("numpy"),
            "import fastcollate",
            "fastcollate needs NumPy: pip install numpy",
        ),
        (
            OLD.format("numpy", "1.25.2"),
            "import fastcollate",
            "fastcollate needs NumPy 1.26 or newer, and this is 1.25.2: pip install --upgrade "
            "numpy",
        ),
        (
            MISSING.format("fastcollate._fastcollate"),
            "import fastcollate.planning",
            f"fastcollate is not built for Python 3.{sys.version_info[1]}: in a checkout run "
            "make build, elsewhere pip install --force-reinstall fastcollate",
        ),
        (
            MISSING.format("torch"),
            BATCH,
            "array_type='torch' needs torch: pip install 'fastcollate[torch]', or pass "
            "array_type='numpy'",
        ),
        (
            OLD.format("torch", "2.4.1+cpu"),
            BATCH,
            "fastcollate needs torch 2.6 or newer, and this is 2.4.1+cpu: pip install --upgrade "
            "torch, or pass array_type='numpy'",
        ),
        (
            MISSING.format("torch"),
            "import fastcollate as fc; fc.prefetch([], device='cuda')",
            "device needs torch: pip install 'fastcollate[torch]'",
        ),
        (
            MISSING.format("ray"),
            "import fastcollate.ray",
            "fastcollate.ray needs Ray: pip install 'fastcollate[ray]'",
        ),
        (
            OLD.format("ray", "2.41.0"),
            "import fastcollate.ray",
            "fastcollate needs Ray 2.51 or newer, and this is 2.41.0: pip install --upgrade ray",
        ),
    ],
)
def test_the_error_says_what_to_do(before, program, message):
    done = subprocess.run(
        [sys.executable, "-c", f"{before}\n{program}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ImportError: {message}"


@pytest.mark.parametrize(
    ("version", "is_older"),
    [("1.25.2", True), ("0.9", True), ("1.26.0rc1", False), ("1.30", False), ("2.0", False),
     ("2026.1+local", False), ("git", False)],
)  # fmt: skip
def test_versions_are_compared_as_numbers(version, is_older):
    assert requirements.is_older(version, (1, 26)) is is_older


@pytest.mark.parametrize("name", ["__init__.py", "common/requirements.py"])
def test_old_pythons_can_read_the_check(name):
    assert ast.parse((ROOT / name).read_text("utf-8"), feature_version=(3, 7))


def test_the_least_versions_are_those_of_the_metadata():
    text = PYPROJECT.read_text("utf-8")
    assert re.search('requires-python = ">=(.*)"', text)[1] == requirements.dotted(
        requirements.LEAST_PYTHON
    )
    for name in ("numpy", "torch", "ray"):
        least = getattr(requirements, f"LEAST_{name.upper()}")
        assert re.search(f'"{name}>=(.*?)"', text)[1] == requirements.dotted(least)


def test_devices_that_torch_cannot_use():
    torch = pytest.importorskip("torch")
    batch = fc.build_batch([[1]], [[2]], pad_token_id=0)
    for device in ("nonsense", *(() if torch.cuda.is_available() else ("cuda",))):
        for move in (batch.to, lambda device: fc.prefetch([batch], device=device)):
            message = rf"^device is '{device}', which torch cannot use here \(.*\); pass .*'cpu'$"
            with pytest.raises(RuntimeError, match=message):
                move(device)
    with pytest.raises(RuntimeError, match=r"^device is 'gpu', .*; torch calls GPUs .* 'cuda'$"):
        batch.to("gpu")
