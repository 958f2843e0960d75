"""verl's functions replaced by those here, in its own modules."""

from __future__ import annotations

from fastcollate.compat.patching import Patched, Patcher, Replacement
from fastcollate.compat.verl.dynamic_batches import prepare_dynamic_batch, restore_dynamic_batch
from fastcollate.compat.verl.padding import left_right_2_no_padding, no_padding_2_padding
from fastcollate.compat.verl.seqlen_balancing import (
    calculate_workload,
    get_group_balanced_partitions,
    get_seqlen_balanced_partitions,
    karmarkar_karp,
    rearrange_micro_batches,
)

BALANCING = "verl.utils.seqlen_balancing"
PADDING = "verl.workers.utils.padding"

RAY_TRAINER = "verl.trainer.ppo.ray_trainer"
ENGINE = "verl.workers.engine.utils"
TRAINERS = (RAY_TRAINER, "verl.trainer.ppo.v1.trainer_base", "verl.trainer.sft_trainer_ray")
LOSSES = (
    "verl.workers.utils.losses",
    "verl.trainer.distillation.losses",
    "verl.trainer.distillation",  # imports all names of its losses
)

PATCHER = Patcher(
    "verl",
    package="verl",
    compat="fastcollate.compat.verl",
    replacements=[
        Replacement(BALANCING, "calculate_workload", calculate_workload, TRAINERS),
        Replacement(BALANCING, "karmarkar_karp", karmarkar_karp),
        Replacement(
            BALANCING, "get_seqlen_balanced_partitions", get_seqlen_balanced_partitions, TRAINERS
        ),
        Replacement(BALANCING, "get_group_balanced_partitions", get_group_balanced_partitions),
        Replacement(BALANCING, "rearrange_micro_batches", rearrange_micro_batches, (ENGINE,)),
        Replacement(BALANCING, "prepare_dynamic_batch", prepare_dynamic_batch),
        Replacement(
            BALANCING,
            "restore_dynamic_batch",
            restore_dynamic_batch,
            (ENGINE, "verl.workers.engine.megatron.transformer_impl"),
        ),
        Replacement(PADDING, "left_right_2_no_padding", left_right_2_no_padding, (RAY_TRAINER,)),
        Replacement(PADDING, "no_padding_2_padding", no_padding_2_padding, (RAY_TRAINER, *LOSSES)),
    ],
)


def patch() -> Patched:
    """Replace verl's functions by those of this package, in all modules of verl that bind them.

    Those of padding rows are left out, since rows of verl's have fields of other lengths.

    Call it once in each process of a trainer and of its workers, before modules of your own import
    the functions: all data-parallel ranks must split micro-batches by the same implementation.
    Calls are counted: each needs an :func:`unpatch`.

    Returns
    -------
    Patched
        The replaced attributes; ``with patch():`` calls :func:`unpatch` at the end.

    Raises
    ------
    ImportError
        verl is not installed, or none of the functions can be imported.
    RuntimeError
        The installed version is not a verified one, a module of verl differs from that version, or
        a function has already been replaced. Nothing is changed.
    """
    return PATCHER.patch()


def unpatch() -> None:
    """Undo one call of :func:`patch`; the last one restores verl's own functions.

    Raises
    ------
    RuntimeError
        verl is not patched, or a function has been replaced again since. Nothing is changed.
    """
    PATCHER.unpatch()
