"""Replacement of frameworks' functions inside the frameworks, and its reversal.

`from module import name` binds a name in the importing module, too, so a function has to be
replaced in every module that imported it before. Each framework has a table of these modules.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from fastcollate.common.arguments import suggests_names
from fastcollate.compat.versions import VERIFIED

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)

_LOCK = threading.RLock()
"""Held while modules are changed. A fork waits for it, so no child has half of a patch."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )


class Replacement(NamedTuple):
    """A function or class of a framework, and what replaces it."""

    module: str
    """The module that defines it."""
    name: str
    replacement: Any
    """An object that replaces nothing else."""
    bound_in: tuple[str, ...] = ()
    """All other modules of the framework that bind the name at import."""
    versions: tuple[str, ...] | None = None
    """The verified versions that have it; None for all."""

    @classmethod
    def each(cls, module: str, *replacements: Any, bound_in: tuple[str, ...] = ()) -> list[Self]:
        """Return the replacements of a module's objects, which have the same names."""
        return [cls(module, each.__name__, each, bound_in) for each in replacements]


@dataclass(frozen=True)
class Patched:
    """The result of ``patch()``. As a context manager, it calls ``unpatch()`` at the end.

    Attributes
    ----------
    framework : str
        The name of the framework.
    version : str
        Its installed version.
    bindings : tuple[str, ...]
        The replaced attributes of modules. Modules imported later take the replacements from these.
    skipped : tuple[str, ...]
        Functions whose modules cannot be imported in this process, with the reason.
    """

    framework: str
    version: str
    bindings: tuple[str, ...]
    skipped: tuple[str, ...]
    _unpatch: Callable[[], None] = field(repr=False, compare=False)

    def __str__(self) -> str:
        """Return one line per attribute."""
        lines = [f"{self.framework} {self.version}, replaced by fastcollate:"]
        lines += [f"  {binding}" for binding in self.bindings]
        lines += [f"  not replaced: {function}" for function in self.skipped]
        return "\n".join(lines)

    def __enter__(self) -> Patched:
        """Return the object itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Call ``unpatch()``."""
        self._unpatch()


class _Bound(NamedTuple):
    """An attribute of a module before and after the replacement."""

    path: str
    """Its module and name, for messages."""
    module: ModuleType
    name: str
    original: Any
    replacement: Any

    @property
    def key(self) -> tuple[int, str]:
        return id(self.module), self.name


