"""Log-probabilities of a padded block of rows, computed in bins or trees of these rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fastcollate._fastcollate import IGNORE_INDEX
from fastcollate.build import build_batch
from fastcollate.common.arguments import check_number, suggests_names
from fastcollate.common.arrays import describe
from fastcollate.ops.masks import ModelCall
from fastcollate.ops.model_inputs import inputs_without_masks, masks_of, positions
from fastcollate.ops.unpadding import unpad
from fastcollate.plan.layouts import Packed, Tree
from fastcollate.rows.fields import Field

if TYPE_CHECKING:
    import torch

    from fastcollate.ops.batch_state import BatchState


class TokenLogprobs(NamedTuple):
    """The result of :func:`token_logprobs`.

    Attributes
    ----------
    log_probs, entropies : torch.Tensor
        (B, L - 1): column j is of the token in column j + 1; 0 where no token is scored.
    """

    log_probs: torch.Tensor
    entropies: torch.Tensor


@suggests_names
def token_logprobs(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    loss_mask: torch.Tensor,
    *,
    layout: Packed | Tree,
    temperature: float = 1.0,
) -> TokenLogprobs:
    """Compute log-probabilities of tokens of a padded block, without padding or in a tree.

    The rows of the block are laid out as bins, the model runs once on each bin, and its results are
    padded again, with gradients. In a tree, rows share the computation of common prefixes.

    Parameters
    ----------
    model
        A causal language model of transformers, also wrapped by PEFT or for data parallelism. Its
        head computes logits of scored positions only (``logits_to_keep``). Attention of trees is
        fastest with ``attn_implementation=register_tree_attention()``.
    input_ids, attention_mask : torch.Tensor
        (B, L), on any device: rows with padding anywhere, where the mask is 0.
    loss_mask : torch.Tensor
        (B, L): not 0 for tokens to score, such as completions.
    layout
        ``fc.Packed(capacity)`` or ``fc.Tree(capacity)``, with their options of packing;
        ``fc.Packed.single_row()`` or ``fc.Tree()`` for one bin. Trees fork early: a position
        predicts one token.
    temperature
        Number by which logits are divided.

    Returns
    -------
    TokenLogprobs
        The tuple ``(log_probs, entropies)``, (B, L - 1), float32 or, for logits of float64,
        float64. 0 for tokens that are not scored, padding, and first tokens of rows.

    Raises
    ------
    TypeError, ValueError
        Another layout, or one with bins of a plan or with split rows; a row exceeds the
        capacity; arguments of different shapes.

    Notes
    -----
    Results equal those of rows one by one for models in which a token depends on the tokens before
    it alone, counted from the start of its row: not with dropout, recurrent layers or images.
    Shared tokens are summed in another order than separate ones, so results differ by rounding.

    Examples
    --------
    ::

        log_probs, entropies = token_logprobs(
            model, input_ids, attention_mask, completion_mask, layout=fc.Tree(capacity=16384)
        )
        log_probs = log_probs[:, -completion_width:]
    """
    temperature = check_number("temperature", temperature)

    def score(inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
        labels = inputs.pop("shift_labels")
        is_scored = labels != IGNORE_INDEX
        logits = model(**inputs, logits_to_keep=is_scored[0].nonzero()[:, 0]).logits[0]
        logits = logits if logits.dtype.itemsize == 8 else logits.float()
        logps = (logits / temperature).log_softmax(-1)
        return {
            "log_probs": logps.gather(-1, labels[is_scored][:, None])[:, 0],
            "entropies": -(logps.exp() * logps).sum(-1),
        }

    found = score_block(model, input_ids, attention_mask, loss_mask, layout, score)
    return TokenLogprobs(**found)


def score_block(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    loss_mask: torch.Tensor,
    layout: Packed | Tree,
    score: Callable[[dict[str, Any]], Mapping[str, torch.Tensor]],
) -> dict[str, torch.Tensor]:
    """Score the rows of a padded block in bins, and pad the results.

    `score` gets the inputs of the model for one bin, with ``shift_labels``, and returns values of
    the positions with labels. Arguments are those of `token_logprobs`, and so are the results.
    """
    import torch

    check_layout(layout)
    shapes = [tuple(each.shape) for each in (input_ids, attention_mask, loss_mask)]
    if len(set(shapes)) > 1 or len(shapes[0]) != 2:
        raise ValueError(
            f"input_ids, attention_mask and loss_mask have the shapes {shapes}; pass three tensors "
            "of (B, L)"
        )
    kept, is_scored = (each.cpu() != 0 for each in (attention_mask, loss_mask))
    is_predicted = kept & (kept.cumsum(1) > 1)
    rows = unpad(input_ids.cpu(), mask=kept)
    batch = build_batch(
        sequences=rows,
        prompt_lens=np.minimum(rows.lengths, 1),
        loss_mask=Field(unpad(is_scored.long(), mask=kept), align="sequence"),
        pad_token_id=0,
        labels="shifted",
        layout=replace(layout, fork_early=True) if isinstance(layout, Tree) else layout,
    )
    inputs_of_bins = _inputs_of_bins(model, batch.to(input_ids.device)._state, layout)
    found = [score(inputs) for inputs in inputs_of_bins]
    at = batch.gather(batch.loss_positions().inv, align="response").values[is_scored[is_predicted]]
    is_scored = (is_scored & is_predicted).to(input_ids.device)
    at = at.to(input_ids.device)
    padded = {}
    for name in found[0]:
        values = torch.cat([of_bin[name] for of_bin in found])[at]
        padded[name] = values.new_zeros(shapes[0]).masked_scatter(is_scored, values)[:, 1:]
    return padded


def _inputs_of_bins(
    model: Any, state: BatchState, layout: Packed | Tree
) -> Iterator[dict[str, Any]]:
    """Yield the inputs of a model for each bin of a batch.

    Bins are as wide as their tokens, unless their width is fixed.
    """
    inputs = inputs_without_masks(state, positions(state))
    call = ModelCall.of(None, getattr(model, "module", model))
    multiple_of = math.lcm(layout.multiple_of, layout.width_multiple)
    if layout.pad_to:
        multiple_of = state.plan.width
    for bin_ in range(state.plan.num_output_rows):
        plan = state.plan.of_bin(bin_, multiple_of)
        names = ("input_ids", "position_ids", "shift_labels")
        of_bin = {name: inputs[name][bin_ : bin_ + 1, : plan.width] for name in names}
        alone = state._replace(made_by=plan, data={"input_ids": of_bin["input_ids"]})
        yield {**of_bin, "use_cache": False, **masks_of(alone, call)}


def check_layout(layout: Packed | Tree) -> None:
    """Check a layout of blocks."""
    if not isinstance(layout, (Packed, Tree)):
        raise TypeError(
            f"layout is {describe(layout)}; pass fc.Packed(capacity=...) or fc.Tree(capacity=...)"
        )
    if layout.plan not in (None, "single_row"):
        raise ValueError(
            f"layout is {layout}, whose plan is of other rows; pass a capacity in place of the plan"
        )
    if layout.oversize == "split" or layout.algorithm == "concat":
        raise ValueError(
            f"layout is {layout}, which splits rows, but parts do not attend to each other; pass "
            "another algorithm, or oversize='own_bin'"
        )
    if isinstance(layout, Tree) and (layout.share != "all" or layout.same_inputs is not None):
        raise ValueError(
            f"layout is {layout}, but rows of a padded block have no ids; leave share and "
            "same_inputs out"
        )
