"""What a batch holds: its outputs, their plan and options, and the ids of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fastcollate.common.row_columns import IDS

if TYPE_CHECKING:
    from fastcollate._fastcollate import FieldSpec, OutputSpec, OutputTable, Owner, Plan
    from fastcollate.ops.masks import ModelCall
    from fastcollate.plan.merging import MergePlan
    from fastcollate.rows.versions import Lag


class MissingPlanError(RuntimeError, AttributeError):
    """A property that needs a plan is read on a :class:`Batch` made from a mapping.

    Also an ``AttributeError``, so that ``hasattr`` returns False.
    """


def missing_plan(name: str) -> MissingPlanError:
    """Return the error for something that needs a plan."""
    return MissingPlanError(
        f"this Batch was made from a mapping and has no {name}; "
        "use the Batch that build_batch returned"
    )


class BatchSpec(NamedTuple):
    """The options of a batch, in addition to its plan, and its outputs."""

    pad_token_id: int
    fields: list[FieldSpec]
    outputs: OutputSpec
    table: OutputTable
    cp: tuple[int, int] | None = None
    """``(cp_size, cp_rank)`` of the chunks in the batch; None if it holds all."""
    forks_early: bool = False
    """True for a tree whose positions predict one token each."""
    lags: tuple[tuple[str, Lag], ...] = ()
    """Fields of weight versions whose lag is counted."""

    @property
    def captured_masks(self) -> dict[str, str]:
        """The keys of captured fields, and of the masks of what they lack."""
        keys = {index: one.key for index, one in enumerate(self.fields)}
        return {
            keys[one.field]: one.key
            for one in self.table
            if one.field is not None and one.align == "sequence" and one.key != keys[one.field]
        }


class BatchState(NamedTuple):
    """All that a :class:`fastcollate.Batch` holds; operations take it, or return another."""

    data: dict[str, Any]
    made_by: Plan | Callable[[], Plan] | None = None
    """The plan, or a cached function that makes it; None if made from a mapping."""
    options: BatchSpec | None = None
    """None if made from a mapping."""
    uids: Sequence[Any] | None = None
    trajectory_ids: Sequence[Any] | None = None
    is_last_step: Sequence[bool] | None = None
    merge_plan: MergePlan | None = None
    is_padding: Sequence[bool] | None = None
    masked_rewards: int = 0
    """Number of rewards on tokens that merging masked."""
    own_tokens_added: tuple[tuple[str, int], ...] = ()
    """By ragged field, the tokens that were added to their own values."""
    owner: Owner | None = None
    """Keeps the memory of the outputs; None for other memory than the core's."""
    transfer: dict[str, float] | None = None
    """Metrics of the copy to a device."""
    call: ModelCall | None = None
    """The call of the model with a collator's batch, whose items are its inputs."""
    has_own_labels: bool = False
    """True if the caller changed labels in place: they only lose tokens from then on."""
    truncated: tuple[int, int] | None = None
    """Number of rows that a collator truncated, and of their tokens that it cut off."""

    @property
    def known_plan(self) -> Plan | None:
        """The plan; None if made from a mapping."""
        plan = self.made_by
        return plan() if callable(plan) else plan

    @property
    def plan(self) -> Plan:
        """The plan.

        Raises
        ------
        MissingPlanError
            If the batch was made from a mapping.
        """
        if (plan := self.known_plan) is None:
            raise missing_plan("plan")
        return plan

    @property
    def spec(self) -> BatchSpec:
        """The options of a whole batch.

        Raises
        ------
        MissingPlanError
            If the batch was made from a mapping.
        ValueError
            If it holds a part of all positions.
        """
        if self.options is None:
            raise missing_plan("spec")
        self.check_whole()
        return self.options

    def check_whole(self) -> None:
        """Check that the batch holds all positions of the plan."""
        if self.options is not None and self.options.cp is not None:
            size, rank = self.options.cp
            raise ValueError(
                f"the batch holds the chunks of context-parallel rank {rank} of {size} alone; use "
                "the whole batch, built without cp and not split"
            )

    @property
    def is_real(self) -> np.ndarray:
        """True for rows that are not padding, bool (rows,)."""
        if self.is_padding is None:
            return np.ones(self.plan.num_rows, np.bool_)
        return ~np.array(self.is_padding, np.bool_)

    @property
    def ids(self) -> dict[str, Any]:
        """The ids of rows that the batch has."""
        return {name: values for name in IDS if (values := getattr(self, name)) is not None}

    def ids_of(self, rows: Iterable[int]) -> dict[str, Any]:
        """Return the ids of some rows."""
        chosen = list(rows)
        return {name: [values[row] for row in chosen] for name, values in self.ids.items()}
