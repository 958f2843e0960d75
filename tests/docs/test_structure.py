"""The structure of the package: directions between folders, and what an import loads."""

import re
from pathlib import Path

import pytest
from structure import ROOT, circles, edges, graph_of, modules_loaded, parameters, room_of

import fastcollate as fc

ROOMS = (
    *("common", "rows", "rollouts", "plan", "memory", "ops", "device", "inspect", "batch", "build"),
    *("builder", "collator", "blocks", "ray", "compat", "testing", "cli"),
)
"""Each folder, and each module of the calls, after those that it imports."""

REFERENCE = "fastcollate.testing.reference."


@pytest.fixture(scope="module", autouse=True)
def in_a_checkout():
    if Path(fc.__file__).parents[2] != ROOT:
        pytest.skip("needs a checkout")


def test_no_folder_imports_one_that_imports_it():
    """Annotations count; what functions import on use does not."""
    graph = graph_of(room_of)
    assert {"rows", "common"} <= graph["plan"]
    assert circles(graph) == []


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}}) == []


def test_folders_of_tests_are_no_packages_elsewhere():
    """Where Ray is not installed, a folder `tests/ray` would pass for it."""
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    assert folders.isdisjoint({"ray", "skyrl", "transformers", "trl", "verl"})


def test_folders_import_only_those_before_them():
    known = [name for name in ROOMS if name != "inspect"]
    for importer, imported, kind in edges():
        first, second = room_of(importer), room_of(imported)
        if first != second and first in known and second in known and kind != "calls":
            assert known.index(second) < known.index(first), (importer, imported, kind)


def test_references_that_can_be_copied_alone():
    """docs/frameworks/depending.md names them."""
    names = ("packing", "partitioning", "stepping", "sharing", "reading")
    found = [one[:2] for one in edges() if one[0] in map(REFERENCE.__add__, names)]
    assert found == [(f"{REFERENCE}sharing", f"{REFERENCE}reading")]


@pytest.mark.parametrize("folder", ["rows", "plan", "ops", "memory", "device", "inspect"])
def test_operations_know_no_batch(folder):
    """They take its plan, its arrays or its state."""
    calls = {"batch", "batch_mapping", "batch_model", "build", "builder", "collator"}
    assert not [
        edge for edge in edges() if room_of(edge[0]) == folder and room_of(edge[1]) in calls
    ]


def test_analysis_and_display_are_imported_on_use():
    loaded = modules_loaded()
    assert "fastcollate.build" in loaded
    assert len(loaded) <= 65
    named = re.compile(r"\.(inspect|device|cli|ray)\.|audit|forecast|fitting|report|check")
    assert not [name for name in loaded if named.search(name)]


def test_build_batch_has_few_parameters():
    assert parameters() <= 22


def test_names_that_are_imported_on_use():
    for module in (fc, fc.planning, fc.memory):
        assert set(module.__all__) <= set(dir(module))
        assert all(getattr(module, name) is getattr(module, name) for name in module.__all__)
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = module.nothing
