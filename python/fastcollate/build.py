"""Build training tensors from ragged rollouts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from fastcollate._fastcollate import FieldSpec
from fastcollate.batch import Batch
from fastcollate.common.arguments import (
    id_list,
    suggests_names,
    warn_user,
)
from fastcollate.common.arrays import describe, on_host
from fastcollate.memory.pools import PoolArgument
from fastcollate.ops.collating import Request, collate
from fastcollate.ops.context_parallel import check_no_shift, check_rank
from fastcollate.options import Options
from fastcollate.plan.binned import split_message
from fastcollate.plan.dtypes import ArrayType, Labels, PositionIds, Preset
from fastcollate.plan.layout import Layout
from fastcollate.plan.layouts import LayoutArgument, Packed
from fastcollate.plan.merge import Merge, Policy
from fastcollate.plan.merging import MergePlan, RowSource, check_uids, merging_of
from fastcollate.plan.shard import Shard, check_shard
from fastcollate.plan.trajectories import check_flags
from fastcollate.rows.fields import (
    ADVANTAGES,
    LOGPROBS,
    LOSS_MASK,
    REWARDS,
    AnyField,
    Field,
    Rows,
    check_fields,
    check_mask_is_used,
    read_align,
)
from fastcollate.rows.padded_blocks import padding_message
from fastcollate.rows.plain_fields import with_fields, with_versions
from fastcollate.rows.tokens import check_continued, check_sampled, check_tokens

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from fastcollate.ops.batch_state import BatchState
    from fastcollate.options import BatchOptions
    from fastcollate.rows.versions import Lag


@overload
def build_batch(
    prompts: Rows | None = None,
    responses: Rows | None = None,
    *,
    pad_token_id: int,
    array_type: Literal["torch"] = "torch",
    **options: Unpack[BatchOptions],
) -> Batch[torch.Tensor]: ...
@overload
def build_batch(
    prompts: Rows | None = None,
    responses: Rows | None = None,
    *,
    pad_token_id: int,
    array_type: Literal["numpy"],
    **options: Unpack[BatchOptions],
) -> Batch[NDArray[Any]]: ...
@suggests_names
def build_batch(
    prompts: Rows | None = None,
    responses: Rows | None = None,
    *,
    sequences: Rows | None = None,
    prompt_lens: Any | None = None,
    pad_token_id: int,
    rewards: Rows | Field | None = None,
    loss_mask: Rows | Field | None = None,
    logprobs: Rows | Field | None = None,
    advantages: Rows | Field | None = None,
    fields: Mapping[str, AnyField | Rows] | None = None,
    uids: Collection[Any] | None = None,
    trajectory_ids: Collection[Any] | None = None,
    is_last_step: Collection[bool] | None = None,
    merge: Policy | Merge | MergePlan | None = None,
    shard: Shard | None = None,
    cp: tuple[int, int] | None = None,
    position_ids: PositionIds | bool | None = None,
    labels: Labels | None = None,
    layout: LayoutArgument | None = None,
    dtypes: Preset | Mapping[str, Any] = "default",
    array_type: ArrayType = "torch",
    pool: PoolArgument = "default",
) -> Batch[Any]:
    """Build one training batch from ragged rows.

    ``B`` is the number of rows, ``W`` the length of the longest row and ``R`` of the longest
    response. By default, rows are left-padded and response-aligned fields right-aligned::

        input_ids       | PAD PAD  p   p   r   r  |      loss_mask  |  0   r   r  |
                        |  p   p   p   r   r   r  |                 |  r   r   r  |
                         <---------- W ---------->                   <---- R --->

    Parameters
    ----------
    prompts, responses
        ``B`` rows of token ids each: lists, tuples, or 1-D arrays or tensors of any integer type,
        in a sequence, a 2-D array (every element is a token; see :func:`fastcollate.unpad`), a
        :class:`Ragged`, a nested tensor, or a column of Arrow, pandas or ``datasets``.
    sequences, prompt_lens
        Instead of both, ``B`` whole sequences and the number of prompt tokens of each. None for 0;
        with `rewards`, `logprobs` or `advantages`, which belong to sampled tokens, this is an error
        unless a `loss_mask` says what trains, and with `merge` in any case.
    pad_token_id
        The value of padding in ``input_ids``. Masks come from lengths, so real tokens may equal it.
    rewards
        One value per response token, or one per row, written to the row's last response token (with
        `merge`, to the last sampled token, as `merge` says). One per row is not NaN, and 0 for a
        row without a token.
    loss_mask, logprobs
        One value per response token. Weights in a loss mask are finite and not negative. Without a
        mask all sampled tokens train. The output ``loss_mask`` is always there, and 0 on tokens
        that no token predicts: the first of a row without a prompt, and of each part of a split
        row. ``fc.Field(rows, align="sequence")`` passes one value per prompt and response token for
        these, `rewards` and `advantages`; values of prompts do not count. Its ``dtype`` and
        ``default``, the value of rows that are None, count, too.
    advantages
        One value per response token, or one per row, written to the tokens of the row that train
        (with `merge`, one per turn, to the turn's own). All other positions hold 0. NaN is an error
        on response tokens, and as the number of a row that trains.
    fields
        More fields by key: :class:`Field`, :class:`PerRow`, :class:`RoutedExperts`,
        :class:`Captured` and :class:`WeightVersions`, or rows of values with the lengths of all
        responses or of all sequences. A key must not name an output of the batch, one that
        another layout always has (such as ``offsets``), nor an attribute of :class:`Batch` other
        than a mapping's.
    uids, trajectory_ids, is_last_step
        One object per row, kept as attributes of the batch.
    merge
        Merge the turns of a trajectory that continue each other into one row: ``"exact"``,
        ``"branch"``, ``"realign"``, :class:`fastcollate.planning.Merge` or a plan of
        :func:`merge_turns`. All arguments then have one item per turn, and `trajectory_ids` or
        `is_last_step` identify the trajectories. Observations between responses hold 0 and no
        label; the response mask is 1 on them, as in SkyRL, so train by ``loss_mask``. Values and
        ids per row come from the last turn.
    shard
        Build only the rows of this shard of :func:`plan_step`, with its padding rows, as wide as
        the step (or see :meth:`fastcollate.planning.Shard.narrow`). All other arguments are those
        of the whole step. Padding rows train nothing; ``batch.is_padding`` marks them.
    cp
        ``(cp_size, cp_rank)``: write only the chunks of one context-parallel rank, as
        :meth:`Batch.cp_split`. For the packed layout, with a `multiple_of` divisible by twice
        ``cp_size``.
    position_ids
        The output ``position_ids``, counted from 0 in each sequence, with padding of 0 (``"zero"``,
        or True), 1 (``"one"``) or, as in verl, the last position (``"repeat_last"``). None: written
        where models need them, else made on first access. False, or a field of this key or of
        ``image_grid_thw``, ``video_grid_thw`` or ``target_sizes``, leaves them out.
    labels
        The ids of response tokens that train, and -100 elsewhere: ``"aligned"``, as ``labels``,
        each at its own token, or ``"shifted"``, as ``shift_labels``, each at the token before.
    layout
        :class:`Left` (the default), :class:`Right`, :class:`TwoSegment`, :class:`Jagged`,
        :class:`Packed` or :class:`Tree`, such as ``fc.Left(pad_to=4096)``; or a name such as
        ``"two_segment"``. None is the layout that the shard's step was planned with, if any.
    dtypes
        ``"default"``: int64 ids and masks, float32 fields and ``loss_mask``. ``"compact"``: int32
        ids and bool masks instead. Or a mapping from keys to dtypes that differ from the default:
        int32 for ids, positions and labels; int32 or bool for masks; bool, int32 or int64 for
        ``loss_mask``; float64, bfloat16 or float16 for fields.
    array_type
        ``"torch"``, which has to be installed, or ``"numpy"``.
    pool
        The source of memory: ``"default"``, ``"pinned"`` (page-locked, for copies to a device), a
        :class:`fastcollate.memory.BufferPool`, or None for fresh memory.

    Returns
    -------
    Batch
        ``input_ids`` and ``attention_mask``, int64 (B, W); ``response_mask``, int64 (B, R);
        ``loss_mask``, float32 (B, R); ``position_ids`` and ``labels`` or ``shift_labels``, int64
        (B, W), if requested; ``rewards``, ``logprobs`` and ``advantages``, float32 (B, R) with
        zeros on padding, if given; and `fields`. For other shapes see the layouts.

    Raises
    ------
    ValueError, TypeError
        Anything that would train wrong tokens: rows that are missing, of other lengths or too long
        for a fixed width; weights that are negative or not finite; values that do not fit a dtype;
        rewards that merging would drop; a merge plan of other tokens; values without a place. Named
        by field, row and position.

    Warns
    -----
    UserWarning
        `pad_token_id` is negative; rows look padded (all of it counts as tokens); every response
        begins with its prompt; most log-probabilities are above 0; the loss mask is 0 throughout;
        labels cannot hold its weights; values have no place because packing split rows; rewards lie
        on tokens that realigning masked; or memory cannot be pinned.

    Notes
    -----
    The left layout equals SkyRL's ``convert_prompts_responses_to_batch_tensors``, except that
    the loss mask of a first token without a prompt is 0.

    Examples
    --------
    >>> import fastcollate as fc
    >>> batch = fc.build_batch(
    ...     [[1, 2], [3]], [[4], [5, 6, 7]], pad_token_id=0,
    ...     rewards=[0.5, 1.0], array_type="numpy",
    ... )
    >>> batch.rewards
    array([[0. , 0. , 0.5],
           [0. , 0. , 1. ]], dtype=float32)
    """
    options = Options.check(
        pad_token_id, array_type, position_ids, labels, layout, dtypes, pool, merge
    )
    if isinstance(fields, Mapping):
        check_mask_is_used(fields, loss_mask)
    # By position: keywords would take a microsecond.
    return build_rows(
        options,
        prompts,
        responses,
        sequences,
        prompt_lens,
        rewards,
        loss_mask,
        logprobs,
        advantages,
        fields,
        uids,
        trajectory_ids,
        is_last_step,
        shard,
        cp,
    )


def build_rows(
    options: Options,
    prompts: Any = None,
    responses: Any = None,
    sequences: Any = None,
    prompt_lens: Any = None,
    rewards: Any = None,
    loss_mask: Any = None,
    logprobs: Any = None,
    advantages: Any = None,
    fields: Any = None,
    uids: Any = None,
    trajectory_ids: Any = None,
    is_last_step: Any = None,
    shard: Shard | None = None,
    cp: Any = None,
    merging: RowSource | None = None,
    warns_of_weights: bool = True,
) -> Batch[Any]:
    """Build a batch of columns, with checked options.

    `merging` replaces the merge of the options, for rows that were merged before. With
    `warns_of_weights`, labels beside a loss mask of weights are a warning.
    """
    tokens = check_tokens(prompts, responses, sequences, prompt_lens)
    if sequences is not None:
        values = {"rewards": rewards, "logprobs": logprobs, "advantages": advantages}
        check_sampled("prompt_lens", prompt_lens, loss_mask, **values)
    if shard is not None:
        check_shard(shard)
    layout = options.layout_of(None if shard is None else shard.layout)
    if cp is not None:
        cp = check_cp(cp, layout)
        if cp is not None:
            check_no_shift(options.outputs.spec)
    own: list[int] | None = None
    lags: tuple[tuple[str, Lag], ...] = ()
    if fields is not None:
        own = None if shard is None or merging is not None else _own_rows(shard, options.merge)
        fields = with_fields(fields, tokens, own=own)
        if isinstance(fields, Mapping):
            fields, loss_mask, lags = with_versions(fields, loss_mask, tokens)
    specs: list[tuple[Rows, FieldSpec]] = []
    for rows, spec in (
        (loss_mask, LOSS_MASK),
        (rewards, REWARDS),
        (logprobs, LOGPROBS),
        (advantages, ADVANTAGES),
    ):  # appended, as a comprehension is a call
        if rows is not None:
            specs.append(read_align(rows, spec))
    if fields is not None:
        specs += check_fields(fields, options.array_type, own)
    if merging is None and options.merge is not None:
        check_continued("prompt_lens", tokens)
        merging = merging_of(options.merge, trajectory_ids, is_last_step, shard)
        if merging is not None and merging.plan is not None:
            merging.plan.check_mask(loss_mask)
    ids = check_ids(uids, trajectory_ids, is_last_step, shard)
    if merging is not None:
        check_uids(merging, ids.get("uids"), shard)
    outputs, specs = options.outputs.of_batch(layout.name, specs, options.array_type)
    collated = collate(
        Request(
            tokens,
            options.pad_token_id,
            specs,
            options.array_type,
            layout.spec,
            outputs,
            options.pool,
            ids,
            merging,
            shard,
            cp,
        )
    )
    if lags:
        collated = collated._replace(options=collated.spec._replace(lags=lags))
    sources = None if shard is None else collated.plan.sources.tolist()
    for name, column in zip(tokens._fields, tokens, strict=True):
        message = padding_message(name, column, options.pad_token_id, sources)
        if message is not None:
            warn_user(message)
            break
    if (message := split_message(collated.plan)) is not None:
        warn_user(message)
    if (message := masked_message(collated.masked_rewards)) is not None:
        warn_user(message)
    may_warn = warns_of_weights and loss_mask is not None and outputs.labels is not None
    if may_warn and (weight := weight_of(collated)) is not None:
        warn_user(
            f"loss_mask has weights, such as {weight:g}, but labels hold none, so a model's own "
            "loss counts all trained tokens alike; compute the loss with batch.loss_mask"
        )
    return Batch._of(collated)


def _own_rows(shard: Shard, merge: Merge | MergePlan | None) -> list[int] | None:
    """Return the turns that have the values per row of a shard; None if not known yet."""
    rows = shard.rows[shard.rows >= 0]
    if isinstance(merge, MergePlan):
        return None if rows.max(initial=-1) >= merge.num_rows else merge.sources[rows].tolist()
    return rows.tolist() if merge is None else None


def check_ids(
    uids: Any, trajectory_ids: Any, is_last_step: Any, shard: Shard | None
) -> dict[str, list[Any]]:
    """Return the given ids of rows, checked; for a shard, of which few are read, lists as given."""
    if uids is None and trajectory_ids is None and is_last_step is None:
        return {}
    ids: dict[str, list[Any]] = {}
    given = {"uids": uids, "trajectory_ids": trajectory_ids, "is_last_step": is_last_step}
    for name, values in given.items():
        if values is None:
            continue
        if shard is not None and type(values) is list:
            ids[name] = values
        elif name == "is_last_step":
            ids[name] = check_flags(name, values).tolist()
        else:
            ids[name] = id_list(name, values)
    return ids


def check_cp(cp: Any, layout: Layout) -> tuple[int, int] | None:
    """Return ``(cp_size, cp_rank)``, or None for a single rank."""
    if not isinstance(cp, (tuple, list)) or len(cp) != 2:
        raise TypeError(f"cp is {describe(cp)}; pass (cp_size, cp_rank), or None")
    size, rank = check_rank(cp[0], cp[1], " of cp", "cp=(cp_size, cp_rank)")
    if not isinstance(layout, Packed):
        raise ValueError(
            f"cp is {(size, rank)}, but the layout is {layout!r}, and context parallelism cuts "
            "packed rows; pass layout=fc.Packed(...), or leave cp out"
        )
    return (size, rank) if size > 1 else None


def weight_of(state: BatchState) -> float | None:
    """Return a weight of the loss mask that is not 0 or 1, if there is one."""
    mask = on_host(state.data[LOSS_MASK.key]).reshape(-1)
    for start in range(0, len(mask), 1 << 16):  # in the cache
        part = mask[start : start + (1 << 16)]
        is_weight = (part != 0) & (part != 1)
        if is_weight.any():
            return float(part[is_weight][0])
    return None


def masked_message(count: int) -> str | None:
    """Return a warning if rewards lie on tokens that realigning masked."""
    if count == 0:
        return None
    lie = "reward lies on a token" if count == 1 else "rewards lie on tokens"
    return (
        f"{count:,} {lie} that merging with policy='realign' masked: rewards per token are lost "
        "there, and one number per turn is added to the last sampled token of the row instead"
    )
