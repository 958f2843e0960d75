"""The collator of transformers replaced by the one here, in its own modules."""

from __future__ import annotations

from fastcollate.compat.patching import Patched, Patcher, Replacement
from fastcollate.compat.transformers.flattening import DataCollatorWithFlattening

PATCHER = Patcher(
    "transformers",
    package="transformers",
    compat="fastcollate.compat.transformers",
    replacements=[
        Replacement(
            "transformers.data.data_collator",
            "DataCollatorWithFlattening",
            DataCollatorWithFlattening,
            bound_in=("transformers", "transformers.data"),
        ),
    ],
)


def patch() -> Patched:
    """Replace ``transformers.DataCollatorWithFlattening`` in all modules that bind it.

    Call it before modules of your own import the class. Calls are counted: each needs an
    :func:`unpatch`.

    Returns
    -------
    Patched
        The replaced attributes; ``with patch():`` calls :func:`unpatch` at the end.

    Raises
    ------
    ImportError
        transformers is not installed, or cannot be imported.
    RuntimeError
        The installed version is not a verified one, a module of transformers differs from that
        version, or the class has already been replaced. Nothing is changed.
    """
    return PATCHER.patch()


def unpatch() -> None:
    """Undo one call of :func:`patch`; the last one restores the class of transformers.

    Raises
    ------
    RuntimeError
        transformers is not patched, or the class has been replaced again since. Nothing is changed.
    """
    PATCHER.unpatch()
