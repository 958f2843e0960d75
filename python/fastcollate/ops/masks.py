"""The attention of a batch as arguments of transformers models, for each kind of kernel."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from fastcollate.common.arguments import check_choice
from fastcollate.common.arrays import describe
from fastcollate.ops.attention import AttentionPaths, attention_paths, block_mask, dense_mask
from fastcollate.ops.model_kinds import (
    BLIND,
    COUNT_PADDING,
    OWN_START,
    WITHOUT_SHIFT,
    carries_state,
    reason_against,
    reason_of_outputs,
    takes_paths,
    types_of_images,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcollate._fastcollate import Plan

Kernel: TypeAlias = Literal["dense", "block", "flash", "paths"]
"""Kinds of kernels, by the form of the mask that they take."""

TREE_ATTENTION = "fastcollate_tree"
"""The attention of transformers that takes paths, once it is registered."""

_KERNELS: dict[str, Kernel | None] = {
    "eager": None,
    "sdpa": None,
    "flex_attention": "block",
    TREE_ATTENTION: "paths",
}
"""The kernel of each attention of transformers; None finds sequences by their positions."""

PATH_KEYS = [f"tree_{name}" for name in AttentionPaths._fields]
"""The arguments of attention that takes paths, as TRL names them."""

FLASH_KEYS = ["cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"]
"""The arguments of models that say where sequences begin, of flash attention."""

MASK_KEYS = {"attention_mask", *FLASH_KEYS, *PATH_KEYS}
"""The arguments of models that say which positions attend to each other, of all kernels."""


def check_kernel(kernel: Any, is_numpy: bool, is_tree: bool) -> None:
    """Check that a kernel fits the kind of arrays and the layout."""
    if kernel is None:
        return
    if hasattr(kernel, "forward"):
        raise TypeError("kernel is a model; pass it by name: model=model")
    check_choice("kernel", kernel, get_args(Kernel))
    if kernel == "block" and is_numpy:
        raise ValueError(
            "kernel is 'block', but array_type is 'numpy', which FlexAttention does not take; pass "
            "kernel='dense', or array_type='torch'"
        )
    if kernel == "flash" and is_tree:
        raise ValueError(
            "kernel is 'flash', which takes no trees; pass kernel='paths' to a model with "
            "attn_implementation=register_tree_attention(), of fastcollate.compat.transformers"
        )


class ModelCall(NamedTuple):
    """The call of a model with a batch: what decides the masks."""

    kernel: Kernel | None = None
    """None: by the model."""
    config: Any | None = None
    """The configuration of the model's decoder, if it is known."""
    dtype: Any | None = None
    """The dtype of dense masks; None for float32."""
    has_state: bool = False
    """True if the model's layers carry a state from one position to the next."""
    reason: str | None = None
    """Why sequences cannot share output rows of this model, whatever its type; None if they can."""
    types_of_images: str | None = None
    """The argument by which the model knows the tokens of images; None if it needs none."""

    @classmethod
    def of(cls, kernel: Kernel | None, model: Any, dtype: Any = None) -> ModelCall:
        """Return the call of a model, which may be None.

        Raises
        ------
        ValueError, TypeError
            The model would train wrongly in every layout, or has no config.
        """
        if model is None:
            return cls(kernel, None, dtype)
        config = config_of(model)
        if getattr(config, "is_encoder_decoder", False):
            raise ValueError(
                "the model has an encoder, which would read the responses that the decoder "
                "predicts; pass a decoder, such as one of AutoModelForCausalLM"
            )
        name = getattr(config, "_attn_implementation", None)
        if name == TREE_ATTENTION and not takes_paths(model):
            raise ValueError(
                f"the model's layers do not call registered attention, such as {name!r}; load it "
                "with attn_implementation='eager'"
            )
        dtype = getattr(model, "dtype", None) if dtype is None else dtype
        of_model = carries_state(model), reason_of_outputs(model), types_of_images(model)
        return cls(kernel, config, dtype, *of_model)

    @property
    def knows_masks(self) -> bool:
        """True if the kernel or the model is known."""
        return self.kernel is not None or self.config is not None

    def check_labels(self) -> None:
        """Check that the loss of the model is that of the next tokens.

        Raises
        ------
        ValueError
            It compares each label with the output at its own token.
        """
        kind = getattr(self.config, "model_type", None)
        if kind in WITHOUT_SHIFT:
            raise ValueError(
                f"models of the type {kind!r} do not shift labels, so they would train on the "
                "token just read; leave labels out, and compute the loss from batch.targets"
            )

    def kernel_for(self, layout: str, is_numpy: bool, has_positions: bool) -> Kernel | None:
        """Return the kernel for a layout; None for rows that the model finds by itself.

        Parameters
        ----------
        layout, is_numpy
            The batch's, and True if its arrays are NumPy's.
        has_positions
            True if the model gets positions that restart at each sequence.

        Raises
        ------
        ValueError
            The kernel does not fit, or the model would train wrongly on this layout.
        """
        kernel, config, is_tree = self.kernel, self.config, layout == "tree"
        kind = getattr(config, "model_type", None)
        are_joined = layout in ("jagged", "packed", "tree")  # they share an output row
        if are_joined and kernel is None and config is not None:
            kernel = kernel_of(config)
        check_kernel(kernel, is_numpy, is_tree)
        if not are_joined:
            if kind in OWN_START and has_positions:
                raise ValueError(
                    f"models of the type {kind!r} do not count positions from 0; pass "
                    "position_ids=False and layout='right'"
                )
            if kind in COUNT_PADDING and layout != "right":
                raise ValueError(
                    f"models of the type {kind!r} count padding on the left; pass layout='right'"
                )
            return kernel
        if not self.knows_masks:
            raise needs_kernel()
        if config is None:
            return kernel
        reason = self.reason or reason_against(config, kernel, is_tree, self.has_state)
        if reason is not None:
            raise ValueError(
                f"{reason}, so sequences cannot share an output row; pass a padded layout, such as "
                "layout='left'"
            )
        is_blind = kind in BLIND or not has_positions
        return kernel or ("dense" if is_tree or is_blind else None)


