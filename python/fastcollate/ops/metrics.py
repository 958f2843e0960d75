"""Sizes of a batch, for logging."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastcollate.common.arrays import on_host
from fastcollate.ops.loss_positions import trained
from fastcollate.rows.fields import LOGPROBS
from fastcollate.rows.lengths import percentiles

if TYPE_CHECKING:
    from fastcollate._fastcollate import Plan
    from fastcollate.ops.batch_state import BatchState
    from fastcollate.rows.versions import Lag


def metrics_of(state: BatchState) -> dict[str, float]:
    """See :attr:`fastcollate.Batch.metrics`."""
    plan = state.plan
    is_real = state.is_real
    prompt_lens, response_lens = plan.prompt_lens[is_real], plan.response_lens[is_real]
    prompt_tokens, response_tokens = int(prompt_lens.sum()), int(response_lens.sum())
    tokens, padded_tokens = prompt_tokens + response_tokens, plan.num_positions
    merging: dict[str, float] = {}
    if state.merge_plan is not None:
        masked = {"generate/num_rewards_masked_by_merge": float(state.masked_rewards)}
        merging = state.merge_plan.report.metrics | masked
    truncation: dict[str, float] = {}
    if state.truncated is not None:
        keys = ("batch/truncated_rows", "batch/truncated_tokens")
        truncation = dict(zip(keys, map(float, state.truncated), strict=True))
    bins = {"batch/bins": float(plan.num_output_rows)} if plan.has_bins else {}
    if plan.is_tree:
        bins["batch/token_ratio"] = tokens / plan.num_placed if plan.num_placed else 1.0
        bins["batch/path_keys"] = float(plan.path_sizes()[1])
    training: dict[str, float] = {}
    # Without a table of outputs the mask is not known, a context-parallel part has only some
    # of it, and tensors of the device "meta" have no values.
    has_values = not getattr(state.data["input_ids"], "is_meta", False)
    if state.options is not None and state.options.cp is None and has_values:
        counts = plan.count_in_responses(trained(state))[is_real]
        logprobs = state.data.get(LOGPROBS.key)
        bad = {}
        if logprobs is not None:
            bad["batch/bad_logprobs"] = float(np.count_nonzero(~are_logprobs(on_host(logprobs))))
        uncaptured = {
            f"batch/{key}_uncaptured_tokens": float(
                np.count_nonzero(on_host(state.data[mask])) - padded_tokens + plan.num_placed
            )
            for key, mask in state.spec.captured_masks.items()
        }
        lags: dict[str, float] = {}
        for key, lag in state.spec.lags:
            lags |= _lag_of(key, lag, on_host(state.data[key]))
        training = {
            **bad,
            **lags,
            **uncaptured,
            "batch/trained_tokens": float(counts.sum()),
            "batch/rows_without_loss": float(np.count_nonzero(counts == 0)),
        }
    return {
        "batch/rows": float(len(prompt_lens)),
        **bins,
        "batch/tokens": float(tokens),
        "batch/prompt_tokens": float(prompt_tokens),
        "batch/response_tokens": float(response_tokens),
        "batch/padded_tokens": float(padded_tokens),
        "batch/padding_fraction": padding_of(plan),
        "batch/longest_row": float((prompt_lens + response_lens).max(initial=0)),
        "batch/longest_prompt": float(prompt_lens.max(initial=0)),
        "batch/longest_response": float(response_lens.max(initial=0)),
        **percentiles("batch/row_length", prompt_lens + response_lens),
        **percentiles("batch/prompt_length", prompt_lens),
        **percentiles("batch/response_length", response_lens),
        **training,
        "batch/tokens_without_predecessor": float(plan.num_unpredicted),
        **{
            f"batch/own_tokens_added_to_{key}": float(count)
            for key, count in state.own_tokens_added
        },
        **merging,
        **truncation,
        **(state.transfer or {}),
    }


def padding_of(plan: Plan) -> float:
    """Return the share of positions without a token of a real row."""
    return 1 - plan.num_placed / plan.num_positions if plan.num_positions else 0.0


def _lag_of(key: str, lag: Lag, versions: Any) -> dict[str, float]:
    """Return the lag of tokens with versions behind the one that is trained."""
    known = versions[versions >= 0]
    behind = lag.current - known.astype(np.int64)
    stale = int(lag.stale(known).sum())
    limited = {
        f"batch/{key}_stale_tokens": float(stale),
        f"batch/{key}_stale_fraction": stale / len(known) if len(known) else 0.0,
    }
    return {
        f"batch/{key}_lag_mean": float(behind.mean()) if len(known) else 0.0,
        f"batch/{key}_lag_max": float(behind.max(initial=0)),
        **(limited if lag.max_lag is not None else {}),
    }


PLACEHOLDER = -9984
"""vLLM writes -9999 for a log-probability that is none, which is this in bfloat16."""


def are_logprobs(values: Any) -> NDArray[np.bool_]:
    """Return True for log-probabilities that are finite, and not vLLM's -9999."""
    found: NDArray[np.bool_] = np.isfinite(values) & (values > PLACEHOLDER)
    return found
