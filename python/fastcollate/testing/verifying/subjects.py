"""What fastcollate is compared with: plain references and frameworks; and numbers of cases."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from hypothesis import strategies as st

from fastcollate.compat.versions import VERIFIED

Draw: TypeAlias = Callable[[Any], Any]
"""Returns a value drawn from a Hypothesis strategy."""


class Case(NamedTuple):
    """One call of another function and of ours."""

    theirs: Callable[[], Any]
    ours: Callable[[], Any]
    given: Mapping[str, Any]
    """The arguments, for the message of a difference."""


class Peer(NamedTuple):
    """A version of a framework to compare with; a call returns one of its modules."""

    version: str
    load: Callable[[str], Any] = import_module
    is_installed: bool = True
    as_installed: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Lets fastcollate find the framework's modules."""
    scale: int = 1
    """The size of cases: 1 for the smallest that say what differs, more to measure times."""

    def __call__(self, name: str) -> Any:
        """Return a module by its name."""
        return self.load(name)


Comparison: TypeAlias = Callable[[Draw, Peer], Case]
Arguments: TypeAlias = Callable[[Draw, Peer], dict[str, Any]]


def call(function: Callable[..., Any], **given: Any) -> Any:
    """Call a function with the drawn arguments."""
    return function(**given)


@dataclass
class Subject:
    """The comparisons with one framework, or with the plain references.

    Parameters
    ----------
    title
        As in text: ``"TRL"``.
    name
        The package to import, and the module of ``fastcollate.compat``: ``"trl"``.
    result
        Converts each result to values that can be compared.
    """

    title: str
    name: str
    result: Callable[[Any], Any] = lambda found: found
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    """By names of functions."""

    def compares(self, name: str) -> Callable[[Comparison], Comparison]:
        """Register a comparison of a public name of the ``compat`` module, or of other text."""

        def register(comparison: Comparison) -> Comparison:
            self.comparisons[name] = comparison
            return comparison

        return register

    def functions(
        self, name: str, theirs: Callable[..., Any], ours: Callable[..., Any]
    ) -> Callable[[Arguments], Arguments]:
        """Register a comparison of two functions; the decorated one draws their arguments."""

        def register(arguments: Arguments) -> Arguments:
            def comparison(draw: Draw, peer: Peer) -> Case:
                given = arguments(draw, peer)
                return Case(lambda: theirs(**given), lambda: ours(**given), given)

            self.comparisons[name] = comparison
            return arguments

        return register

    def calls(
        self, module: str, *names: str, by: Callable[..., Any] = call
    ) -> Callable[[Arguments], Arguments]:
        """Register a comparison of functions that `module` and ``compat`` have by the same names.

        The decorated function draws their arguments. `by` gets one of the functions and these.
        """

        def register(arguments: Arguments) -> Arguments:
            def comparison(name: str, draw: Draw, peer: Peer) -> Case:
                given, compat = arguments(draw, peer), f"fastcollate.compat.{self.name}"
                return Case(
                    lambda: self.result(by(getattr(peer(module), name), **given)),
                    lambda: self.result(by(getattr(import_module(compat), name), **given)),
                    given,
                )

            self.comparisons |= {name: partial(comparison, name) for name in names}
            return arguments

        return register


def draw_numbers(
    draw: Draw, scale: int, least: int, most: int, count: int, *, min_size: int = 1
) -> list[int]:
    """Draw up to `count` numbers, or `scale` times as many."""
    if scale == 1:
        found: list[int] = draw(
            st.lists(st.integers(least, most), min_size=min_size, max_size=count)
        )
        return found
    numbers: list[int] = _rng(draw).integers(least, most + 1, count * scale).tolist()
    return numbers


def draw_rows(draw: Draw, lengths: Sequence[int], least: int, most: int) -> list[list[int]]:
    """Draw a row of numbers for each length."""
    rng = _rng(draw)
    return [rng.integers(least, most, length, endpoint=True).tolist() for length in lengths]


def draw_values(draw: Draw, lengths: Sequence[int], values: Sequence[Any]) -> list[list[Any]]:
    """Draw a row of some of these values for each length; at times of the first two alone."""
    most = draw(st.sampled_from([1, 1, 1, len(values) - 1]))
    return [[values[index] for index in row] for row in draw_rows(draw, lengths, 0, most)]


def _rng(draw: Draw) -> np.random.Generator:
    return np.random.default_rng(draw(st.integers(0, 2**32 - 1)))


def find_installed(name: str) -> Peer | None:
    """Return the installed framework, or None.

    Raises
    ------
    RuntimeError
        Its functions are replaced by ours.
    """
    if importlib.util.find_spec(name) is None:
        return None
    if (patcher := _patcher(name)) is not None and patcher.is_patched:
        raise RuntimeError(
            f"{name} is patched, so its functions are ours; call "
            f"fastcollate.compat.{name}.unpatch() first"
        )
    return Peer(importlib.metadata.version(name.replace("_", "-")))


def _patcher(name: str) -> Any:
    # compat may have functions, but no patch()
    return getattr(import_module(f"fastcollate.compat.{name}"), "PATCHER", None)


def note_on(name: str, version: str) -> str:
    """Return a note on a version that results were not compared with before."""
    verified = VERIFIED[name]
    return "" if version in verified else f" (verified: {', '.join(verified)})"