@dataclass(eq=False)
class Patcher:
    """Replaces the functions of one framework.

    Parameters
    ----------
    framework
        The name of the framework, for messages.
    package
        Its top module, and the name of its distribution.
    compat
        The module with the replacements, for messages.
    replacements
        The table.
    python
        The least version of Python that the framework needs, if it is later than ours.
    """

    framework: str
    _: KW_ONLY
    package: str
    compat: str
    replacements: Sequence[Replacement]
    python: str | None = None
    _count: int = field(default=0, init=False)
    _bound: list[_Bound] = field(default_factory=list, init=False)
    _patched: Patched = field(init=False, repr=False)

    @property
    def is_patched(self) -> bool:
        """True between ``patch()`` and ``unpatch()``."""
        return self._count > 0

    @suggests_names
    def patch(self) -> Patched:
        """Replace the framework's functions in all modules of the framework that bind them.

        Call it once in each process that collates, before modules of your own import the
        functions. A second call is only counted: each needs an ``unpatch()``. Nothing is changed
        unless all modules are as expected. Instances of a replaced class keep their class; pickle
        refuses them until ``unpatch()``.

        Returns
        -------
        Patched
            The replaced attributes; ``with patch():`` calls ``unpatch()`` at the end.

        Raises
        ------
        ImportError
            The framework is not installed, or none of its functions can be imported.
        RuntimeError
            Its version is not a verified one, a module differs from what was verified, or an
            attribute has already been replaced.
        """
        with _LOCK:
            if self._count > 0:
                return self._counted()
        version = self.version()
        # Imports take locks of their own, so they cannot wait for each other and for this one.
        table, skipped = self._imported(version)
        with _LOCK:
            if self._count == 0:
                bound = self._verified(table, version)
                self._warn_of_other_modules(bound)
                for each in bound:
                    setattr(each.module, each.name, each.replacement)
                self._bound = bound
                self._patched = Patched(
                    self.framework,
                    version,
                    tuple(each.path for each in bound),
                    skipped,
                    self.unpatch,
                )
                logger.info("%s", self._patched)
            return self._counted()

    def unpatch(self) -> None:
        """Undo one call of ``patch()``; the last one restores the framework's own functions.

        Modules of the framework that were imported after ``patch()`` are restored, too. Those
        that were loaded again have the framework's own functions already.

        Raises
        ------
        RuntimeError
            The framework is not patched, or an attribute has been replaced again since; then
            nothing is changed.
        """
        with _LOCK:
            if self._count == 0:
                raise RuntimeError(
                    f"{self.framework} is not patched; call {self.compat}.patch() first"
                )
            if self._count == 1:
                bound = [*self._bound, *self._bound_since()]
                for each in bound:
                    found = vars(each.module).get(each.name)
                    if found is not each.replacement and not _is_own_again(each, found):
                        raise RuntimeError(
                            f"{each.path} has been replaced by {_describe(found)} since "
                            f"{self.compat}.patch(); undo that first"
                        )
                for each in bound:
                    if vars(each.module).get(each.name) is each.replacement:
                        setattr(each.module, each.name, each.original)
                self._bound = []
            self._count -= 1

    def original(self, module: str, name: str) -> Any:
        """Return a function of the framework, which may be replaced."""
        path = f"{module}.{name}"
        replaced = (each.original for each in self._bound if each.path == path)
        return next(replaced, None) or getattr(importlib.import_module(module), name)

    def version(self) -> str:
        """Return the installed version.

        Raises
        ------
        ImportError
            The framework is not installed.
        RuntimeError
            Its version is not a verified one.
        """
        verified = VERIFIED[self.package]
        pip_install = f"pip install {self.package}=={verified[-1]}"
        if self.python is not None:
            pip_install += f" in Python {self.python} or later"
        versions: list[str] = []  # empty, too, if the metadata are broken
        with contextlib.suppress(ModuleNotFoundError, FileNotFoundError):
            versions = importlib.metadata.metadata(self.package).get_all("Version") or []
        if not versions:
            if self.package not in sys.modules and importlib.util.find_spec(self.package) is None:
                raise ImportError(f"{self.framework} is not installed; {pip_install}")
            raise RuntimeError(
                f"{self.framework} can be imported, but its version cannot be verified, since it "
                f"was not installed by pip; {pip_install}"
            )
        version = versions[0]
        if version.partition("+")[0] not in verified:
            raise RuntimeError(
                f"{self.framework} {version} is installed, but {self.compat}.patch() has been "
                f"verified with {' and '.join(verified)} only; {pip_install}, or call the "
                f"functions of {self.compat} yourself"
            )
        return version

    def _imported(self, version: str) -> tuple[list[Replacement], tuple[str, ...]]:
        """Import the modules that define the functions; return the functions found, and others."""
        table, skipped = [], []
        reasons: dict[str, str] = {}
        for each in self.replacements:
            if each.versions is not None and version.partition("+")[0] not in each.versions:
                continue
            if each.module not in reasons:
                reasons[each.module] = self._reason_against(each.module, version)
            if reason := reasons[each.module]:
                skipped.append(f"{each.module}.{each.name} ({reason})")
            else:
                table.append(each)
        if not table:
            raise ImportError(f"{self.framework} {version} cannot be imported: {skipped[0]}")
        if skipped:
            logger.warning(
                "%s.patch() leaves out functions that cannot be imported: %s",
                self.compat,
                ", ".join(skipped),
            )
        return table, tuple(skipped)

    def _reason_against(self, module: str, version: str) -> str:
        """Import a module; return why it cannot be imported, or nothing."""
        try:
            # The caller may not use the module, so its warnings are not for the caller.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(module)
        except Exception as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else None
            if missing is not None and self._is_own(missing):
                raise self._differs(version, f"there is no module {missing}") from error
            return " ".join(f"{type(error).__name__}: {error}".split())
        return ""

    def _verified(self, table: Sequence[Replacement], version: str) -> list[_Bound]:
        """Return all attributes to set, checked; changes nothing."""
        bound = []
        for each in table:
            module = sys.modules[each.module]
            original = vars(module).get(each.name)
            if original is None:
                raise self._differs(version, f"{each.module} has no {each.name}")
            if not _is_defined_in(module, original):
                raise self._replaced(f"{each.module}.{each.name}", original)
            for name in (each.module, *each.bound_in):
                importer = sys.modules.get(name)
                if importer is None:
                    continue  # it will bind the replacement
                path = f"{name}.{each.name}"
                found = _namespace(importer).get(each.name)
                if found is original:
                    bound.append(_Bound(path, importer, each.name, original, each.replacement))
                elif found is not None:
                    raise self._replaced(path, found)
                elif not _may_bind_later(importer):
                    raise self._differs(version, f"{name} does not import {each.name}")
        listed = {each.key for each in bound}
        for found in _attributes({id(each.original): each for each in bound}):
            if self._is_own(found.path) and found.key not in listed:
                raise RuntimeError(
                    f"{found.path} is {self.framework}'s own function, too, and not one of the "
                    f"names that were verified; call {self.compat}.patch() before importing it"
                )
        return bound

    def _bound_since(self) -> list[_Bound]:
        """Return the attributes of the framework's modules that were bound since `patch`."""
        listed = {each.key for each in self._bound}
        since = [
            found
            for found in _attributes({id(each.replacement): each for each in self._bound})
            if self._is_own(found.path) and found.key not in listed
        ]
        # Listed modules that bound a replacement, which others have replaced.
        listed |= {each.key for each in since}
        replaced = {each.path: each for each in self._bound}
        for row in self.replacements:
            each = replaced.get(f"{row.module}.{row.name}")
            if each is None:
                continue
            for name in row.bound_in:
                importer = sys.modules.get(name)
                if importer is None or (id(importer), row.name) in listed:
                    continue
                if _namespace(importer).get(row.name) not in (None, each.original):
                    since.append(each._replace(path=f"{name}.{row.name}", module=importer))
        return since

    def _counted(self) -> Patched:
        """Count a call of `patch`; an error if a module lost its replacement since the first."""
        for each in self._bound:
            module = sys.modules.get(each.path.rpartition(".")[0])
            if module is not None and _namespace(module).get(each.name) is not each.replacement:
                raise RuntimeError(
                    f"{each.path} has been loaded or replaced since {self.compat}.patch(); call "
                    f"{self.compat}.unpatch() as often as patch() first"
                )
        self._count += 1
        return self._patched

    def _warn_of_other_modules(self, bound: Sequence[_Bound]) -> None:
        """Log a warning of modules outside the framework that keep the originals."""
        for found in _attributes({id(each.original): each for each in bound}):
            if not self._is_own(found.path):
                logger.warning(
                    "%s stays %s's own function, since it was imported before %s.patch(); call "
                    "patch() first",
                    found.path,
                    self.framework,
                    self.compat,
                )

    def _is_own(self, path: str) -> bool:
        return path.partition(".")[0] == self.package

    def _differs(self, version: str, difference: str) -> RuntimeError:
        return RuntimeError(
            f"{self.framework} {version} differs from the verified package: {difference}; "
            f"install it again, or call the functions of {self.compat} yourself"
        )

    def _replaced(self, path: str, found: object) -> RuntimeError:
        return RuntimeError(
            f"{path} has already been replaced by {_describe(found)}; undo that first, or call "
            f"{self.compat}.patch() before it"
        )


