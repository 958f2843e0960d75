"""Checks that fastcollate is right, on your machine and with your frameworks.

- :func:`verify`: compares all functions with plain loops, and with installed frameworks.
- :func:`batches`: a Hypothesis strategy of batches, for tests of code that uses fastcollate.
- `fastcollate.testing.reference`: the plain implementations of every contract (the *oracles*), with
  `assert_same`, which compares results bit for bit. They need NumPy only; torch for torch results.

The first two need Hypothesis: ``pip install hypothesis``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastcollate.common.names import no_such_name

if TYPE_CHECKING:
    from fastcollate.testing.drawing import batches
    from fastcollate.testing.verifying.verification import verify

__all__ = ["batches", "verify"]

_ON_USE = {"batches": "drawing", "verify": "verifying.verification"}

if not TYPE_CHECKING:  # type checkers would take any name for one of the module

    def __getattr__(name: str) -> Any:
        """Import a name on first use."""
        if name not in _ON_USE:
            advice = f"it has {', '.join(__all__)}"
            raise no_such_name(f"module {__name__!r} has no attribute {name!r}; {advice}")
        try:
            return getattr(import_module(f"{__name__}.{_ON_USE[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name != "hypothesis":
                raise
            raise ImportError(
                f"fastcollate.testing.{name} needs Hypothesis: pip install hypothesis"
            ) from error
