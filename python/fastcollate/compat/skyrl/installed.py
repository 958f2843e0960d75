"""Modules of SkyRL, with or without SkyRL."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from types import ModuleType


def skyrl_module(name: str) -> ModuleType | None:
    """Return a module of the installed SkyRL; None if SkyRL or the module is missing."""
    if "skyrl" not in sys.modules and not _is_installed():
        return None
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@functools.cache
def _is_installed() -> bool:
    """Return True if SkyRL is installed. A failed import takes 0.2 ms each time."""
    return importlib.util.find_spec("skyrl") is not None