def _attributes(sought: dict[int, _Bound]) -> Iterator[_Bound]:
    """Return all attributes of loaded modules that are one of the objects sought, by id."""
    seen = set()
    for path, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and id(module) not in seen:
            seen.add(id(module))
            for name, value in list(vars(module).items()):
                if id(value) in sought:
                    yield sought[id(value)]._replace(
                        path=f"{path}.{name}", module=module, name=name
                    )


def _is_defined_in(module: ModuleType, value: object) -> bool:
    """Return True if a module defines a function or class; false for wrappers of it."""
    namespace = vars(module)
    return (
        getattr(value, "__module__", None) == module.__name__
        and getattr(value, "__globals__", namespace) is namespace
    )


def _is_own_again(bound: _Bound, found: object) -> bool:
    """Return True for a function of the framework that was defined again, by a reload."""
    module = sys.modules.get(bound.original.__module__)
    return module is not None and _is_defined_in(module, found)


def _namespace(module: object) -> dict[str, Any]:
    """Return the attributes of an entry of `sys.modules`, which may be any object."""
    return getattr(module, "__dict__", {})


def _may_bind_later(module: ModuleType) -> bool:
    """Return True for modules that import their names on access, or are being imported."""
    spec = getattr(module, "__spec__", None)
    return hasattr(module, "__getattr__") or getattr(spec, "_initializing", False)


def _describe(value: object) -> str:
    name = getattr(value, "__qualname__", None)
    return repr(value) if name is None else f"{getattr(value, '__module__', '?')}.{name}"
