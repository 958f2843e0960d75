"""Error messages for keys that a batch does not have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from fastcollate.common.names import column_called, fold
from fastcollate.common.text import show
from fastcollate.rows.fields import LABELS

if TYPE_CHECKING:
    from fastcollate._fastcollate import Plan
    from fastcollate.ops.batch_state import BatchState

_PACKED = "pass layout=fc.Packed(...) to build_batch"
_ROUNDED = "pass layout=fc.Packed(..., multiple_of=...) to build_batch"
_CONCATENATED = "pass layout=fc.Packed(...) or layout='jagged' to build_batch"

ROWS_ADVICE = (
    "call batch.select(rows=[...]) for a batch of rows, or batch.show(rows=[...]) to look at them"
)
_REBUILT = "trainers rebuild a batch from its items: name {} in the outputs= of the Collator"
_REQUESTS = {
    "labels": "pass labels='aligned' to build_batch (or 'shifted', for losses that do not shift)",
    "shift_labels": "pass labels='shifted' to build_batch",
    "position_ids": (
        "pass position_ids=True to build_batch: they were left out by position_ids=False, or "
        "because models count positions of images in three dimensions"
    ),
    **{name: f"pass {name}=... to build_batch" for name in ("rewards", "logprobs", "advantages")},
    "loss_mask": _REBUILT.format("'loss_mask'"),
    "router_padding_mask": "pass fields={'routes': fc.RoutedExperts(...)} to build_batch",
    **dict.fromkeys(("cu_seqlens", "max_seqlen"), _CONCATENATED),
    **dict.fromkeys(("row_cu_seqlens", "sequence_ids"), _PACKED),
    **dict.fromkeys(("cu_seqlens_padded", "max_seqlen_padded", "row_cu_seqlens_padded"), _ROUNDED),
    "offsets": "pass layout='jagged' to build_batch",
    "response_offsets": "pass layout='jagged' or layout=fc.Tree(...) to build_batch",
    "sequence_offsets": "pass layout=fc.Tree(...) and a field with align='sequence' to build_batch",
    **dict.fromkeys(
        ("completion_mask", "action_mask"),
        "response_mask is 1 on responses, and loss_mask on tokens that train",
    ),
    **dict.fromkeys(
        ("responses", "response_ids", "completion_ids"), "see batch.targets, or batch.rows()"
    ),
    **dict.fromkeys(("cuda", "cpu", "to_device"), "call batch.to(device)"),
    **dict.fromkeys(("half", "bfloat16"), "pass dtypes={'rewards': 'bfloat16'} to build_batch"),
    **dict.fromkeys(("split", "chunk"), "call batch.select(rows=[...]), or batch.shards(plan)"),
    **dict.fromkeys(
        ("repeat", "repeat_interleave", "index_select", "reorder", "shuffle", "sort", "filter"),
        "call batch.select(rows=[...])",
    ),
    **dict.fromkeys(
        ("concat", "concatenate", "cat", "stack", "union"), "build one batch of all rows"
    ),
    "device": "its outputs have one each: batch.input_ids.device",
    **dict.fromkeys(
        ("batch", "data", "tensors", "non_tensor_batch"),
        "its outputs are items, as batch['input_ids'], and ids of rows attributes, as batch.uids",
    ),
    **dict.fromkeys(
        ("meta_info", "metadata", "info"), "keep other values in a dict beside it, or in fields"
    ),
    "ref_logps": "samples of pairs with ref_chosen_logps and ref_rejected_logps have it",
    **dict.fromkeys(
        ("ref_chosen_logps", "ref_rejected_logps"),
        "name it in outputs= of the Collator, or see batch.ref_logps.chunk(2)",
    ),
    **dict.fromkeys(("to_dict", "asdict"), "dict(batch) has its outputs"),
    "batch_size": "see len(batch.prompt_lens), or batch.metrics['batch/rows']",
    **dict.fromkeys(
        ("num_tokens", "n_tokens", "num_rows", "num_samples", "seq_len", "max_length", "stats"),
        "see batch.metrics, such as batch.metrics['batch/tokens']",
    ),
    **dict.fromkeys(
        ("lengths", "lens", "seq_lens", "seqlens", "seq_lengths", "row_lens", "input_lens"),
        "add up batch.prompt_lens and batch.response_lens",
    ),
    **dict.fromkeys(
        ("logits", "logps", "loss", "entropy", "hidden_states", "forward"),
        "call model(**batch.model_inputs(model=model)), and see batch.loss_positions()",
    ),
    **dict.fromkeys(("decode", "batch_decode", "text", "texts"), "call batch.show(tokenizer=...)"),
    **dict.fromkeys(
        ("pad_token_id", "tokenizer", "model", "config"),
        "a batch has only data; keep it beside it",
    ),
    **dict.fromkeys(
        ("mini_batches", "minibatches", "shard", "loader", "batches"),
        "call batch.shards(plan), of plan = fc.plan_step(batch, ...)",
    ),
    **dict.fromkeys(
        ("micro_batches", "microbatches"),
        "a shard of fc.plan_step(batch, ...) has it: shard.micro_batches(n); without a step, "
        "fc.planning.micro_batches divides rows by their lengths",
    ),
    **dict.fromkeys(("pack", "pad", "unpad"), "call batch.to_layout(layout)"),
    **dict.fromkeys(("report", "breaks", "trajectories"), "see batch.merge_plan.report"),
    "to_tensordict": "call fastcollate.compat.verl.to_tensordict(batch)",
    "update": "it is read-only: pass dict(batch), whose items may change",
    "save": "call torch.save(batch, path), and torch.load(path, weights_only=False)",
    **dict.fromkeys(("prompts", "prompt_ids"), "see batch.prompt_lens, or batch.rows()"),
    **dict.fromkeys(("predictors", "row_bins"), "pass layout=fc.Tree(...) to build_batch"),
}
"""The option that adds an output."""

_HALVES = (
    "the first half of the rows of pairs is chosen: chosen, rejected = batch.input_ids.chunk(2)"
)
_SHARED = (
    "rows of its layout share output rows; call the model with **batch.model_inputs(), or pass "
    "batch.dense_mask() or batch.block_mask()"
)
_END_TO_END = "responses lie end to end in its layout, without padding; see batch.response_offsets"
_LABELS_OF_TREE = (
    "a position of a tree can predict several tokens; see batch.targets and batch.predictors, or "
    "pass layout=fc.Tree(..., fork_early=True) and labels='shifted' to build_batch"
)


class RefusedMask:
    """The item ``attention_mask`` of packed and jagged rows and trees: no model can use it.

    Models that are called with ``**batch`` raise its error, and would mix rows without it.
    """

    __slots__ = ()

    def to(self, *_: Any, **__: Any) -> RefusedMask:
        """Return this: loops over a batch's items move them."""
        return self

    cuda = pin_memory = to

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"rows share output rows, without attention_mask; {_CALL}")

    def __repr__(self) -> str:
        return f"({_CALL})"

    def __reduce__(self) -> str:
        return "REFUSED"


