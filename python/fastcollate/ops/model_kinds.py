"""Models of transformers that rows in bins do not fit, or that need a dense mask for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

BLIND = frozenset(
    """
    afmoe biogpt cosmos3_edge_text ernie4_5_vl_moe_text evolla falcon glm4v_moe_text glm4v_text
    glm_ocr_text gpt_oss hunyuan_vl_text hy_v4_vl_text opt paddleocr_vl_text
    qwen2_5_omni_text qwen2_5_vl_text qwen2_vl_text xglm
    """.split()  # noqa: SIM905
)
"""Types of models that do not find sequences by positions (of images and text: by two-dimensional
ones), but take a dense mask."""

_LIKE_BART = frozenset(
    """
    bart bigbird_pegasus blenderbot blenderbot-small mbart mvp pegasus plbart trocr
    """.split()  # noqa: SIM905
)
"""Types of the decoders of BART's family."""

OWN_START = frozenset(
    """
    camembert data2vec-text kosmos_2_5_text_model kosmos_2_text_model roberta roberta-prelayernorm
    xlm-roberta xlm-roberta-xl xmod
    """.split()  # noqa: SIM905
)
"""Types of models whose positions begin after the id of the padding token."""

OWN_POSITIONS = (
    _LIKE_BART
    | OWN_START
    | frozenset(
        """
    bert bert-generation big_bird bloom cpmant electra ernie marian megatron-bert mpt musicgen
    musicgen_melody openai-gpt prophetnet reformer rembert roc_bert roformer xlm xlnet
    """.split()  # noqa: SIM905
    )
)
"""Types of models that have positions or masks of their own, for one sequence per row."""

COUNT_PADDING = (
    _LIKE_BART
    | OWN_START
    | frozenset(
        """
    deepseek_v4 marian recurrent_gemma roformer rwkv xlstm
    """.split()  # noqa: SIM905
    )
)
"""Types of models that take padding on the left for tokens or count it, despite mask and
positions."""

_TYPES_OF_IMAGES = {
    **dict.fromkeys(("gemma3", "paligemma"), "token_type_ids"),
    **dict.fromkeys(("gemma4", "gemma4_unified", "molmo2"), "mm_token_type_ids"),
    "ernie4_5_vl_moe": "moe_mm_token_type_ids",
    "idefics": "image_attention_mask",
    **dict.fromkeys(("kosmos-2", "kosmos-2.5"), "image_embeds_position_mask"),
    "mllama": "cross_attention_mask",
}
"""Types of models that treat tokens of images in another way, or tokens that attend to images, if
these arguments mark them."""

TOKEN_TYPES = tuple({"mm_token_type_ids": None, **dict.fromkeys(_TYPES_OF_IMAGES.values())})
"""The keys of fields along the ids that models take, such as those of images."""

WITHOUT_SHIFT = _LIKE_BART | frozenset({"cpmant", "prophetnet", "whisper", "xlm", "xlnet"})
"""Types of models whose loss compares a label with the output at its own token."""

WITHOUT_OFFSETS = frozenset({"falcon", "gpt_neo", "gptj"})
"""Types of models whose flash attention gets no offsets of sequences."""

WITH_STATE = frozenset({"conv", "hybrid", "hybrid_sliding", "linear_attention"})
"""Kinds of layers with a state that goes from one position to the next."""


def reason_against(config: Any, kernel: str | None, is_tree: bool, has_state: bool) -> str | None:
    """Return why a model would train wrongly on packed rows, jagged rows or trees; None if not.

    Found by reading transformers 5.24.0, which raises no error for any of these.
    """
    kind = getattr(config, "model_type", None)
    if kind in OWN_POSITIONS or (kind == "falcon" and getattr(config, "alibi", False)):
        return f"models of the type {kind!r} have positions or masks of their own"
    if is_tree and "local" in (getattr(config, "attention_layers", None) or ()):
        return f"local layers of {kind!r} count positions, which differ between a tree and its rows"
    if kernel == "flash" and kind in WITHOUT_OFFSETS:
        return f"the flash attention of {kind!r} gets no offsets of sequences"
    kinds = WITH_STATE.intersection(getattr(config, "layer_types", None) or ())
    if (kinds or has_state) and (is_tree or kernel != "flash"):
        return "the model's layers carry a state from one sequence to the next"
    return None


def types_of_images(model: Any) -> str | None:
    """Return the argument by which a model knows the tokens of images, or those that see them."""
    config = model.config
    kind = getattr(config, "model_type", "")
    if "gemma4" in kind and config.get_text_config().use_bidirectional_attention != "vision":
        return None
    return _TYPES_OF_IMAGES.get(kind)


def carries_state(model: Any) -> bool:
    """Return True for a model whose layers are all recurrent, by its own word."""
    return bool(getattr(model, "_is_stateful", False))


def reason_of_outputs(model: Any) -> str | None:
    """Return why a model, or PEFT, has something of its own for each output row; None if not."""
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        return "PEFT adds tokens of its own before each output row, as for prompt tuning"
    if any(name.endswith("ForSequenceClassification") for name in _types_of(model)):
        return "the model scores output rows by their last token (model.base_model has all tokens)"
    return None


def _types_of(model: Any) -> Iterator[str]:
    """Return the names of a model's type and, if it wraps another, as compiled ones do, of that."""
    yield type(model).__name__
    inner = [*model.children()] if hasattr(model, "children") else []
    if len(inner) == 1:
        yield from _types_of(inner[0])


def takes_paths(model: Any) -> bool:
    """Return False for a model whose layers do not call an attention that was registered."""
    can_set = getattr(model, "_can_set_attn_implementation", None)
    return can_set is None or bool(can_set())
