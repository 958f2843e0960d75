"""What the pages on frameworks import from them is there, for snippets that need a whole framework.

Nothing is imported: the sources of `make peers` are parsed.
"""

import ast
import re
from importlib.util import resolve_name
from pathlib import Path

import pytest

from frameworks.installed import FOLDER

PAGES = Path(__file__).parents[2] / "docs/frameworks"
IMPORT = re.compile(r"\b(?:from ([\w.]+) )?import (\w[\w.]*(?:, \w+)*)")


def imports_of(framework):
    """Return the modules and names that a page imports from its framework; None for no name."""
    text = (PAGES / f"{framework}.md").read_text("utf-8")
    found = set()
    for module, names in IMPORT.findall(text):
        for name in names.split(", "):
            found.add((module, name) if module else (name, None))
    return sorted(
        (each for each in found if each[0].partition(".")[0] == framework),
        key=lambda each: (each[0], each[1] or ""),
    )


def source_of(module):
    """Return the file of a module in `.peers`, or None."""
    path = FOLDER.joinpath(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((each for each in candidates if each.exists()), None)


def names_of(module):
    """Return the names that a module binds."""
    path = source_of(module)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return set(bound_by(ast.parse(path.read_text("utf-8")).body, package))


def bound_by(statements, package):
    """Return the names that statements bind, also under conditions."""
    for each in statements:
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield each.name
        elif isinstance(each, ast.ImportFrom) and each.names[0].name == "*":
            yield from names_of(resolve_name("." * each.level + (each.module or ""), package))
        elif isinstance(each, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in each.names)
        elif isinstance(each, (ast.Assign, ast.AnnAssign)):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        elif isinstance(each, (ast.If, ast.Try)):
            yield from bound_by(ast.iter_child_nodes(each), package)
        elif isinstance(each, ast.ExceptHandler):
            yield from bound_by(each.body, package)


FRAMEWORKS = ("nemo_rl", "skyrl", "trl", "verl")
IMPORTS = [each for name in FRAMEWORKS for each in imports_of(name)]


def test_the_pages_import_something():
    assert {module.partition(".")[0] for module, _ in IMPORTS} == set(FRAMEWORKS)
    assert ("skyrl.train.entrypoints.main_base", "BasePPOExp") in IMPORTS


@pytest.mark.parametrize(("module", "name"), IMPORTS)
def test_an_imported_name_is_there(module, name):
    if not (FOLDER / module.partition(".")[0]).exists():
        pytest.skip("it is not in .peers")
    assert source_of(module), f"there is no module {module}"
    if name is not None:
        is_there = name in names_of(module) or source_of(f"{module}.{name}")
        assert is_there, f"{module} has no {name}"