_CALL = "call the model with **batch.model_inputs(model=model)"

REFUSED = RefusedMask()


def refused(state: BatchState) -> dict[str, Any]:
    """Return the mask that a model must not get; none if it may be called with the items."""
    data = state.data
    is_padded = "attention_mask" in data
    if is_padded or state.made_by is None or isinstance(data.get("input_ids"), np.ndarray):
        return {}
    return {"attention_mask": REFUSED}


def missing_key(
    plan: Plan | None,
    outputs: Mapping[str, Any],
    key: Any,
    is_attribute: bool,
    attributes: Iterable[str],
) -> str:
    """Return the error message for ``batch[key]``."""
    if not isinstance(key, str):
        return (
            f"batch[...] takes the key of an output, such as 'input_ids', and found "
            f"{show(key)}; {ROWS_ADVICE}"
        )
    if is_attribute:
        return f"{key!r} is not an output but an attribute; use batch.{key}"
    return missing_output(plan, outputs, key, attributes)


def missing_output(
    plan: Plan | None, outputs: Mapping[str, Any], name: str, attributes: Iterable[str]
) -> str:
    """Return the error message for an output that was not made, and the option that adds it."""
    if (reason := _not_in_layout(plan, name)) is not None:
        return f"Batch has no {name}, since {reason}"
    if (request := _REQUESTS.get(name)) is not None:
        is_column = plan is None and name in ("rewards", "logprobs", "advantages")
        more = f"; {_REBUILT.format(show(name))}" if is_column else ""
        return f"Batch has no {name}; {request}{more}"
    if name.startswith(("chosen", "rejected")):
        return f"Batch has no {name}; {_HALVES}"
    if (meant := column_called(name)) is not None:
        meant = "input_ids" if meant == "sequences" else meant
        advice = f"see batch.{meant}" if meant in outputs else _REQUESTS.get(meant)
        return f"Batch has no {name}; {advice or f'see batch.{meant}'}"
    if (part := next((key for key in outputs if fold(key) in fold(name)), None)) is not None:
        asks = f"pass fields={{{name!r}: ...}} to build_batch, or see batch.{part}"
        return f"Batch has no {name}; {asks}"
    # Of the class: some attributes of tensors raise errors of their own.
    if hasattr(type(next(iter(outputs.values()), None)), name):
        return f"Batch has no {name}; its outputs have one each: batch.{next(iter(outputs))}.{name}"
    advice = "pass others as fields={...} to build_batch" if plan else _REBUILT.format(show(name))
    return (
        f"Batch has no output or attribute {show(name)}; its outputs are {list(outputs)} "
        f"({advice}), and it has {', '.join(attributes)}"
    )


