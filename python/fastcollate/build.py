"""Build training tensors from ragged rollouts."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from fastcollate._fastcollate import FieldSpec, Plan
from fastcollate.arguments import (
    checked_count,
    checked_int,
    checked_integer,
    id_list,
    suggests_names,
    warn_user,
)
from fastcollate.arrays import describe
from fastcollate.batch import Batch
from fastcollate.core_call import checked_pad, collate_fields
from fastcollate.dtypes import checked_outputs
from fastcollate.handover.pools import PoolArgument, checked_memory
from fastcollate.ingest.fields import (
    ADVANTAGES,
    LOGPROBS,
    LOSS_MASK,
    REWARDS,
    Field,
    PerRow,
    RoutedExperts,
    Rows,
    checked_fields,
    given_along,
)
from fastcollate.ingest.padded_blocks import padding_message
from fastcollate.ingest.plain_fields import with_fields
from fastcollate.ingest.tokens import checked_tokens
from fastcollate.option_types import (
    ARRAY_TYPES,
    ArrayType,
    Labels,
    PositionIds,
    Preset,
    RowOptions,
    WidthsOf,
)
from fastcollate.plan.layout import Layout
from fastcollate.plan.layouts import (
    LEFT,
    LayoutArgument,
    Packed,
    Tree,
    checked_layout,
    split_message,
)
from fastcollate.plan.merging import (
    MergePlan,
    MergeRewards,
    Policy,
    check_merge_arguments,
    check_uids,
    checked_merge,
)
from fastcollate.plan.shard import Shard, check_shard, check_widths
from fastcollate.plan.trajectories import checked_flags

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from fastcollate.option_types import BatchOptions


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
    fields: Mapping[str, Field | PerRow | RoutedExperts | Rows] | None = None,
    uids: Sequence[Any] | None = None,
    trajectory_ids: Sequence[Any] | None = None,
    is_last_step: Sequence[bool] | None = None,
    merge: Policy | MergePlan | None = None,
    merge_rewards: MergeRewards | None = None,
    shard: Shard | None = None,
    widths: WidthsOf = "step",
    cp: tuple[int, int] | None = None,
    position_ids: PositionIds | bool | None = None,
    labels: Labels | None = None,
    layout: LayoutArgument | None = None,
    warn_above: int | None = None,
    dtypes: Preset | Mapping[str, Any] = "default",
    array_type: ArrayType = "torch",
    pool: PoolArgument = "default",
    pin_memory: bool = False,
) -> Batch:
    """Build one training batch from ragged rows.

    ``B`` is the number of rows, ``W`` the length of the longest row and ``R`` that of the longest
    response. By default, rows are left-padded and response-aligned fields right-aligned (see
    `layout`)::

        input_ids       | PAD PAD  p   p   r   r  |      loss_mask  |  0   r   r  |
                        |  p   p   p   r   r   r  |                 |  r   r   r  |
                         <---------- W ---------->                   <---- R --->

    Inputs are read in place and never changed; every output value is written once.

    Parameters
    ----------
    prompts, responses
        ``B`` rows of token ids each. A row is a list or tuple of integers, an ``array.array``, or a
        1-D NumPy array or torch tensor of any integer type; kinds may be mixed. The rows form a
        sequence, a 2-D array or tensor, a :class:`Ragged`, a nested tensor, an Arrow array of lists
        (``pyarrow``, ``polars``, ``duckdb``, ...), a table of one such column, or a column of
        ``datasets`` or pandas. Every element of a 2-D array counts as a token: pass
        ``fc.unpad(x, lengths, side="left")`` if it is padded. Gradients do not flow into a batch.
    sequences, prompt_lens
        Alternative to prompts and responses: ``B`` rows of whole sequences, and the number of
        prompt tokens of each, as ``B`` integers (None for 0). The rest is the response.
    pad_token_id
        The value of padding in ``input_ids``. Masks come from lengths, so real tokens may equal it.
    rewards
        One value per response token, or one per row, written to the row's last response token (with
        `merge`, to the last sampled token, as `merge_rewards` says). A row without such a token has
        to have 0.
    loss_mask, logprobs
        One value per response token. A loss mask may hold weights, neither negative nor NaN; as
        int32 or int64 (see `dtypes`) whole numbers, as bool 0 and 1. None means that all sampled
        tokens train. The output ``loss_mask`` is always there, and 0 on tokens that no token
        predicts: the first of a row without a prompt, and of each part of a row split by packing.
        ``fc.Field(rows, align="sequence")`` passes one value per prompt and response token for
        these, `rewards` and `advantages`; the prompts' values do not count (but nulls of Arrow are
        an error, and negative numbers in a loss mask).
    advantages
        One value per response token, or one per row, written to the tokens of the row that train
        (with `merge`, one per turn, to the turn's own). All other positions hold 0.
    fields
        More fields by key: :class:`Field` per token, :class:`PerRow` and :class:`RoutedExperts`.
        Rows of values are a :class:`Field` if their lengths are those of all responses, or those of
        all sequences: ``{"values": [[0.5], [0.1, 0.3]]}``. A key must not be that of another
        output, or of an attribute or method of :class:`Batch` except those of every mapping (a
        field ``values`` is ``batch["values"]``). Nor may it be ``loss_mask``, ``labels`` or
        ``shift_labels``: a field does not decide which tokens train. A mask along whole sequences
        takes a key of its own:
        ``{"sequence_mask": fc.Field(masks, align="sequence", dtype="bool")}``.
    uids, trajectory_ids, is_last_step
        One object per row, kept as ``batch.uids``, ``batch.trajectory_ids`` and
        ``batch.is_last_step``. With `merge`, the last two have the plan's values if not given.
    merge
        Merge the turns of a trajectory that continue each other into one row: a policy of
        :func:`merge_turns` with its default options, or a plan that it made of the same turns. All
        arguments then have one item per turn, and `trajectory_ids` or `is_last_step` identify the
        trajectories. Response-aligned fields are joined; observations between the responses hold 0
        (:class:`Field`: `gap_fill`) and no label. As in SkyRL, the response mask is 1 on them:
        train by ``loss_mask``. Ids, :class:`PerRow` and :class:`RoutedExperts` values are those of
        the row's last turn.
    merge_rewards
        With `merge` and one reward per turn, the reward of a merged row, as in :func:`merge_turns`:
        ``"error"`` (rewards of earlier turns have to be 0), ``"sum"`` or ``"last"``. None is the
        plan's setting, and ``"error"`` for a policy.
    shard
        Build only the rows of this shard of :func:`plan_step`, with its padding rows, or of one of
        its micro-batches. All other arguments are those of the whole step. Padding rows do not
        train: their loss mask and response mask are 0, and they have no labels, routes or values of
        response tokens; ``batch.is_padding`` marks them.
    widths
        The rows that determine the widths of a shard, where the layout does not fix them.
        ``"step"``: all rows of the step, so that all ranks and micro-batches have the same widths.
        ``"shard"``: the shard's own rows or bins, where ranks need not agree (DDP and FSDP).
    cp
        Write only the chunks of one context-parallel rank: ``(cp_size, cp_rank)``. The batch is
        that of :func:`fastcollate.parallel.cp_split`, but each rank reads and writes only its part.
        For the packed layout, with a `multiple_of` divisible by twice ``cp_size``.
    position_ids
        The output ``position_ids``, counted from 0 in each sequence. None: written in packed rows
        and trees, and with `labels` in layouts that pad on the left; otherwise
        ``batch.position_ids`` is made on first access. Padding holds 0 (``"zero"``, or True), 1
        (``"one"``) or, with ``"repeat_last"``, 0 before a sequence and its last position after it,
        as verl's ``clip(cumsum(attention_mask) - 1, 0)``; by default 0, and in packed rows as
        :class:`Packed` says (`padding_as`). False leaves them out, as does None if `fields` has
        ``position_ids`` of its own or grids of images (``image_grid_thw``, ``video_grid_thw``),
        whose models count positions in three dimensions.
    labels
        The ids of response tokens that train, and -100 elsewhere. ``"aligned"``: as the output
        ``labels``, each at its own token, for models that shift labels. ``"shifted"``: as
        ``shift_labels``, each at the token before, whose output predicts it.
        :meth:`Batch.model_inputs` passes both to a model.
    layout
        The arrangement of rows in the outputs: :class:`Left`, :class:`Right`, :class:`TwoSegment`,
        :class:`Jagged`, :class:`Packed` or :class:`Tree`, with their options, such as
        ``fc.Left(pad_to=4096)``. ``"left"``, ``"right"``, ``"two_segment"``, ``"jagged"`` and
        ``"tree"`` mean the default options. None is the layout that the shard's step was planned
        with, which admits no other; otherwise ``"left"``.
    warn_above
        Warn if the longest row exceeds this number of tokens. Rows are never truncated.
    dtypes
        ``"default"``: int64 ids and masks, float32 fields. ``"compact"``: int32 ids and
        positions, bool masks, float32 fields, and int64 labels, which torch's losses need. Or a
        mapping from keys to dtypes (names, or NumPy's or torch's own) that differ from the
        default: int32 for ids, positions and labels; int32 or bool for ``attention_mask`` and
        ``response_mask``; bool, int32 or int64 for ``loss_mask``; for fields float64, or bfloat16
        or float16, rounded as torch rounds float32.
    array_type
        ``"torch"`` or ``"numpy"``.
    pool
        Source of the batch's memory, which returns to it when no tensor uses it any more: a
        :class:`fastcollate.memory.BufferPool`, ``"default"`` for
        :func:`fastcollate.memory.get_default_pool`, or None for fresh memory.
    pin_memory
        Write the tensors into page-locked memory, so that ``batch.to(device, non_blocking=True)``
        returns at once; do not change them until the copy is done. The memory comes from torch's
        allocator, which keeps it pinned and does not reuse it while a copy is in flight;
        ``pool=BufferPool(pin_memory=True)`` bounds the number of live batches. The tensors share
        one storage: pickling one of them carries all of it, and ``torch.save`` refuses two; pickle
        or save the batch. Without an accelerator, or if no more memory can be locked, a warning
        is given once and the memory is pageable.

    Returns
    -------
    Batch
        ``input_ids`` and ``attention_mask``, int64 (B, W); ``response_mask``, int64 (B, R);
        ``loss_mask``, float32 (B, R); ``position_ids`` and ``labels`` or ``shift_labels``, int64
        (B, W), if requested; ``rewards``, ``logprobs`` and ``advantages``, float32 (B, R) with
        zeros on padding, if given; and those of `fields`. Other dtypes by `dtypes`; for other
        shapes see :class:`Jagged`, :class:`Packed` and :class:`Tree`.

    Raises
    ------
    ValueError
        An empty batch; trajectories that are missing, contradict each other, have several uids or
        differ from those of `merge`; a reward of an earlier turn that would be dropped (see
        `merge_rewards`); fields of different row counts; a field row of another length than its
        response; a row longer than a fixed width; a token id beyond its dtype; NaN or a negative
        number in a loss mask, or a weight that its dtype cannot hold; one reward other than 0 for
        an empty response; a bin plan for
        other rows, or bins wider than a fixed width; a value other than that of padding that has no
        place (:class:`Packed`: `shift`); invalid dtypes; a layout other than that of the shard's
        step.
    TypeError
        An object that is no field, row or number, named by field, row and position.
    ImportError
        If torch tensors are requested and torch is not installed.

    Warns
    -----
    UserWarning
        If rows of one length begin or end with several padding tokens, as in a padded block (all of
        it counts as tokens); the longest row exceeds `warn_above`; values have no place because
        packing split rows; or rewards lie on tokens that realigning masked.

    Notes
    -----
    The left layout is that of SkyRL's ``convert_prompts_responses_to_batch_tensors``, except that
    the loss mask of a first token without a prompt is 0. The lenient form,
    :func:`fastcollate.compat.skyrl.convert_prompts_responses_to_batch_tensors`, keeps it as given.
    Python numbers round to float32 as in NumPy.

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
      loss_mask       float32  (2, 3)
      rewards         float32  (2, 3)
    >>> batch.rewards
    array([[0. , 0. , 0.5],
           [0. , 0. , 1. ]], dtype=float32)
    """
    tokens = checked_tokens(prompts, responses, sequences, prompt_lens)
    if shard is not None:
        check_shard(shard)
    check_widths(widths, shard)
    planned = None if shard is None else shard.layout
    layout = _checked_plain(array_type, warn_above, labels, layout, planned)
    if cp is not None:
        cp = checked_cp(cp, layout)
    specs: list[tuple[Rows, FieldSpec]] = []
    if loss_mask is not None:
        specs.append(given_along(loss_mask, LOSS_MASK))
    if rewards is not None:
        specs.append(given_along(rewards, REWARDS))
    if logprobs is not None:
        specs.append(given_along(logprobs, LOGPROBS))
    if advantages is not None:
        specs.append(given_along(advantages, ADVANTAGES))
    if fields is not None:
        specs += checked_fields(with_fields(fields, tokens), array_type)
    merging = checked_merge(merge, merge_rewards, trajectory_ids, is_last_step)
    names = checked_names(uids=uids, trajectory_ids=trajectory_ids, is_last_step=is_last_step)
    check_uids(merging, names.get("uids"))
    outputs, specs = checked_outputs(dtypes, layout.name, position_ids, labels, specs, array_type)
    collated = collate_fields(
        tokens,
        pad_token_id,
        specs,
        array_type,
        layout.spec,
        outputs,
        pool,
        names,
        merging,
        shard,
        widths,
        cp,
        pin_memory,
    )
    for name, column in zip(tokens._fields, tokens, strict=True):
        if (message := padding_message(name, column, collated.spec.pad_token_id)) is not None:
            warn_user(message)
            break
    if (message := split_message(collated.plan)) is not None:
        warn_user(message)
    if (message := masked_message(collated.masked_rewards)) is not None:
        warn_user(message)
    if (message := excess_message(collated.plan, warn_above)) is not None:
        warn_user(message)
    return Batch._of(collated)


ROW_OPTIONS = {
    name: parameter.default
    for name, parameter in inspect.signature(build_batch).parameters.items()
    if name in RowOptions.__optional_keys__
}
"""Options that do not depend on the rows of a batch, with their defaults."""


def checked_names(
    *, uids: Any | None, trajectory_ids: Any | None, is_last_step: Any | None
) -> dict[str, list[Any]]:
    """Return the given ids of rows, checked."""
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
    layout: Any,
    warn_above: int | None,
    dtypes: Any,
    array_type: str,
    pool: PoolArgument,
    pin_memory: bool,
    merge: Any,
    merge_rewards: Any,
) -> None:
    """Check the options of `build_batch` that do not depend on rows."""
    layout = _checked_plain(array_type, warn_above, labels, layout)
    check_merge_arguments(merge, merge_rewards)
    checked_memory(pool, pin_memory, array_type)
    # The valid keys of a mapping of dtypes depend on the fields of the rows.
    preset = "default" if isinstance(dtypes, Mapping) else dtypes
    outputs, _ = checked_outputs(preset, layout.name, position_ids, labels, [], array_type)
    checked_pad(pad_token_id, outputs)


def _checked_plain(
    array_type: Any, warn_above: Any, labels: Any, layout: Any, planned: Layout | None = None
) -> Layout:
    """Check options that depend only on each other and a shard's layout; return the layout."""
    check_array_type(array_type)
    if warn_above is not None:
        checked_integer("warn_above", warn_above, "an integer or None")
    chosen = planned or LEFT if layout is None else checked_layout(layout, planned)
    if labels is not None and isinstance(chosen, Tree):
        raise ValueError(
            f"labels is {labels!r}, but a position of a tree can predict several tokens; leave "
            "labels out: batch.targets has the tokens, and batch.predictors the positions"
        )
    return chosen


def check_array_type(array_type: Any) -> None:
    """Check the argument ``array_type``."""
    if not isinstance(array_type, str) or array_type not in ARRAY_TYPES:
        raise ValueError(f"array_type is {array_type!r}; pass 'torch' or 'numpy'")


def checked_cp(cp: Any, layout: Layout) -> tuple[int, int] | None:
    """Return ``(cp_size, cp_rank)``, or None for a single rank."""
    if not isinstance(cp, (tuple, list)) or len(cp) != 2:
        raise TypeError(f"cp is {describe(cp)}; pass (cp_size, cp_rank), or None")
    size = checked_count("cp_size of cp", cp[0], "a number of ranks")
    rank = checked_int("cp_rank of cp", cp[1], "a rank")
    if not 0 <= rank < size:
        raise ValueError(f"cp_rank of cp is {rank}; pass a rank from 0 to {size - 1}")
    if not isinstance(layout, Packed):
        raise ValueError(
            f"cp is {(size, rank)}, but the layout is {layout!r}, and context parallelism cuts "
            "packed rows; pass layout=fc.Packed(...), or leave cp out"
        )
    return (size, rank) if size > 1 else None


def excess_message(plan: Plan, warn_above: int | None) -> str | None:
    """Return a warning if the longest row exceeds ``warn_above``."""
    if warn_above is None or plan.longest_row <= operator.index(warn_above):
        return None
    return (
        f"the longest row has {plan.longest_row} tokens, which exceeds warn_above={warn_above}, "
        "and rows are not truncated; check the limits of the generation"
    )


def masked_message(count: int) -> str | None:
    """Return a warning if rewards lie on tokens that realigning masked."""
    if count == 0:
        return None
    lie = "reward lies on a token" if count == 1 else "rewards lie on tokens"
    return (
        f"{count:,} {lie} that merging with policy='realign' masked: rewards per token are lost "
        "there, and one number per turn is added to the last sampled token of the row instead"
    )
