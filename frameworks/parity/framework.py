"""The parts of a framework's module of comparisons."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from frameworks import installed

Draw: TypeAlias = Callable[[Any], Any]
"""Returns a value drawn from a Hypothesis strategy."""


class Case(NamedTuple):
    """One call of a framework's function and of ours."""

    theirs: Callable[[], Any]
    ours: Callable[[], Any]
    given: Mapping[str, Any]
    """The arguments, for the message of a difference."""


class Peer(NamedTuple):
    """A framework to compare with; a call returns one of its modules."""

    version: str
    origin: str
    """``"installed"`` or ``".peers"``."""
    load: Callable[[str], Any]

    def __call__(self, name: str) -> Any:
        """Return a module by its name."""
        return self.load(name)


Comparison: TypeAlias = Callable[[Draw, Peer], Case]


@dataclass
class Framework:
    """The comparisons of one framework.

    Parameters
    ----------
    title
        As in text: ``"TRL"``.
    name
        The package to import, and the module of ``fastcollate.compat``: ``"trl"``.
    download
        The command that downloads the framework.
    """

    title: str
    name: str
    download: str = "make peers"
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    """By names of functions, joined by commas."""
    not_compared: dict[str, str] = field(default_factory=dict)
    """Names of ``compat`` without a comparison, with the reason."""

    def compares(self, *names: str) -> Callable[[Comparison], Comparison]:
        """Register a comparison of public names of the ``compat`` module, or of other text."""

        def register(comparison: Comparison) -> Comparison:
            self.comparisons[", ".join(names)] = comparison
            return comparison

        return register

    def peer(self) -> Peer | None:
        """Return the installed framework, else that of ``make peers``, else None."""
        if importlib.util.find_spec(self.name) is not None:
            version = importlib.metadata.version(self.name.replace("_", "-"))
            return Peer(version, "installed", importlib.import_module)
        if (version := installed.version(self.name)) is not None:
            return Peer(version, installed.FOLDER.name, installed.real)
        return None