READ_ONLY = (
    "a Batch is read-only; pass columns to build_batch, write into an output, as "
    "batch.loss_mask[...] = values, or pass dict(batch), whose items may change"
)


def not_assigned(keys: Iterable[Any], name: str) -> str:
    """Return the error message for ``batch.name = value``."""
    if name in keys:
        return f"batch.{name} cannot be assigned; write into it: batch.{name}[...] = values"
    advice = _REQUESTS.get(name, "pass values of rows to build_batch, or keep them in a variable")
    return f"batch.{name} cannot be assigned; {advice}"


NOT_JOINED = (
    "batches cannot be joined: build one batch of all rows, in a BatchBuilder if they come in "
    "parts (other items go into dict(batch))"
)
NO_ARITHMETIC = "a Batch has no arithmetic; compute with its outputs, as batch.loss_mask"


def no_tensor(function: str) -> str:
    """Return the error message for a function of torch that is called with a batch."""
    advice = _REQUESTS.get(function, f"{_CALL}, and functions with an output, as batch.input_ids")
    return f"{function} takes tensors, but got a Batch; {advice}"


def missing_of_row(keys: Iterable[Any], key: Any) -> str:
    """Return the error message for a key that a row of ``batch.rows()`` lacks."""
    if isinstance(key, str):
        for names, place in _PARTS.items():
            if key in names.split():
                return f"rows have no {key!r}: it is row['input_ids'][{place}]"
        if key in _REQUESTS:
            return f"rows have no {key!r}; {_REQUESTS[key]}"
    return f"rows have no {show(key)}; their keys are {list(keys)}"


_PARTS = {
    "prompt prompts prompt_ids": ":row['prompt_len']",
    "response responses response_ids completion completion_ids": "row['prompt_len']:",
}
"""Spans of a row's tokens, by the names that others have for them."""


def _not_in_layout(plan: Plan | None, name: str) -> str | None:
    """Return the reason for an output that the batch's layout cannot have."""
    if plan is None:
        return None
    if plan.is_tree and "seqlen" in name:
        return "rows of a tree share tokens; see batch.attention_paths() and batch.subtree_end"
    if name in LABELS:
        return _LABELS_OF_TREE if plan.is_tree else None
    return {"attention_mask": _SHARED, "response_mask": _END_TO_END}.get(name)
