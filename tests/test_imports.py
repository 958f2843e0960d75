"""Modules form layers: none imports, even by way of others, one that imports it."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import fastcollate as fc

ROOT = Path(fc.__file__).parent
NEEDS_RAY = "fastcollate.ray"


def name_of(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree):
    """Return the imports of a module and of its functions, except those for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom):
            yield from [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from imported(node)


def test_no_module_imports_itself_by_way_of_others():
    sources = {name_of(path): path for path in ROOT.rglob("*.py")}
    graph = {}
    for name, path in sources.items():
        found = {one for one in imported(ast.parse(path.read_text())) if one in sources}
        # Packages import only for their users, and Ray is imported on use.
        packages = {one for one in found if sources[one].name == "__init__.py"}
        graph[name] = found - packages - {one for one in found if one.startswith(NEEDS_RAY)}
    assert len(graph) > 100
    assert "fastcollate.core_call" in graph["fastcollate.build"]
    assert list(TopologicalSorter(graph).static_order())  # raises CycleError


def test_plans_know_no_batch():
    for path in (ROOT / "plan").glob("*.py"):
        modules = set(imported(ast.parse(path.read_text())))
        assert not modules & {"fastcollate.batch", "fastcollate.core_call", "fastcollate.build"}, (
            path
        )
