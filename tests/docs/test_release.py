"""The facts of a release are the same in all places: versions, pins and what is packed."""

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import fastcollate as fc
from fastcollate.common.text import in_words
from fastcollate.compat.versions import VERIFIED

ROOT = Path(__file__).parents[2]


def text(path):
    return (ROOT / path).read_text("utf-8")


def test_the_version_is_that_of_the_newest_changes():
    assert re.search(r"^## (\S+) - ", text("CHANGELOG.md"), re.MULTILINE)[1] == fc.__version__


def test_the_page_has_the_verified_releases():
    table = re.search(
        r"<!-- verified.*?\n(.*?)<!-- end -->", text("docs/compatibility.md"), re.DOTALL
    )
    rows = "".join(f"| {name} | {', '.join(found)} |\n" for name, found in sorted(VERIFIED.items()))
    assert table[1] == "| framework | releases |\n|---|---|\n" + rows


def test_the_page_has_the_least_versions():
    for name, title in (("numpy", "NumPy"), ("torch", "torch"), ("ray", "Ray")):
        least = re.search(rf'"{name}>=(.*?)"', text("pyproject.toml"))[1]
        assert f"| {title} | {least} and newer |" in text("docs/compatibility.md")


def pins(file):
    """Return the pinned versions of each package."""
    found = {}
    for name, version in re.findall(r"^([\w-]+)==([\w.]+)", text(file), re.M):
        found.setdefault(name, []).append(version)
    return found


@pytest.mark.parametrize(
    ("file", "names"),
    [("requirements-peers.txt", ("skyrl", "trl", "verl")), ("requirements.txt", ("transformers",))],
)
def test_pinned_versions_are_verified(file, names):
    for name in names:
        pinned = pins(file)[name]
        assert set(pinned) <= set(VERIFIED[name])
        assert max(VERIFIED[name], key=as_numbers) in pinned, "what is newest is compared in tests"


def as_numbers(version):
    return [int(part) for part in version.split(".")]


TITLES = {
    "skyrl": "SkyRL",
    "transformers": "transformers, my own `Trainer`",
    "trl": "TRL",
    "verl": "verl",
}


@pytest.mark.parametrize("name", TITLES)
def test_docs_have_the_verified_versions(name):
    overview = text("docs/frameworks/index.md")
    (row,) = re.findall(rf"^\| {re.escape(TITLES[name])} \|.*\| ([\d., ]+) \|$", overview, re.M)
    assert row.split(", ") == list(VERIFIED[name])
    page = ROOT / f"docs/frameworks/{name}.md"
    if page.exists():
        versions = re.escape(in_words(VERIFIED[name], "and"))
        assert re.search(rf"^Verified with \w+ {versions}[.,]", page.read_text("utf-8"), re.M)


@pytest.mark.slow
def test_the_sdist_has_what_a_build_needs(tmp_path):
    maturin = shutil.which("maturin", path=Path(sys.executable).parent)
    if maturin is None or not (ROOT / ".git").exists():
        pytest.skip("needs maturin and a checkout")
    subprocess.run([maturin, "sdist", "--out", tmp_path], cwd=ROOT, capture_output=True, check=True)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {name for name in names if not name.startswith(("python/fastcollate/", "rust/"))} == {
        *("Cargo.lock", "Cargo.toml", "pyproject.toml"),
        *("CHANGELOG.md", "LICENSE", "README.md", "PKG-INFO"),
    }
    assert {Path(name).suffix for name in names if name.startswith(("python/", "rust/"))} <= {
        *(".py", ".pyi", ".rs", ".toml", ".typed"),
    }
