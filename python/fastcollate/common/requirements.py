"""Checks on import, before any other module: unsupported versions are errors of one line.

This module and ``fastcollate/__init__.py`` use only what old Pythons have.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec

LEAST_PYTHON = (3, 10)
LEAST_NUMPY = (1, 26)
LEAST_TORCH = (2, 6)
LEAST_RAY = (2, 51)
"""As in pyproject.toml."""


def check_requirements() -> None:
    """Raise an ImportError if Python or NumPy is too old, or the extension is not built.

    torch and Ray are checked on their first use, since importing them takes seconds.
    """
    if sys.version_info < LEAST_PYTHON:
        raise ImportError(
            f"fastcollate needs Python {dotted(LEAST_PYTHON)} or newer, and this is "
            f"{dotted(sys.version_info[:3])}: use another virtual environment"
        )
    try:
        import numpy as np
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        raise ImportError("fastcollate needs NumPy: pip install numpy") from error
    check_version("NumPy", np.__version__, LEAST_NUMPY, "pip install --upgrade numpy")
    if find_spec("fastcollate._fastcollate") is None:
        raise ImportError(
            f"fastcollate is not built for Python {dotted(sys.version_info[:2])}: in a checkout "
            "run make build, elsewhere pip install --force-reinstall fastcollate"
        )


def check_version(package: str, version: str, least: tuple[int, int], advice: str) -> None:
    """Raise an ImportError if a package is too old."""
    if is_older(version, least):
        raise ImportError(
            f"fastcollate needs {package} {dotted(least)} or newer, and this is {version}: {advice}"
        )


def is_older(version: str, least: tuple[int, int]) -> bool:
    """Return True if a version, given as text, is less than its first two numbers allow."""
    numbers = version.split(".")[:2]
    return all(map(str.isdigit, numbers)) and tuple(map(int, numbers)) < least


def dotted(numbers: Iterable[int]) -> str:
    """Return a version as text."""
    return ".".join(map(str, numbers))
