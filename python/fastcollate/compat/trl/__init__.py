"""Drop-in replacements for TRL's packing, its collator, and its forward on bins and trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcollate.common.arguments import suggests_names
from fastcollate.common.names import list_names_of
from fastcollate.compat.patching import Patched, Patcher, Replacement
from fastcollate.compat.transformers.token_logprobs import check_layout
from fastcollate.compat.trl import laid_out
from fastcollate.compat.trl.collators import DataCollatorForLanguageModeling
from fastcollate.compat.trl.laid_out import Options, add_fused_lm_head, shuffle_sequence_dict
from fastcollate.compat.trl.packing import pack_dataset
from fastcollate.compat.trl.tree_rows import TreeRow

if TYPE_CHECKING:
    from fastcollate.plan.layouts import Packed, Tree

__all__ = [
    "DataCollatorForLanguageModeling",
    "TreeRow",
    "pack_dataset",
    "patch",
    "unpatch",
]

GENERATING = ("trl.trainer.grpo_trainer", "trl.trainer.rloo_trainer")

PATCHER = Patcher(
    "TRL",
    package="trl",
    compat=__name__,
    replacements=[
        *Replacement.each(
            "trl.data_utils",
            pack_dataset,
            bound_in=("trl", "trl.trainer.sft_trainer", "trl.experimental.gold.gold_trainer"),
        ),
        *Replacement.each(
            "trl.experimental.async_grpo.packing",
            TreeRow,
            bound_in=("trl.experimental.async_grpo.async_grpo_trainer",),
        ),
        *Replacement.each(
            "trl.trainer.utils",
            add_fused_lm_head,
            bound_in=(
                "trl.trainer",
                *GENERATING,
                "trl.trainer.dpo_trainer",
                "trl.trainer.kto_trainer",
                "trl.trainer.sft_trainer",
                "trl.experimental.async_grpo.async_grpo_trainer",
            ),
        ),
        *Replacement.each(
            "trl.trainer.utils",
            shuffle_sequence_dict,
            bound_in=(*GENERATING, "trl.trainer.distillation_trainer"),
        ),
    ],
)

unpatch = PATCHER.unpatch


@suggests_names
def patch(*, layout: Packed | Tree | None = None, keep_groups: bool = False) -> Patched:
    """Replace TRL's functions, as :func:`fastcollate.compat.verl.patch` replaces verl's.

    Call it once in each process, before trainers are made.

    Parameters
    ----------
    layout
        ``fc.Packed(capacity)`` or ``fc.Tree(capacity)``: trainers made from now on run their models
        on bins or trees of the padded rows, once for each bin, and pad the outputs again. Where
        rows cannot be laid out, the model runs on padded rows, and the reason is logged once: other
        inputs, such as images; recurrent layers; dropout; router losses of experts; labels of
        tokens that no token of their row predicts. A model with ``"sdpa"`` gets the attention of
        :func:`fastcollate.compat.transformers.register_tree_attention`. Models keep this after
        ``unpatch()``. None: on padded rows.
    keep_groups
        Shuffle prompts in place of samples before a generation batch is split into slices, so that
        samples of a prompt can share it.

    Returns
    -------
    Patched
        As there.

    Raises
    ------
    ImportError, RuntimeError
        As there, or TRL is patched with other options.
    TypeError, ValueError
        Another layout, or one for given rows.
    """
    options = Options(layout, keep_groups)
    if layout is not None:
        check_layout(layout)
    if PATCHER.is_patched and laid_out.options != options:
        raise RuntimeError(f"TRL is patched with {laid_out.options}; call unpatch() first")
    patched = PATCHER.patch()
    laid_out.options = options
    return patched


list_names_of(__name__)
