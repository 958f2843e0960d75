"""Modules form layers: none imports, even by way of others, one that imports it."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import fastcollate as fc

ROOT = Path(fc.__file__).parent
NEEDS_RAY = "fastcollate.ray"


def name_of(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree, for_types=False):
    """Return the imports of a module and of its functions; those for type checkers if asked."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not for_types:
            continue
        if isinstance(node, ast.ImportFrom):
            yield from [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from imported(node, for_types)


def test_no_module_imports_itself_by_way_of_others():
    sources = {name_of(path): path for path in ROOT.rglob("*.py")}
    graph = {}
    for name, path in sources.items():
        found = {one for one in imported(ast.parse(path.read_text())) if one in sources}
        # Packages import only for their users, and Ray is imported on use.
        packages = {one for one in found if sources[one].name == "__init__.py"}
        graph[name] = found - packages - {one for one in found if one.startswith(NEEDS_RAY)}
    assert len(graph) > 100
    assert "fastcollate.ops.collating" in graph["fastcollate.build"]
    assert list(TopologicalSorter(graph).static_order())  # raises CycleError


CALLS = {f"fastcollate.{name}" for name in ("build", "builder", "collator")}
BATCHES = {f"fastcollate.{name}" for name in ("batch", "batch_mapping", "batch_model")}


@pytest.mark.parametrize("folder", ["ingest", "plan", "ops", "handover", "view"])
def test_operations_know_no_batch(folder):
    """They take its plan, its arrays or its state; annotations count."""
    for path in (ROOT / folder).glob("*.py"):
        modules = set(imported(ast.parse(path.read_text()), for_types=True))
        assert not modules & (CALLS | BATCHES), path


def test_analysis_and_display_are_imported_on_use():
    code = "import sys, fastcollate; print(*sorted(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    packages = {name_of(path) for path in ROOT.rglob("__init__.py")}
    ours = {name for name in loaded - packages if name.startswith("fastcollate.")}
    assert len(ours) <= 65
    named = re.compile(r"\.(view|report)\.|audit|forecast|fitting|report|check|to_device|prefetch")
    assert not [name for name in ours if named.search(name)]


def test_names_that_are_imported_on_use():
    for module in (fc, fc.planning, fc.memory):
        assert set(module.__all__) <= set(dir(module))
        assert all(getattr(module, name) is getattr(module, name) for name in module.__all__)
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = module.nothing
