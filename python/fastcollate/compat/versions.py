"""Versions of frameworks whose results were compared with :mod:`fastcollate.compat`."""

from __future__ import annotations

VERIFIED: dict[str, tuple[str, ...]] = {
    "nemo_rl": ("commit f4b1bdc",),
    "skyrl": ("0.4.0",),
    "transformers": ("5.20.2", "5.23.0", "5.24.0"),
    "trl": ("1.16.0",),
    "verl": ("0.9.1",),
}
"""Releases by import name of the framework, which is also the module of ``compat``.

NeMo-RL has no releases on PyPI.
"""
