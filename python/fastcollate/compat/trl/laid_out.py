"""TRL's trainers on rows laid out as bins or trees: ``patch(layout=...)``."""

from __future__ import annotations

import functools
import logging
import math
import types
from typing import TYPE_CHECKING, Any, NamedTuple

from fastcollate._fastcollate import IGNORE_INDEX
from fastcollate.compat.transformers.attention import register_tree_attention
from fastcollate.compat.transformers.token_logprobs import score_block
from fastcollate.ops.masks import kernel_of
from fastcollate.ops.model_kinds import carries_state, reason_against, reason_of_outputs
from fastcollate.plan.layouts import Tree

if TYPE_CHECKING:
    import torch

    from fastcollate.compat.patching import Patcher
    from fastcollate.plan.layouts import Packed

logger = logging.getLogger(__name__)


class Options(NamedTuple):
    """The arguments of ``patch()``."""

    layout: Packed | Tree | None = None
    keep_groups: bool = False


options = Options()
"""Those of the last ``patch()``."""


def add_fused_lm_head(
    model: Any,
    temperature: float = 1.0,
    cast_lm_head_to_fp32: bool = False,
    outputs: tuple[str, ...] = ("log_probs",),
) -> None:
    """Add TRL's head to a model; under ``patch(layout=...)``, for rows in bins or trees.

    ``model(input_ids=, attention_mask=, labels=, fused_lm_head=True)`` then lays the padded rows
    out, calls TRL's forward with ``shift_labels`` once for each bin, and pads its outputs, with
    gradients. Written against TRL 1.16.0: ``trl.trainer.utils.add_fused_lm_head``.
    """
    _own("add_fused_lm_head")(model, temperature, cast_lm_head_to_fp32, outputs)
    if (layout := _options().layout) is None:
        return
    if model.config.get_text_config()._attn_implementation == "sdpa":
        model.set_attn_implementation(register_tree_attention())
    own_forward = model.forward
    logged: set[str] = set()

    @functools.wraps(type(model).forward)
    def forward(self: Any, *args: Any, fused_lm_head: bool = False, **kwargs: Any) -> Any:
        if fused_lm_head:
            reason = _reason_against(self, layout, args, kwargs)
            if reason is None:
                return _forward(self, own_forward, layout, outputs, **kwargs)
            if reason not in logged:
                logged.add(reason)
                logger.warning("%s is called without a layout: %s", type(self).__name__, reason)
        return own_forward(*args, fused_lm_head=fused_lm_head, **kwargs)

    model.forward = types.MethodType(forward, model)