def needs_kernel() -> ValueError:
    """Return the error of rows whose mask depends on a model that is not known."""
    return ValueError(
        "packed and jagged rows and trees need the mask of the model's attention; pass model=model "
        "to model_inputs or to the Collator, or kernel='flash' (not for trees), 'paths', 'block' "
        "or 'dense' (the last two without sliding windows)"
    )


def config_of(model: Any) -> Any:
    """Return the configuration of a model's decoder."""
    config = getattr(model, "config", None)
    if config is None or isinstance(config, (dict, str)):  # or DeepSpeed's own
        is_wrapped = hasattr(getattr(model, "module", None), "config")  # by DDP, for instance
        advice = "model=model.module" if is_wrapped else "a transformers model, or the kernel"
        raise TypeError(f"model is {describe(model)}, which has no config; pass {advice}")
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def kernel_of(config: Any) -> Kernel | None:
    """Return the kernel of a model's attention."""
    name = getattr(config, "_attn_implementation", None)
    if name in _KERNELS:
        return _KERNELS[name]
    if isinstance(name, str) and "flash" in name:
        return "flash"
    kernels = ", ".join(map(repr, get_args(Kernel)))
    raise ValueError(f"the model has the attention {name!r}; pass kernel as one of {kernels}")


def mask_inputs(
    plan: Plan, ids: Any, kernel: Kernel, config: Any | None, dtype: Any
) -> dict[str, Any]:
    """Return the arguments that say which positions attend to each other."""
    if kernel == "flash":
        paths = attention_paths(plan, ids)  # of sequences that share nothing
        sizes = [paths.cu_seqlens_q] * 2 + [paths.max_seqlen_q] * 2
        return dict(zip(FLASH_KEYS, sizes, strict=True))
    if kernel == "paths":
        _windows_of(config)
        # A mask of four dimensions goes to attention as it is; this one fits no other attention.
        inputs = {"attention_mask": ids.reshape(-1)[:0].reshape(1, 1, 0, 0)}
        return inputs | dict(zip(PATH_KEYS, attention_paths(plan, ids), strict=True))
    make: Callable[..., Any] = partial(block_mask, plan, ids)
    if kernel == "dense":
        make = partial(dense_mask, plan, ids, dtype)
    masks = {kind: make(window=window) for kind, window in _windows_of(config).items()}
    return {"attention_mask": masks if len(masks) > 1 else next(iter(masks.values()))}


def _windows_of(config: Any | None) -> dict[str, int | None]:
    """Return the window of each kind of layers; None without a window."""
    window = getattr(config, "sliding_window", None) or None
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        kinds = ["sliding_attention" if window else "full_attention"]
    if unknown := set(kinds) - {"full_attention", "sliding_attention"}:
        raise ValueError(
            f"the model has layers of {min(unknown)!r}, which take no mask; pass another layout, "
            "such as layout='left'"
        )
    return {kind: window if kind == "sliding_attention" else None for kind in kinds}
