"""Costs from a model's configuration: the FLOPs of a forward and backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastcollate.common.arrays import describe

PLAIN_MLPS = frozenset(
    {"bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "opt", "phi"}
    | {"codegen", "mpt", "starcoder2", "xglm"}
)
"""Model types whose MLP has two matrices; all others have three, one of them a gate."""

FORWARD_AND_BACKWARD = 3
"""Backward has two products for each forward one: the gradients of input and weights."""


def parameters_of(config: Any) -> dict[str, Any]:
    """Return the parameters of `Costs`; :meth:`Costs.from_config` has the formulas."""
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    model = _Config(config)
    hidden, layers = model.count("hidden_size"), model.count("num_hidden_layers")
    heads = model.count("num_attention_heads")
    kv_heads = model.optional("num_key_value_heads") or heads
    head_dim = model.optional("head_dim") or hidden // heads
    projections = 2 * hidden * (heads + kv_heads) * head_dim
    mlps = sum(_mlp(model, hidden, layer) for layer in range(layers))
    head = hidden * model.count("vocab_size")
    per_pair = 2 * 2 * layers * heads * head_dim
    return {
        "per_token": float(2 * FORWARD_AND_BACKWARD * (layers * projections + mlps + head)),
        "per_pair": float(FORWARD_AND_BACKWARD * per_pair),
        **_attention(model, layers),
    }


class _Config:
    """A configuration, as an object or a dict."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def optional(self, name: str) -> Any:
        """Return a value, or None if missing."""
        if isinstance(self._config, Mapping):
            return self._config.get(name)
        return getattr(self._config, name, None)

    def count(self, name: str) -> int:
        """Return a required number."""
        value = self.optional(name)
        if not isinstance(value, int) or value < 1:
            raise ValueError(
                f"config has {name}={value!r}, but {describe(self._config)} needs a number of 1 or "
                "more there; pass model.config, or the costs themselves as Costs(per_token=...)"
            )
        return value


def _attention(model: _Config, layers: int) -> dict[str, Any]:
    """Return the sizes and layer shares of windows and chunks."""
    for name in ("kv_lora_rank", "attn_layer_period", "linear_conv_kernel_dim", "state_size"):
        if model.optional(name):
            raise ValueError(
                f"config has {name}, of attention whose FLOPs are not known; pass "
                "Costs(per_token=..., per_pair=...), or measure them with Costs.fit"
            )
    window = model.optional("sliding_window") or None
    chunk = model.optional("attention_chunk_size") or None
    kinds = model.optional("layer_types")
    if kinds is None:
        kinds = ["sliding_attention" if window else "full_attention"] * layers
    if unknown := set(kinds) - {"full_attention", "sliding_attention", "chunked_attention"}:
        raise ValueError(
            f"config has layer_types with {min(unknown)!r}, whose FLOPs are not known; pass "
            "Costs(per_token=..., per_pair=...), or measure them with Costs.fit"
        )
    found: dict[str, Any] = {}
    sizes = {"window": ("sliding_attention", window), "chunk": ("chunked_attention", chunk)}
    for name, (kind, size) in sizes.items():
        if size and kind in kinds:
            found |= {name: size, f"{name}_share": kinds.count(kind) / len(kinds)}
    return found


def _mlp(model: _Config, hidden: int, layer: int) -> int:
    """Return the number of active weights per token in a layer's MLP."""
    matrices = 2 if model.optional("model_type") in PLAIN_MLPS else 3
    dense = model.optional("intermediate_size") or model.optional("n_inner")
    dense = dense or model.optional("ffn_dim") or 4 * hidden
    experts = model.optional("num_local_experts") or model.optional("num_experts")
    experts = experts or model.optional("n_routed_experts")
    if not experts or not _has_experts(model, layer):
        return matrices * hidden * int(model.optional("intermediate_size_mlp") or dense)
    active = model.count("num_experts_per_tok")
    width = model.optional("moe_intermediate_size") or dense
    shared = model.optional("shared_expert_intermediate_size") or 0
    shared += (model.optional("n_shared_experts") or 0) * width
    if model.optional("model_type") == "llama4_text":
        shared = width
    return hidden * int(experts + matrices * (active * width + shared))


def _has_experts(model: _Config, layer: int) -> bool:
    """Return whether a layer of a model with experts has experts."""
    if (layers := model.optional("moe_layers")) is not None:
        return layer in layers
    if layer in (model.optional("mlp_only_layers") or ()):
        return False
    if layer < (model.optional("first_k_dense_replace") or 0):
        return False
    return (layer + 1) % (model.optional("decoder_sparse_step") or 1) == 0
