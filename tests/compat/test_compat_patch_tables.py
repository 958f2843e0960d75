"""The tables of `patch()` against the sources of the frameworks, as far as they are here.

They come from `.peers` (after `make peers`) or from the installed packages; nothing is imported.
"""

import ast
import importlib
import importlib.metadata
from pathlib import Path

import pytest

from fastcollate.compat.versions import VERIFIED
from frameworks.installed import FOLDER

PATCHERS = {name: f"fastcollate.compat.{name}" for name in ("skyrl", "transformers", "trl", "verl")}
"""The modules with the tables, by the name of the framework."""


def installed(package):
    """Return the distribution in `.peers`, else the installed one; skip the test without."""
    found = list(importlib.metadata.distributions(name=package, path=[str(FOLDER)]))
    if not found:
        found = list(importlib.metadata.distributions(name=package))
    if not found or found[0].version not in VERIFIED[package]:
        pytest.skip(f"no verified version of {package} in .peers or installed")
    return found[0]


@pytest.fixture(scope="module", params=PATCHERS)
def patcher(request):
    return importlib.import_module(PATCHERS[request.param]).PATCHER


@pytest.fixture(scope="module")
def table(patcher):
    """The table of the version that is here."""
    version = installed(patcher.package).version
    return [
        each for each in patcher.replacements if each.versions is None or version in each.versions
    ]


@pytest.fixture(scope="module")
def sources(patcher, table):
    """The syntax tree of each module of the framework that may bind one of the functions."""
    root = Path(installed(patcher.package).locate_file(""))
    names = {each.name for each in table}
    trees = {}
    for path in root.joinpath(patcher.package).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "import *" in text or any(name in text for name in names):
            parts = path.relative_to(root).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            trees[name] = is_package, ast.parse(text)
    return trees


def at_import(node):
    """Return all nodes that run when a module is imported: not functions' bodies."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            runs = [
                *child.decorator_list,
                *child.args.defaults,
                *filter(None, child.args.kw_defaults),
            ]
        elif isinstance(child, ast.Lambda):
            runs = [*child.args.defaults, *filter(None, child.args.kw_defaults)]
        else:
            yield child
            yield from at_import(child)
            continue
        for each in runs:
            yield each
            yield from at_import(each)


def imports(sources):
    """Return (module, source, name, alias) of all `from source import name` at import."""
    for module, (is_package, tree) in sources.items():
        for node in at_import(tree):
            if isinstance(node, ast.ImportFrom):
                source = node.module or ""
                if node.level:
                    above = module.split(".")
                    above = above[: len(above) - node.level + is_package]
                    source = ".".join([*above, *filter(None, [node.module])])
                for alias in node.names:
                    yield module, source, alias.name, alias.asname


def test_every_import_of_a_function_is_in_the_table(table, sources):
    for each in table:
        origins = {each.module, *each.bound_in}
        found = {
            module
            for module, source, name, alias in imports(sources)
            if name in (each.name, "*") and source in origins
        }
        assert found == set(each.bound_in), each.name
        aliases = [row for row in imports(sources) if row[2] == each.name != (row[3] or row[2])]
        assert not aliases, "patch() looks for the same name in all modules"


def test_every_function_is_defined_where_the_table_has_it(table, sources):
    kinds = ast.FunctionDef | ast.ClassDef
    for each in table:
        _, tree = sources[each.module]
        assert [node for node in tree.body if isinstance(node, kinds) and node.name == each.name], (
            each
        )


def test_no_module_keeps_a_function_in_another_place_at_import(table, sources):
    # A registry, a base class or a default argument would keep the original.
    for each in table:
        for module in (each.module, *each.bound_in):
            kept = [
                node
                for node in at_import(sources[module][1])
                if isinstance(node, ast.Name) and node.id == each.name
            ]
            assert not kept, module


def test_every_object_replaces_one_function(patcher):
    assert len({id(each.replacement) for each in patcher.replacements}) == len(patcher.replacements)
    assert all(
        set(each.versions or ()) <= set(VERIFIED[patcher.package]) for each in patcher.replacements
    )


def test_replacements_have_the_names_of_the_functions(patcher):
    compat = importlib.import_module(patcher.compat)
    for each in patcher.replacements:
        assert getattr(compat, each.name) is each.replacement
    assert {"patch", "unpatch"} <= set(compat.__all__)