def _forward(
    model: Any,
    own_forward: Any,
    layout: Packed | Tree,
    outputs: tuple[str, ...],
    *,
    input_ids: torch.Tensor,
    labels: torch.Tensor,
    attention_mask: torch.Tensor,
    num_items_in_batch: Any = None,
    **flags: Any,
) -> Any:
    """Run TRL's forward on each bin of the rows; return its output for the padded rows."""
    names = {"log_probs", *outputs}
    kind: Any = None

    def score(inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        nonlocal kind
        found = own_forward(**{**flags, **inputs}, fused_lm_head=True)
        kind = type(found)
        is_scored = inputs["shift_labels"] != IGNORE_INDEX
        return {name: found[name][is_scored] for name in names}

    label_mask = labels != IGNORE_INDEX
    found = score_block(model, input_ids, attention_mask, label_mask, layout, score)
    label_mask = label_mask[:, 1:]
    count = label_mask.sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
    return kind(loss=-found["log_probs"].sum() / count, label_mask=label_mask, **found)


FLAGS = {"use_cache", "output_router_logits", "return_dict", "num_items_in_batch"}
"""Arguments of a forward that are not inputs of rows."""


def _reason_against(
    model: Any, layout: Packed | Tree, args: tuple[Any, ...], inputs: dict[str, Any]
) -> str | None:
    """Return why the rows of a call cannot be laid out; None if they can."""
    rows = {"input_ids", "attention_mask", "labels"}
    given = {name for name, value in inputs.items() if value is not None} - FLAGS
    if args or given != rows:
        return f"its inputs are {', '.join(sorted(given))}, in place of {', '.join(sorted(rows))}"
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or []) - {
        "full_attention",
        "sliding_attention",
    }
    has_state = carries_state(model)
    if kinds or has_state:
        return f"it has layers of the kinds {', '.join(sorted(kinds)) or 'of a recurrent model'}"
    kernel, is_tree = kernel_of(config), isinstance(layout, Tree)
    if is_tree and kernel == "flash":
        return "its flash attention takes no trees; load it with attn_implementation='sdpa'"
    reason = reason_of_outputs(model) or reason_against(config, kernel, is_tree, has_state)
    if reason is not None:
        return reason
    if inputs.get("output_router_logits") or getattr(config, "output_router_logits", False):
        return "its loss balances experts over all rows"
    if model.training and any(map(_drops, model.modules())):
        return "dropout is on"
    ids, mask, labels = (inputs[name] for name in ("input_ids", "attention_mask", "labels"))
    if ids.shape[1] > _fixed_positions(config):
        return "its rotary embedding depends on the longest row of a call"
    is_label = labels[:, 1:] != IGNORE_INDEX
    follows = (mask.cumsum(1)[:, :-1] > 0) & (mask[:, 1:] != 0) & (labels == ids)[:, 1:]
    if (is_label & ~follows).any():
        return "labels are not the next tokens of their rows"
    return None


def _fixed_positions(config: Any) -> float:
    """Return the number of positions up to which rotary embeddings depend on nothing else."""
    given = getattr(config, "rope_parameters", None) or {}
    ropes = [given, *(one for one in given.values() if isinstance(one, dict))]  # by kind of layer
    kinds = {one.get("rope_type") for one in ropes}
    if kinds.isdisjoint(("dynamic", "longrope")):
        return math.inf
    known = [one.get("original_max_position_embeddings") for one in ropes]
    return float(min(filter(None, known), default=config.max_position_embeddings))


def _drops(module: Any) -> bool:
    """Return True for a module with dropout."""
    import torch

    rates = [value for name, value in vars(module).items() if "drop" in name]
    if isinstance(module, torch.nn.modules.dropout._DropoutNd):
        rates.append(module.p)
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


def shuffle_sequence_dict(seq_dict: dict[str, Any]) -> dict[str, Any]:
    """Shuffle a generation batch; under ``patch(keep_groups=True)`` its prompts, as groups.

    TRL splits the batch into slices afterwards. With `keep_groups`, samples of one prompt are
    neighbours in the shuffled batch, so that a slice has whole groups if its number of rows is a
    multiple of ``num_generations``. Written against TRL 1.16.0:
    ``trl.trainer.utils.shuffle_sequence_dict``.
    """
    shuffled: dict[str, Any] = _own("shuffle_sequence_dict")(seq_dict)
    prompts = shuffled.get("prompt_ids")
    if prompts is None or not _options().keep_groups:
        return shuffled
    keys = [row.tobytes() for row in prompts.cpu().numpy()]
    first: dict[bytes, int] = {}
    rows = sorted(range(len(keys)), key=lambda row: first.setdefault(keys[row], row))
    return {key: _picked(value, rows) for key, value in shuffled.items()}


def _picked(value: Any, rows: list[int]) -> Any:
    """Return rows of a tensor or list; other values as they are."""
    if isinstance(value, list):
        return [value[row] for row in rows]
    return value if value is None or value.ndim == 0 else value[rows]


def _options() -> Options:
    """Return the arguments of the current ``patch()``."""
    return options if _patcher().is_patched else Options()


def _patcher() -> Patcher:
    from fastcollate.compat.trl import PATCHER

    return PATCHER


def _own(name: str) -> Any:
    """Return TRL's own function."""
    return _patcher().original("trl.trainer.utils", name)
