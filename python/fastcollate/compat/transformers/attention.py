"""An attention for transformers models that computes trees segment by segment."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import Any

from fastcollate.ops.masks import PATH_KEYS, TREE_ATTENTION


def register_tree_attention() -> str:
    """Register an attention by which decoders of transformers run on trees and packed rows.

    Returns
    -------
    str
        Its name, for ``attn_implementation`` or ``model.set_attn_implementation``. Such a model is
        called with ``model(**batch.model_inputs(model=model))``, in every layout.

    Notes
    -----
    With the paths of :meth:`fastcollate.Batch.attention_paths`, attention is computed by
    ``flash_attn_varlen_func`` of flash-attn, if installed, or else ``varlen_attn`` of torch, on
    CUDA in float16 or bfloat16, and otherwise by ``scaled_dot_product_attention`` of each segment.
    Each layer applies its own sliding window. With a mask it is computed as by ``"sdpa"``, and with
    a block mask as by ``"flex_attention"``; without either, sequences are found by positions.

    Written against transformers 5.24.0. The names of the paths come from TRL 1.16.0, whose
    attention for trees takes these inputs, too, with one output row.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(TREE_ATTENTION, tree_attention)
    AttentionMaskInterface.register(TREE_ATTENTION, sdpa_mask)
    return TREE_ATTENTION


def tree_attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Any, None]:
    """Attend to paths, given by `PATH_KEYS`, or as the mask says, if there are none.

    Queries are (N, heads, W, dim), and the result (N, W, heads, dim).
    """
    has_window = "sliding_window" in options
    window = options.pop("sliding_window", None)
    kv_index, *offsets = (options.pop(name, None) for name in PATH_KEYS)
    if kv_index is None:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        is_dense = attention_mask is None or hasattr(attention_mask, "dtype")
        if is_dense:
            _refuse(options, "softcap", "s_aux")  # sdpa ignores the second
            options["dropout"] = dropout
        attend = ALL_ATTENTION_FUNCTIONS["sdpa" if is_dense else "flex_attention"]
        found = attend(module, query, key, value, attention_mask, scaling=scaling, **options)
        return found[0], None
    _refuse(options, "softcap", "s_aux", "position_bias")
    if not has_window:
        _check_window(module, longest=offsets[-1])
    rows = query.shape[0]
    query, key, value = (one.transpose(1, 2).flatten(0, 1) for one in (query, key, value))
    key, value = key.index_select(0, kv_index), value.index_select(0, kv_index)
    found = _attend(query, key, value, offsets, scaling, dropout, window)
    return found.unflatten(0, (rows, -1)), None


def _refuse(options: dict[str, Any], *names: str) -> None:
    """Refuse arguments of attention that would have no effect."""
    for name in names:
        if options.get(name) is not None:
            raise ValueError(
                f"the model's attention has {name}, which {TREE_ATTENTION!r} does not compute; "
                "load the model with attn_implementation='eager' or 'flex_attention'"
            )


def _check_window(module: Any, longest: int) -> None:
    """Refuse a layer whose window is in its mask alone, which paths replace."""
    config = getattr(module, "config", None)
    window = getattr(config, "sliding_window", None) or longest
    kinds = getattr(config, "layer_types", None)
    is_full = kinds is not None and kinds[module.layer_idx] != "sliding_attention"
    if window < longest and not is_full:
        raise ValueError(
            f"layers of {type(module).__name__} do not pass their sliding window of {window} to "
            f"attention, so {TREE_ATTENTION!r} would attend to all of {longest} tokens; load the "
            "model with attn_implementation='eager' or 'sdpa'"
        )


def _attend(
    query: Any, key: Any, value: Any, offsets: Any, scale: Any, dropout: float, window: int | None
) -> Any:
    """Compute attention of variable lengths, by a kernel for it if one is installed and fits."""
    import torch

    is_half = query.dtype in (torch.float16, torch.bfloat16)
    if query.is_cuda and is_half and query.shape[-1] == value.shape[-1]:
        reach = -1 if window is None else window - 1
        if attend := _imported("flash_attn", "flash_attn_varlen_func"):
            return attend(
                query, key, value, *offsets, dropout_p=dropout, softmax_scale=scale, causal=True,
                window_size=(reach, min(reach, 0)),
            )  # fmt: skip
        if not dropout and (attend := _imported("torch.nn.attention.varlen", "varlen_attn")):
            is_grouped = query.shape[1] != key.shape[1]
            return attend(
                query, key, value, *offsets, scale=scale, window_size=(reach, 0),
                enable_gqa=is_grouped,
            )  # fmt: skip
    return _by_segment(query, key, value, offsets, scale, dropout, window)


def _imported(module: str, name: str) -> Any:
    """Return a function of a module; None if the module cannot be imported."""
    with suppress(ImportError):
        return getattr(import_module(module), name)
    return None


def _by_segment(
    query: Any, key: Any, value: Any, offsets: Any, scale: Any, dropout: float, window: int | None
) -> Any:
    """Compute attention of one segment after the other; the last query attends to all keys."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    is_grouped = query.shape[1] != key.shape[1]
    queries, keys = (each.diff().tolist() for each in offsets[:2])
    # Each slice would have a gradient as large as all queries or keys. Heads are in the middle, so
    # that parts and their gradients are contiguous.
    parts = query.split(queries), key.split(keys), value.split(keys)
    found = []
    for part in zip(*parts, strict=True):
        of_query, of_key, of_value = (one.transpose(0, 1)[None] for one in part)
        count = of_query.shape[2]
        if window is not None:
            reached = slice(-(count + window - 1), None)
            of_key, of_value = of_key[:, :, reached], of_value[:, :, reached]
        before = of_key.shape[2] - count
        mask = None
        if before or (window is not None and count > window):
            hidden = query.new_full((count, before + count), float("-inf"))
            mask = hidden.triu(before + 1)
            if window is not None:
                mask += hidden.tril(before - window)
        attended = scaled_dot_product_attention(
            of_query,
            of_key,
            of_value,
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=mask is None,
            scale=scale,
            enable_gqa=is_grouped,
        )
        found.append(attended[0].transpose(0, 1))
    return torch.cat(found)
