"""TRL's functions replaced by those here, in its own modules."""

from __future__ import annotations

from fastcollate.compat.patching import Patched, Patcher, Replacement
from fastcollate.compat.trl.packing import pack_dataset

PATCHER = Patcher(
    "TRL",
    package="trl",
    compat="fastcollate.compat.trl",
    replacements=[
        Replacement(
            "trl.data_utils",
            "pack_dataset",
            pack_dataset,
            bound_in=("trl", "trl.trainer.sft_trainer", "trl.experimental.gold.gold_trainer"),
        ),
    ],
)


def patch() -> Patched:
    """Let TRL's trainers pack datasets by the function here: in all modules of TRL that bind it.

    Call it before a trainer is made, which packs its dataset. Calls are counted: each needs an
    :func:`unpatch`.

    Returns
    -------
    Patched
        The replaced attributes; ``with patch():`` calls :func:`unpatch` at the end.

    Raises
    ------
    ImportError
        TRL is not installed, or cannot be imported.
    RuntimeError
        The installed version is not a verified one, a module of TRL differs from that version, or
        the function has already been replaced. Nothing is changed.
    """
    return PATCHER.patch()


def unpatch() -> None:
    """Undo one call of :func:`patch`; the last one restores TRL's own function.

    Raises
    ------
    RuntimeError
        TRL is not patched, or the function has been replaced again since. Nothing is changed.
    """
    PATCHER.unpatch()
