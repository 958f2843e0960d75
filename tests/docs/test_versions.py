"""The table of verified versions is that of the pinned packages, and of the docs."""

import re
from pathlib import Path

import pytest

from fastcollate.compat.versions import VERIFIED

ROOT = Path(__file__).parents[2]


def pins(file):
    """Return the pinned versions of each package."""
    found = {}
    for name, version in re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / file).read_text(), re.M):
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
    overview = (ROOT / "docs/frameworks/index.md").read_text("utf-8")
    (row,) = re.findall(rf"^\| {re.escape(TITLES[name])} \|.*\| ([\d., ]+) \|$", overview, re.M)
    assert row.split(", ") == list(VERIFIED[name])
    page = ROOT / f"docs/frameworks/{name}.md"
    if page.exists():
        versions = re.escape(" and ".join(VERIFIED[name]))
        assert re.search(rf"^Verified with \w+ {versions}[.,]", page.read_text("utf-8"), re.M)
