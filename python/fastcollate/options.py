"""Options of a batch that do not depend on its rows: listed, with their defaults, and checked once.

`build_batch` has their docstrings; a test compares its signature with :class:`BatchOptions`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from fastcollate.common.arguments import check_choice, warn_user
from fastcollate.memory.pools import PoolArgument, check_memory
from fastcollate.ops.collating import check_pad
from fastcollate.plan.dtypes import ARRAY_TYPES, ArrayType, Outputs
from fastcollate.plan.layout import Jagged, Layout
from fastcollate.plan.layouts import LEFT, Tree, check_layout
from fastcollate.plan.merge import Merge
from fastcollate.plan.merging import MergePlan, check_merge

if TYPE_CHECKING:
    from fastcollate.plan.dtypes import Labels, PositionIds, Preset
    from fastcollate.plan.layouts import LayoutArgument
    from fastcollate.plan.merge import Policy
    from fastcollate.plan.shard import Shard
    from fastcollate.rows.fields import AnyField, Field, Rows


class WriteOptions(TypedDict, total=False):
    """Options for writing rows."""

    position_ids: PositionIds | bool | None
    labels: Labels | None
    layout: LayoutArgument | None
    dtypes: Preset | Mapping[str, Any]
    pool: PoolArgument


class ShardOptions(WriteOptions, total=False):
    """Options for writing the rows of a shard."""

    cp: tuple[int, int] | None


class RowOptions(WriteOptions, total=False):
    """Options for merging and writing rows: all that do not depend on the rows of a batch."""

    merge: Policy | Merge | MergePlan | None


class BatchOptions(RowOptions, ShardOptions, total=False):
    """All options, including those that depend on the rows."""

    sequences: Rows | None
    prompt_lens: Any | None
    rewards: Rows | Field | None
    loss_mask: Rows | Field | None
    logprobs: Rows | Field | None
    advantages: Rows | Field | None
    fields: Mapping[str, AnyField | Rows] | None
    uids: Collection[Any] | None
    trajectory_ids: Collection[Any] | None
    is_last_step: Collection[bool] | None
    shard: Shard | None


class Options(NamedTuple):
    """The options of a batch, checked."""

    pad_token_id: int
    array_type: ArrayType
    layout: LayoutArgument | None
    """None: the layout of the shard, or left."""
    outputs: Outputs
    pool: PoolArgument
    merge: Merge | MergePlan | None

    @classmethod
    def check(
        cls,
        pad_token_id: Any,
        array_type: ArrayType = "torch",
        position_ids: Any = None,
        labels: Any = None,
        layout: Any = None,
        dtypes: Any = "default",
        pool: Any = "default",
        merge: Any = None,
    ) -> Options:
        """Check all options that do not depend on rows.

        Raises
        ------
        ValueError, TypeError
            As :func:`fastcollate.build_batch`.
        """
        check_choice("array_type", array_type, ARRAY_TYPES)
        outputs = Outputs.check(dtypes, position_ids, labels)
        pad = check_pad(pad_token_id, outputs.spec)
        is_jagged = isinstance(layout, Jagged) or (isinstance(layout, str) and layout == "jagged")
        if pad < 0 and not is_jagged:
            warn_user(
                f"pad_token_id is {pad}, which no model has an embedding for; pass "
                "tokenizer.pad_token_id, or 0: labels are -100 on padding by themselves"
            )
        return cls(
            pad,
            array_type,
            layout,
            outputs,
            pool,
            None if merge is None else check_merge(merge),
        )

    @classmethod
    def check_early(cls, **options: Any) -> Options:
        """Check the options before there are rows, as of a builder or a collator."""
        checked = cls.check(**options)
        check_memory(checked.pool, checked.array_type)
        return checked._replace(layout=checked.layout_of(None))

    def layout_of(self, planned: Layout | None) -> Layout:
        """Return the layout of a batch of all rows, or of a shard planned with a layout.

        Raises
        ------
        ValueError
            The shard was planned with another one, or labels have no place in a tree.
        """
        layout = planned or LEFT if self.layout is None else check_layout(self.layout, planned)
        is_tree = isinstance(layout, Tree) and not layout.fork_early
        if self.outputs.labels is not None and is_tree:
            raise ValueError(
                f"labels is {self.outputs.labels!r}, but a position of a tree can predict several "
                "tokens; pass fc.Tree(..., fork_early=True), or leave labels out: batch.targets "
                "has the tokens, and batch.predictors the positions"
            )
        return layout
