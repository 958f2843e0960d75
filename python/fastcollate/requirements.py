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
"""As in pyproject.toml."""


def check_requirements() -> None:
    """Raise an ImportError if Python or NumPy is too old, or the extension is not built.

    torch is checked on its first use (:func:`check_torch`): importing it takes seconds.
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
    if is_older(np.__version__, LEAST_NUMPY):
        raise ImportError(
            f"fastcollate needs NumPy {dotted(LEAST_NUMPY)} or newer, and this is "
            f"{np.__version__}: pip install --upgrade numpy"
        )
    if find_spec("fastcollate._fastcollate") is None:
        raise ImportError(
            f"fastcollate is not built for Python {dotted(sys.version_info[:2])}: in a checkout "
            "run make build, elsewhere pip install --force-reinstall fastcollate"
        )


def check_torch(version: str) -> None:
    """Raise an ImportError if this version of torch is too old."""
    if is_older(version, LEAST_TORCH):
        raise ImportError(
            f"fastcollate needs torch {dotted(LEAST_TORCH)} or newer, and this is {version}: "
            "pip install --upgrade torch, or pass array_type='numpy'"
        )


def is_older(version: str, least: tuple[int, int]) -> bool:
    """Return True if a version, given as text, is less than its first two numbers allow."""
    numbers = version.split(".")[:2]
    return all(map(str.isdigit, numbers)) and tuple(map(int, numbers)) < least


def dotted(numbers: Iterable[int]) -> str:
    """Return a version as text."""
    return ".".join(map(str, numbers))
