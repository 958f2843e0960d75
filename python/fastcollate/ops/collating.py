"""The call of the core: from rows to the outputs of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from fastcollate import _fastcollate
from fastcollate._fastcollate import (
    FieldSpec,
    LayoutSpec,
    OutputSpec,
    Plan,
)
from fastcollate.common.arguments import check_int, warn_user
from fastcollate.common.requirements import LEAST_TORCH, check_version
from fastcollate.memory.pools import PoolArgument, check_memory
from fastcollate.ops.batch_state import BatchSpec, BatchState
from fastcollate.ops.tree_labels import check_trained_once, tree_label_keys
from fastcollate.plan.grouping import group_numbers
from fastcollate.plan.layouts import LEFT
from fastcollate.plan.merging import RowSource
from fastcollate.plan.shard import Shard, items_of, pad_names
from fastcollate.plan.trajectories import check_flags
from fastcollate.rows.fields import check_images, object_outputs
from fastcollate.rows.tokens import Tokens

_AS_PASSED = OutputSpec()
"""The outputs of frameworks' functions, which return loss masks as passed, if at all."""


UNTRAINED = (
    "loss_mask is 0 on all response tokens, so nothing trains; pass 1 on those that train (a mask "
    "over whole sequences as fc.Field(mask, align='sequence'))"
)
"""The warning for a loss mask of zeros; a shard or a rank may have one."""

POSITIVE = (
    "most log-probabilities are above 0, as probabilities and losses are; pass log-probabilities, "
    "which are at most 0"
)
"""The warning for something else in place of log-probabilities."""

REPEATED = (
    "every response begins with its whole prompt, like the output of generate, so prompts are in "
    "the batch twice, and their second copies train; cut them off, or pass sequences and "
    "prompt_lens"
)
"""The warning for responses that repeat prompts."""


class Request(NamedTuple):
    """What a batch is made of: checked options, columns and the rows to write."""

    tokens: Tokens
    pad_token_id: Any
    fields: Sequence[tuple[Any, FieldSpec]] = ()
    array_type: str = "torch"
    layout: LayoutSpec = LEFT.spec
    outputs: OutputSpec = _AS_PASSED
    pool: PoolArgument = "default"
    ids: dict[str, Any] = {}  # noqa: RUF012 -- not changed; as a view, it takes a microsecond
    merging: RowSource | None = None
    shard: Shard | None = None
    cp: tuple[int, int] | None = None


def collate(request: Request) -> BatchState:
    """Call the core, and make tensors of its outputs."""
    # One statement: reading eleven attributes takes longer.
    (tokens, pad_token_id, fields, array_type, layout, outputs, pool, names, merging, shard, cp) = (
        request
    )
    pad_token_id = check_pad(pad_token_id, outputs)
    torch = None if array_type == "numpy" else import_torch()
    memory = check_memory(pool, array_type)
    uids = names.get("uids")
    if layout.shares_by_uid and uids is None:
        raise ValueError(
            "share of the layout is 'group', but uids is None; pass one uid per row, or another "
            "share"
        )
    # A step's trees say which rows share tokens.
    is_planned = shard is not None and shard.shared is not None
    plan, specs, table, data, owner, merge, masked_rewards, added, signs = _fastcollate.collate(
        tokens,
        None if merging is None else merging.row_source,
        None if shard is None else shard.spec,
        cp,
        pad_token_id,
        fields,
        names,
        group_numbers("uids", uids) if layout.shares_by_uid and not is_planned else None,
        layout,
        outputs,
        torch,
        memory.pool,
        memory.pinned,
    )
    if memory.pinned is not None:
        data = memory.pinned.over_slab(data)
    sources = _sources(plan, merging, shard)
    is_written_again = merging is not None and isinstance(merging.row_source, Plan)
    merged = None if merging is None else merging.plan_of(merge)
    if [spec for _, spec in fields if not spec.is_written]:
        data |= object_outputs(table, fields, sources)
        if merged is not None and not is_written_again:
            check_images(fields, merged.turn_rows, merged.sources)
    if sources is not None:
        picked = {} if merging is None else merging.names_of(sources)
        picked |= {name: items_of(values, sources) for name, values in names.items()}
        if not set(map(type, picked.get("is_last_step", ()))) <= {bool, type(None)}:
            flags = check_flags("is_last_step", names["is_last_step"]).tolist()
            picked["is_last_step"] = items_of(flags, sources)
        names = {name: pad_names(name, values, shard) for name, values in picked.items()}
    collated = BatchState(  # by position, which takes less than half the time
        data,
        plan,
        BatchSpec(pad_token_id, specs, outputs, table, cp, layout.forks_early),
        names.get("uids"),
        names.get("trajectory_ids"),
        names.get("is_last_step"),
        merged,
        None if shard is None else shard.is_padding.tolist(),
        masked_rewards if merging is None else max(masked_rewards, merging.masked_rewards),
        tuple(added),
        owner,
    )
    is_new = outputs is not _AS_PASSED and not is_written_again
    if True in signs and is_new and shard is None and cp is None:
        untrained, repeats, is_positive = signs
        if untrained and plan.response_lens.any():
            warn_user(UNTRAINED)
        if repeats:
            warn_user(REPEATED)
        if is_positive:
            warn_user(POSITIVE)
    if layout.forks_early and "labels" in tree_label_keys(collated):
        check_trained_once(collated)
    return collated


def _sources(plan: Plan, merging: RowSource | None, shard: Shard | None) -> list[int] | None:
    """Return each row's index into items per turn; None if it is the row number."""
    if merging is not None and isinstance(merging.row_source, Plan):
        # Rows were merged before: items are given per row, not per turn.
        return None if shard is None else shard.rows.tolist()
    return None if merging is None and shard is None else plan.sources.tolist()


@cache
def import_torch() -> Any:
    """Import torch; the error of a missing or too old one gives the command that installs it."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "array_type='torch' needs torch: pip install 'fastcollate[torch]', "
            "or pass array_type='numpy'"
        ) from error
    advice = "pip install --upgrade torch, or pass array_type='numpy'"
    check_version("torch", torch.__version__, LEAST_TORCH, advice)
    return torch


def check_pad(pad_token_id: Any, outputs: OutputSpec) -> int:
    """Return the padding token as an int that its output can hold."""
    advice = "tokenizer.pad_token_id, or tokenizer.eos_token_id if that is None"
    kind = "the id of the token" if isinstance(pad_token_id, str) else "an integer"
    bits = 32 if outputs.input_ids == "int32" else 64
    return check_int("pad_token_id", pad_token_id, f"{kind}, such as {advice}", bits=bits)
