"""From ragged rollouts to training tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fastcollate._fastcollate import FieldSpec, LayoutSpec, OutputSpec, Plan, collate
from fastcollate.arguments import checked_int, checked_integer, id_list, suggests_names, warn_user
from fastcollate.batch import Batch, Recipe
from fastcollate.dtypes import DEFAULT, checked_outputs, needs_loss_mask
from fastcollate.handover.pools import PoolArgument, checked_memory
from fastcollate.ingest.fields import (
    Field,
    PerRow,
    RoutedExperts,
    Rows,
    checked_fields,
    object_outputs,
)
from fastcollate.ingest.padded_blocks import padding_message
from fastcollate.layouts import LEFT, PackArgument, Shift, Tail, checked_layout, torn_message
from fastcollate.plan.merging import (
    MergePlan,
    MergeRewards,
    Merging,
    check_merge_arguments,
    check_uids,
    checked_merge,
)
from fastcollate.plan.trajectories import checked_flags
from fastcollate.shards import check_shard, picked_names

if TYPE_CHECKING:
    from fastcollate.plan.step_plan import Shard

LOSS_MASK = FieldSpec("loss_mask", "loss_mask", plain=True, refuses_nan=True)
REWARDS = FieldSpec("rewards", "rewards", plain=True, per_row=True)
LOGPROBS = FieldSpec("logprobs", "logprobs", plain=True)


@suggests_names
def build_batch(
    prompts: Rows,
    responses: Rows,
    *,
    pad_token_id: int,
    rewards: Rows | None = None,
    loss_mask: Rows | None = None,
    logprobs: Rows | None = None,
    fields: Mapping[str, Field | PerRow | RoutedExperts] | None = None,
    uids: Sequence[Any] | None = None,
    trajectory_ids: Sequence[Any] | None = None,
    is_last_step: Sequence[bool] | None = None,
    merge: Literal["exact", "branch", "realign"] | MergePlan | None = None,
    merge_rewards: MergeRewards | None = None,
    shard: Shard | None = None,
    rows: Literal["single"] | None = None,
    position_ids: Literal["zero", "one", "repeat_last"] | bool | None = None,
    labels: Literal["aligned", "shifted"] | None = None,
    layout: Literal["left", "two_segment", "right", "jagged", "packed"] = "left",
    pack: PackArgument = None,
    shift: Shift = "none",
    tail: Tail = "extra_segment",
    pad_to: int | None = None,
    pad_to_multiple_of: int = 1,
    max_prompt_len: int | None = None,
    max_response_len: int | None = None,
    warn_above: int | None = None,
    dtypes: Literal["default", "compact"] | Mapping[str, Any] = "default",
    array_type: Literal["torch", "numpy"] = "torch",
    pool: PoolArgument = "default",
    pin_memory: bool = False,
) -> Batch:
    """Build one training batch from ragged rows.

    With ``B`` rows, ``W = max(prompt + response)``, ``P = max(prompt)`` and ``R = max(response)``,
    the layouts are ::

        "left": one left-padded block; response-aligned fields are right-aligned, so that a
        response's values stand where ``log_probs[:, -R - 1 : -1]`` has them
        input_ids       | PAD PAD  p   p   r   r  |      loss_mask  |  0   r   r  |
                        |  p   p   p   r   r   r  |                 |  r   r   r  |
                         <---------- W ---------->                   <---- R --->
        "two_segment": left-padded prompt, right-padded response
        input_ids       | PAD  p   p   r   r  PAD |      loss_mask  |  r   r   0  |
                        |  p   p   p   r   r   r  |                 |  r   r   r  |
                         <--- P --->   <--- R --->                   <---- R --->
        "right": one right-padded block
        input_ids       |  p   p   r   r  PAD PAD |      loss_mask  |  r   r   0  |
                        |  p   p   p   r   r   r  |                 |  r   r   r  |
                         <---------- W ---------->                   <---- R --->
        "jagged": rows one behind the other and nothing else, with offsets
        input_ids       |  p   p   r   r  |  p   p   p   r   r   r  |
        loss_mask       |  r   r  |  r   r   r  |
        "packed": several rows to a row of the output, as long as sequences are all fields
        input_ids       |  p   p   r   r   p   r  PAD |
        loss_mask       |  0   0   r   r   0   r   0  |
                         <------------ W ------------>

    Inputs are read where they lie and never changed; every output value is written once.

    Parameters
    ----------
    prompts, responses
        ``B`` rows of token ids each. A row is a list or tuple of numbers, an ``array.array``, or a
        1-D NumPy array or torch tensor of any integer type; kinds may be mixed. The rows stand in
        any sequence, or are those of a 2-D array or tensor, a :class:`Ragged`, a nested tensor, an
        Arrow array of lists (``pyarrow``, ``polars``, ``duckdb``, ...) or a table of one such
        column. All of a 2-D array counts as tokens: if it is padded, pass
        ``fc.ragged(x, lengths=...)``. Gradients do not flow into a batch.
    pad_token_id
        What ``input_ids`` holds on padding. Masks come from lengths, so real tokens may equal it.
    rewards
        Per response token, or one number per row, which lands on the row's last response token (of
        merged turns as `merge_rewards` says, on the last token that was sampled).
    loss_mask, logprobs
        Per response token. A loss mask may hold weights, but not NaN. The output is 0 on tokens
        that nothing predicts: the first of a row without a prompt, and of a part of a row that
        `pack` split.
    fields
        More fields by their keys: :class:`Field` per token, :class:`PerRow` and
        :class:`RoutedExperts`.
    uids, trajectory_ids, is_last_step
        One object per row, kept as ``batch.uids``, ``batch.trajectory_ids`` and
        ``batch.is_last_step``.
    merge
        Make one row of all turns of a trajectory that go on from each other: a policy of
        :func:`merge_turns` with its default options, or a plan that it made of the same turns. Then
        everything passed has one item per turn, and trajectories are known by `trajectory_ids` or
        `is_last_step`. Response-aligned fields are joined; observations, which lie between the
        responses, hold 0 (:class:`Field`: `gap_fill`) and no label. As in SkyRL, the response mask
        is 1 on them: train by the output ``loss_mask``, which is there also if the argument is
        None. What belongs to a whole row or sequence (ids, :class:`PerRow`,
        :class:`RoutedExperts`) is that of the row's last turn.
    merge_rewards
        With `merge` and one reward per turn, the reward of a row of several turns, as
        :func:`merge_turns` has it: ``"error"`` (an earlier turn's number has to be 0), ``"sum"`` or
        ``"last"``. None is what the plan says, and ``"error"`` for a policy by its name.
    shard
        Build only these rows of all: a shard of :func:`plan_step`, with its padding rows.
        Everything passed is that of the whole step, and so are the widths. Padding rows train
        nothing: their loss mask and response mask are 0, and they have no labels, no routes and no
        values of response tokens; ``batch.is_padding`` tells them.
    rows
        ``"single"`` puts all rows of the packed layout into one row of the output, without padding,
        as padding-free training has it.
    position_ids
        Add ``position_ids``, which count the tokens of each sequence from 0 on. Padding holds 0
        (``"zero"``, or True), 1 (``"one"``) or, with ``"repeat_last"``, 0 in front of a sequence
        and its last position after it, as verl's ``clip(cumsum(attention_mask) - 1, 0)``. The
        packed layout always has them, counted anew for each sequence; there padding counts on
        unless something else is said here (see `tail`).
    labels
        Add ``labels``: the ids of response tokens that train, and -100 elsewhere. ``"shifted"``:
        each position holds the label of its sequence's next token, for a loss of one's own; models
        of Hugging Face shift inside and take ``"aligned"``.
    layout
        ``"left"``, ``"two_segment"``, ``"right"``, ``"jagged"`` or ``"packed"``.
    pack
        Which rows share a row of the packed layout: a plan of :func:`pack` for the lengths of these
        rows, the options to make one, ``dict(capacity=16384, ...)``, or lists of rows. The shard
        of a step that was planned with them has bins of its own.
    shift
        Where values of response-aligned fields stand in the packed layout. ``"none"``: beside their
        tokens. ``"next_token"``: beside the token before, whose output predicts them; a sequence's
        last position holds what padding does, so that no loss crosses a boundary. Labels move too.
        The first response token of a row without a prompt has no place then, which is an error if
        it trains; nor has that of a part of a row that `pack` split.
    tail
        What the padding behind the last sequence of a packed row counts as, in ``cu_seqlens`` and
        ``position_ids``: ``"extra_segment"``, a sequence of its own; ``"extend_last"``, part of the
        last one; ``"outside"``, nothing (its positions are 0).
    pad_to
        Fix ``W``, so that all data-parallel ranks agree on it. For one block, not for two segments.
    pad_to_multiple_of
        Round ``W`` up to a multiple; of two segments, ``P`` and ``R`` each; of packed sequences,
        the place of each (by default as `pack` has rounded it).
    max_prompt_len
        Fix ``P`` of two segments.
    max_response_len
        Fix ``R``. In one block, fix ``W`` too, so that it stays the larger.
    warn_above
        Warn when the longest row exceeds it. Nothing is ever truncated.
    dtypes
        ``"default"``: int64 ids and masks, float32 fields. ``"compact"``: int32 ids and
        positions, bool masks, float32 fields, and int64 labels, which torch's losses need. Or a
        mapping from keys to dtypes, by name or NumPy's or torch's own, where they differ from the
        default: int32 for ids, positions and labels; int32 or bool for ``attention_mask`` and
        ``response_mask``; for fields float64, or bfloat16 or float16, rounded as torch rounds
        float32.
    array_type
        ``"torch"`` or ``"numpy"``.
    pool
        Where the batch's memory comes from, and goes back to when the last tensor that sees it is
        gone: a :class:`fastcollate.memory.BufferPool`, which the caller keeps, ``"default"`` for
        that of :func:`fastcollate.memory.get_default_pool`, or None for fresh memory.
    pin_memory
        Write the tensors into page-locked memory, so that ``batch.to(device, non_blocking=True)``
        returns at once. It comes from torch's own allocator, which keeps it pinned for later
        batches and does not hand it out while a copy is in flight; how many batches are alive is
        bounded by ``pool=BufferPool(pin_memory=True)``. Do not change the tensors in the meantime.
        They share one storage: pickling one of them carries all of it, and ``torch.save`` refuses
        two; pickle or save the batch. Without an accelerator, or where no more memory can be
        locked, one warning and pageable memory.

    Returns
    -------
    Batch
        ``input_ids`` and ``attention_mask``, int64 (B, W); ``response_mask``, int64 (B, R);
        ``position_ids`` and ``labels``, int64 (B, W), if asked for; and of the fields that were
        given ``loss_mask``, ``rewards`` and ``logprobs``, float32 (B, R), with zeros on padding,
        and those of ``fields``. Other dtypes by ``dtypes``.

        The jagged layout has ``input_ids``, int64 (tokens,), with the rows' ``offsets``, int64
        (B + 1,), the same as ``cu_seqlens``, int32, and ``max_seqlen``, an int; what belongs to
        tokens is (tokens, ...), and fields of responses are (response tokens, ...), with
        ``response_offsets``, int64 (B + 1,). It has no masks.

        The packed layout has N rows of B sequences: ``input_ids``, ``position_ids`` and
        ``sequence_ids`` (which row of the batch a token is of, -1 on padding), int64 (N, W);
        ``response_mask``, labels and all per-token fields (N, W, ...). ``cu_seqlens``, int32
        (segments + 1,), says where segments of attention begin if the rows of the output are laid
        end to end (with ``tail="outside"``, without their tails), ``row_cu_seqlens`` the same for
        each of them, a list of N int32 arrays, and ``max_seqlen``, an int, how long the longest is.
        If places are rounded up, these count tokens, and ``cu_seqlens_padded``,
        ``row_cu_seqlens_padded`` and ``max_seqlen_padded`` places. W is that of the fullest bin,
        unless `pad_to` fixes it. There is no ``attention_mask``: models of Hugging Face take
        batches for packed where they get none and keep no cache. :class:`PerRow` fields, names and
        ``prompt_lens`` are of the B sequences, in their order.

    Raises
    ------
    ValueError
        An empty batch; trajectories that are not known, contradict each other or are not those of
        `merge`, or have several uids; a reward of an earlier turn that would be dropped (see
        `merge_rewards`); fields of different row counts; a field row of another length than its
        response; a row longer than a fixed width; a token id beyond its dtype; NaN in a loss mask;
        one reward for an empty response; a plan of bins for other rows, or bins wider than a fixed
        width; a value that has no place (see `shift`), but for what padding holds; widths or dtypes
        that cannot be.
    TypeError
        An object that is no field, row or number, named by field, row and position.
    ImportError
        If torch tensors are asked for and torch is not installed.

    Warns
    -----
    UserWarning
        Rows of one length begin or end with several padding tokens, so that the block looks padded:
        all of it counts as tokens. The longest row exceeds ``warn_above``. Values have no place
        since `pack` split rows. Rewards lie on tokens that realigning masked.

    Notes
    -----
    The left layout is that of SkyRL's ``convert_prompts_responses_to_batch_tensors``, whose lenient
    form is :func:`fastcollate.compat.skyrl.convert_prompts_responses_to_batch_tensors`, but for the
    loss mask of a first token without a prompt, which stays as given there. Python numbers round to
    float32 as NumPy rounds them.

    Examples
    --------
    >>> import fastcollate as fc
    >>> batch = fc.build_batch(
    ...     [[1, 2], [3]], [[4], [5, 6, 7]], pad_token_id=0, rewards=[0.5, 1.0], array_type="numpy"
    ... )
    >>> batch
    Batch of 2 rows, 7 tokens, 12.5% padding
      input_ids       int64    (2, 4)
      attention_mask  int64    (2, 4)
      response_mask   int64    (2, 3)
      rewards         float32  (2, 3)
    >>> batch.rewards
    array([[0. , 0. , 0.5],
           [0. , 0. , 1. ]], dtype=float32)
    """
    check_array_type(array_type)
    if warn_above is not None:
        warn_above = checked_integer("warn_above", warn_above, "an integer or None")
    layout_spec = checked_layout(
        layout,
        pad_to,
        max_prompt_len,
        max_response_len,
        pad_to_multiple_of,
        pack,
        shift,
        tail,
        rows,
        shard,
    )
    _check_shifts(labels, shift)
    specs: list[tuple[Rows, FieldSpec]] = []
    if loss_mask is not None:
        specs.append((loss_mask, LOSS_MASK))
    if rewards is not None:
        specs.append((rewards, REWARDS))
    if logprobs is not None:
        specs.append((logprobs, LOGPROBS))
    if fields is not None:
        specs += checked_fields(fields, array_type)
    merging = checked_merge(merge, merge_rewards, trajectory_ids, is_last_step)
    names = checked_names(uids=uids, trajectory_ids=trajectory_ids, is_last_step=is_last_step)
    check_uids(merging, names.get("uids"))
    has_loss_mask = loss_mask is not None or needs_loss_mask(
        layout, merging is not None or shard is not None
    )
    outputs, specs = checked_outputs(
        dtypes, layout, position_ids, labels, specs, array_type, has_loss_mask
    )
    batch = collate_fields(
        prompts,
        responses,
        pad_token_id,
        specs,
        array_type,
        layout_spec,
        outputs,
        pool,
        names,
        merging,
        shard,
        pin_memory,
    )
    for name, column in (("prompts", prompts), ("responses", responses)):
        if (message := padding_message(name, column, batch.recipe.pad_token_id)) is not None:
            warn_user(message)
            break
    if (message := torn_message(batch.plan)) is not None:
        warn_user(message)
    if (message := masked_message(batch)) is not None:
        warn_user(message)
    if (message := excess_message(batch.plan, warn_above)) is not None:
        warn_user(message)
    return batch


def collate_fields(
    prompts: Rows,
    responses: Rows,
    pad_token_id: int,
    fields: Sequence[tuple[Any, FieldSpec]],
    array_type: str,
    layout: LayoutSpec = LEFT,
    outputs: OutputSpec = DEFAULT,
    pool: PoolArgument = "default",
    names: Mapping[str, list[Any]] | None = None,
    merging: Merging | None = None,
    shard: Shard | None = None,
    pin_memory: bool = False,
) -> Batch:
    """Build a batch of any fields."""
    pad_token_id = checked_pad(pad_token_id, outputs)
    torch = None if array_type == "numpy" else import_torch()
    making = None if merging is None else merging.making
    memory = checked_memory(pool, pin_memory, array_type)
    if shard is not None:
        check_shard(shard)
    names = names or {}
    counts = [(name, len(values)) for name, values in names.items()]
    plan, table, arrays, owner, merge, masked_rewards = collate(
        prompts,
        responses,
        making,
        shard,
        pad_token_id,
        fields,
        counts,
        layout,
        outputs,
        memory.pool,
        memory.lender,
    )
    data = dict(arrays)
    if torch is not None:
        data = {key: _as_tensor(torch, value) for key, value in arrays}
        for _, spec in fields:
            if spec.dtype == "bfloat16":
                # NumPy's array is of int16, since it has no such dtype.
                data[spec.key] = data[spec.key].view(torch.bfloat16)
    if memory.lender is not None:
        data = memory.lender.over_slab(data)
    sources = _sources(plan, merging, shard)
    if not all(spec.is_written for _, spec in fields):
        data |= object_outputs(table, fields, sources)
    if sources is not None:
        names = {name: picked_names(name, values, sources, shard) for name, values in names.items()}
    # Of routes, the values may have chosen the dtype.
    specs = [
        spec.with_dtype(table[spec.key].dtype) if spec.dtype is None else spec for _, spec in fields
    ]
    batch = Batch(
        data,
        plan,
        Recipe(pad_token_id, specs, outputs, table),
        **names,
        merge_plan=None if merging is None else merging.plan_of(merge),
        is_padding=None if shard is None else shard.is_padding.tolist(),
    )
    batch._owner = owner
    batch._masked_rewards = (
        masked_rewards if merging is None else max(masked_rewards, merging.masked_rewards)
    )
    return batch


def _as_tensor(torch: Any, value: Any) -> Any:
    """Return an output over the same memory as a tensor, or as a list of tensors."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, list):
        # Of one storage, which is one file descriptor where processes share it.
        return list(torch.from_numpy(np.concatenate(value)).split(list(map(len, value))))
    return value


def _sources(plan: Plan, merging: Merging | None, shard: Shard | None) -> list[int] | None:
    """Return which item each row has of what comes per turn, if not its own number's."""
    if merging is not None and isinstance(merging.making, Plan):
        # Rows were made before: what comes with them is theirs, not their turns'.
        return None if shard is None else shard.rows.tolist()
    return None if merging is None and shard is None else plan.sources.tolist()


def checked_names(
    *, uids: Any | None, trajectory_ids: Any | None, is_last_step: Any | None
) -> dict[str, list[Any]]:
    """Return what names rows, of what was given."""
    names: dict[str, list[Any]] = {}
    if uids is not None:
        names["uids"] = id_list("uids", uids)
    if trajectory_ids is not None:
        names["trajectory_ids"] = id_list("trajectory_ids", trajectory_ids)
    if is_last_step is not None:
        names["is_last_step"] = checked_flags("is_last_step", is_last_step).tolist()
    return names


def check_options(
    *,
    pad_token_id: int,
    position_ids: str | bool | None,
    labels: str | None,
    layout: str,
    warn_above: int | None,
    dtypes: Any,
    array_type: str,
    pool: PoolArgument,
    pin_memory: bool,
    merge: Any,
    merge_rewards: Any,
    **layout_options: Any,
) -> None:
    """Check what can be said of `build_batch`'s options before there are rows."""
    check_array_type(array_type)
    check_merge_arguments(merge, merge_rewards)
    checked_layout(layout, **layout_options)
    _check_shifts(labels, layout_options["shift"])
    checked_memory(pool, pin_memory, array_type)
    if warn_above is not None:
        checked_integer("warn_above", warn_above, "an integer or None")
    # Which keys a mapping of dtypes may have depends on the fields of the rows.
    preset = "default" if isinstance(dtypes, Mapping) else dtypes
    outputs, _ = checked_outputs(preset, layout, position_ids, labels, [], array_type)
    checked_pad(pad_token_id, outputs)


def _check_shifts(labels: Any, shift: Any) -> None:
    if labels == "shifted" and shift == "next_token":
        raise ValueError(
            "labels='shifted' with shift='next_token' would shift labels twice; "
            "pass labels='aligned', which moves with shift"
        )


def check_array_type(array_type: Any) -> None:
    """Check the argument ``array_type``."""
    if not isinstance(array_type, str) or array_type not in ("torch", "numpy"):
        raise ValueError(f"array_type is {array_type!r}; pass 'torch' or 'numpy'")


def checked_pad(pad_token_id: Any, outputs: OutputSpec) -> int:
    """Return the padding token as an int that its output can hold."""
    return checked_int(
        "pad_token_id",
        pad_token_id,
        "an integer such as tokenizer.pad_token_id, or tokenizer.eos_token_id if that is None",
        bits=32 if outputs.input_ids == "int32" else 64,
    )


def excess_message(plan: Plan, warn_above: int | None) -> str | None:
    """Say that the longest row exceeds ``warn_above``, if it does."""
    if warn_above is None or plan.longest_row <= warn_above:
        return None
    return (
        f"the longest row has {plan.longest_row} tokens, which exceeds warn_above={warn_above}; "
        "nothing is truncated: check the limits of the generation"
    )


def masked_message(batch: Batch) -> str | None:
    """Say that rewards lie on tokens that realigning masked, if any do."""
    count = batch._masked_rewards
    if count == 0:
        return None
    lie = "reward lies on a token" if count == 1 else "rewards lie on tokens"
    return (
        f"{count:,} {lie} that merging with policy='realign' masked: rewards per token are lost "
        "there, and one number per turn is added to the last sampled token of the row instead"
    )


def import_torch() -> Any:
    """Import torch, or say how to get it."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "array_type='torch' needs torch: pip install 'fastcollate[torch]', "
            "or pass array_type='numpy'"
        ) from error
    return torch
