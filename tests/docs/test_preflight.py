"""A missing package, an old Python or an unusable device ends an example with one line."""

import ast
import re
import sys

import pytest
from example_runs import EXAMPLES, run_example

from tutorials import preflight

SCRIPTS = ["demo.py", "train_grpo.py"] + [
    f"tutorials/{path.name}"
    for path in sorted(EXAMPLES.glob("tutorials/*.py"))
    if path.stem != "preflight"
]

# Imports of other packages take seconds, so a stand-in takes their place.
STAND_INS = """
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

class StandIns:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return MagicMock()

    def exec_module(self, module):
        pass

sys.meta_path.insert(0, StandIns())
sys.modules[{missing!r}] = None  # Python then acts as if it were not installed
"""


def packages_of(script):
    """Return the packages that a script imports."""
    names = set()
    for node in ast.walk(ast.parse((EXAMPLES / script).read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.partition(".")[0])
    own = {path.stem for path in EXAMPLES.rglob("*")} | {"frameworks"}
    return sorted(names - sys.stdlib_module_names - own)


def assert_one_line(run, message):
    assert run.returncode == 1
    assert re.fullmatch(message + r"\n", run.stderr), run.stderr
    assert not run.stdout


def test_every_package_has_a_line_to_install_it():
    assert {name for script in SCRIPTS for name in packages_of(script)} <= {*preflight.INSTALL}


@pytest.mark.parametrize("script", SCRIPTS)
def test_missing_packages(script):
    package = packages_of(script)[-1]
    others = tuple(name for name in preflight.INSTALL if name != package)
    run = run_example(script, before=STAND_INS.format(names=others, missing=package))
    assert_one_line(run, rf"{package} is not installed; run: pip install [^\n]+")


def test_old_pythons():
    run = run_example("demo.py", before="sys.version_info = (3, 9, 18)")
    assert_one_line(run, "Python 3.9.18 is too old; run this with Python 3.10 or newer")
