"""Options of `build_batch` as types, for callables that pass them on.

`build_batch` lists its parameters, with defaults and docstrings; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, get_args

if TYPE_CHECKING:
    from fastcollate.handover.pools import PoolArgument
    from fastcollate.ingest.fields import Field, PerRow, RoutedExperts, Rows
    from fastcollate.plan.layouts import LayoutArgument
    from fastcollate.plan.merging import MergePlan, MergeRewards, Policy
    from fastcollate.plan.shard import Shard

ArrayType: TypeAlias = Literal["torch", "numpy"]
PositionIds: TypeAlias = Literal["zero", "one", "repeat_last"]
Labels: TypeAlias = Literal["aligned", "shifted"]
Preset: TypeAlias = Literal["default", "compact"]
WidthsOf: TypeAlias = Literal["step", "shard"]

# `get_args` takes longer than all other checks of a small batch.
ARRAY_TYPES: tuple[str, ...] = get_args(ArrayType)
LABELS: tuple[str, ...] = get_args(Labels)


class WriteOptions(TypedDict, total=False):
    """Options for writing rows."""

    position_ids: PositionIds | bool | None
    labels: Labels | None
    layout: LayoutArgument | None
    warn_above: int | None
    dtypes: Preset | Mapping[str, Any]
    pool: PoolArgument
    pin_memory: bool


class ShardOptions(WriteOptions, total=False):
    """Options for writing the rows of a shard."""

    widths: WidthsOf
    cp: tuple[int, int] | None


class RowOptions(WriteOptions, total=False):
    """Options for merging and writing rows: all that do not depend on the rows of a batch."""

    merge: Policy | MergePlan | None
    merge_rewards: MergeRewards | None


class BatchOptions(RowOptions, ShardOptions, total=False):
    """All options, including those that depend on the rows."""

    sequences: Rows | None
    prompt_lens: Any | None
    rewards: Rows | Field | None
    loss_mask: Rows | Field | None
    logprobs: Rows | Field | None
    advantages: Rows | Field | None
    fields: Mapping[str, Field | PerRow | RoutedExperts | Rows] | None
    uids: Sequence[Any] | None
    trajectory_ids: Sequence[Any] | None
    is_last_step: Sequence[bool] | None
    shard: Shard | None
