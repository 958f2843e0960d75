"""Merging: one training row per trajectory instead of one per turn."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcollate import _fastcollate
from fastcollate._fastcollate import POLICIES, MergeSpec, Plan
from fastcollate._fastcollate import Merge as CoreMerge
from fastcollate.common.arguments import (
    check_bool,
    check_choice,
    suggests_names,
    tally,
    warn_user,
)
from fastcollate.common.arrays import describe
from fastcollate.common.caching import cached_property
from fastcollate.common.names import ListsNames
from fastcollate.common.text import show_id
from fastcollate.plan.grouping import starts_of
from fastcollate.plan.merge import MERGES, Merge, MergeRewards, Policy
from fastcollate.plan.trajectories import parse_trajectories
from fastcollate.rows.fields import LOSS_MASK, Field, Rows, read_align
from fastcollate.rows.tokens import check_continued, check_tokens

if TYPE_CHECKING:
    from fastcollate.plan.audit_report import Audit
    from fastcollate.plan.breaks import Tokenizer
    from fastcollate.plan.merge_report import MergeReport
    from fastcollate.plan.shard import Shard

logger = logging.getLogger(__name__)


LOGGED_BREAKS = 3
"""Number of breaks logged per trajectory."""


class MergePlan(ListsNames):
    """The mapping of turns to rows that :func:`merge_turns` returns.

    Holds no tokens except the few ids around breaks, so it is small, can be pickled and serves any
    number of batches of the same turns: ``build_batch(..., merge=plan)``. That call compares the
    lengths of all turns with the planned ones; tokens are assumed to be the same.

    Attributes
    ----------
    report : MergeReport
        The savings of merging, and the turns it could not join.
    trajectory_ids : list or None
        The id of every trajectory, if turns have ids. Kept by pickle, but not by ``to_dict``.
    """

    def __init__(
        self,
        merge: CoreMerge,
        trajectory_ids: Sequence[Any] | None = None,
        tokenizer: Tokenizer | None = None,
        has_mask: bool = False,
    ) -> None:
        self._merge = merge
        self._tokenizer = tokenizer
        self._has_mask = has_mask
        self.trajectory_ids = trajectory_ids

    @property
    def num_turns(self) -> int:
        """Number of turns."""
        return len(self._merge.turn_prompt_lens)

    @property
    def num_rows(self) -> int:
        """Number of rows made of the turns."""
        return self._merge.num_rows

    @property
    def num_trajectories(self) -> int:
        """Number of trajectories, dropped ones included."""
        return len(self._merge.ends)

    @property
    def sources(self) -> NDArray[np.int64]:
        """The last turn of each row, (rows,): its prompt + response are the row's tokens."""
        return self._merge.sources

    @property
    def turn_rows(self) -> NDArray[np.int64]:
        """The row of each turn, -1 if its trajectory was dropped, (turns,)."""
        return self._merge.turn_rows

    @property
    def merge_rewards(self) -> MergeRewards:
        """The rule for a row's reward if each turn has one number."""
        return self._merge.merge_rewards

    @property
    def trajectories(self) -> NDArray[np.int64]:
        """The trajectory of each row, numbered from 0, (rows,)."""
        return self._merge.trajectories

    @property
    def prompt_lens(self) -> NDArray[np.int64]:
        """Prompt tokens of each row, (rows,)."""
        return self._merge.prompt_lens

    @property
    def response_lens(self) -> NDArray[np.int64]:
        """Response tokens of each row, observations included, (rows,)."""
        return self._merge.response_lens

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return self._merge.ends

    @cached_property
    def _trajectories(self) -> NDArray[np.int64]:
        return self._merge.trajectories

    @cached_property
    def report(self) -> MergeReport:
        """The savings of merging, and the turns it could not join."""
        from fastcollate.plan.merge_report import MergeReport

        return MergeReport.of_merge(self._merge, self.trajectory_ids, self._tokenizer)

    def check_mask(self, loss_mask: Any) -> None:
        """Check that a batch has a loss mask if the plan was made with one."""
        if self._has_mask and loss_mask is None:
            raise ValueError(
                "merge is a plan that was made with a loss_mask, which it does not keep, so all "
                "sampled tokens would train; pass the same loss_mask here"
            )

    def check_trajectories(
        self, trajectory_ids: Any | None, is_last_step: Any | None, shard: Shard | None = None
    ) -> None:
        """Check that ids and flags, if given, match the plan's trajectories, all or a shard's.

        Raises
        ------
        ValueError
            They do not match.
        """
        if trajectory_ids is None and is_last_step is None:
            return
        if shard is not None and self._agrees(trajectory_ids, is_last_step, shard):
            return
        found = parse_trajectories(trajectory_ids, is_last_step, allow_unfinished=True)
        expected = self._merge.ends.tolist()
        if found.ends != expected:
            pairs = zip_longest(found.ends, expected)
            index = next(index for index, (end, other) in enumerate(pairs) if end != other)
            raise ValueError(
                f"trajectory {index} of {found.known_by} has other turns than in the plan of "
                f"merge; pass the {found.known_by} of merge_turns, or leave {found.known_by} out"
            )

    def _agrees(self, trajectory_ids: Any, is_last_step: Any, shard: Shard) -> bool:
        """Return True if plain ids and flags agree with the plan for a shard's trajectories."""
        ends, rows = self._ends, shard.rows[shard.rows >= 0]
        given = [one for one in (trajectory_ids, is_last_step) if one is not None]
        is_listed = all(type(one) is list and len(one) == ends[-1] for one in given)
        if not is_listed or (rows >= self.num_rows).any():
            return False
        for index in np.unique(self._trajectories[rows]).tolist():
            begin, end = int(ends[index - 1]) if index else 0, int(ends[index])
            if trajectory_ids is not None:
                # With the neighbours, which are of other trajectories.
                ids = trajectory_ids[max(begin - 1, 0) : end + 1]
                own = ids[begin > 0 :][: end - begin]
                if not set(map(type, ids)) <= {str, int} or ids.count(own[0]) != end - begin:
                    return False
                if len(set(own)) != 1:
                    return False
            if is_last_step is not None:
                flags = is_last_step[begin:end]
                if flags != [False] * (end - begin - 1) + [True]:
                    return False
        return True

    @suggests_names
    def audit(
        self,
        batches: Mapping[str, Any] | Iterable[Mapping[str, Any]],
        prompts: Rows | None = None,
        responses: Rows | None = None,
        *,
        sequences: Rows | None = None,
        prompt_lens: Any | None = None,
        loss_mask: Rows | Field | None = None,
    ) -> Audit:
        """Check that every sampled token of every turn is trained exactly once.

        Parameters
        ----------
        batches
            The batch of these turns, or several batches with its rows, e.g. micro-batches. For the
            ranks of a step, see :meth:`StepPlan.audit`.
        prompts, responses, sequences, prompt_lens, loss_mask
            As in :meth:`StepPlan.audit`.

        Returns
        -------
        Audit

        Raises
        ------
        ValueError, TypeError, MissingPlanError
            As in :meth:`StepPlan.audit`.
        """
        from fastcollate.inspect.auditing import audit_merge

        turns = prompts, responses, sequences, prompt_lens, loss_mask
        return audit_merge(self, batches, turns)

    def to_dict(self) -> dict[str, NDArray[np.int64]]:
        """Return the plan's tables, all int64.

        Returns
        -------
        dict
            Per turn, (turns,)
                ``turn_prompt_lens``, ``turn_response_lens``, and ``turn_rows``, -1 if the
                trajectory was dropped.
            Per row, (rows,)
                ``source`` (the last turn), ``prompt_lens``, ``response_lens``, ``trajectories``,
                and ``piece_offsets``, (rows + 1,).
            Per piece, (pieces, 5)
                ``pieces``: turn, start in that turn's response, start in the row's response, number
                of tokens, and 1 if they train.
            Per trajectory, (trajectories,)
                ``trajectory_ends``, one past its last turn.
            Per break, (breaks, 4)
                ``breaks``: turn, last turn of the group, position, and 1 if realigned.
                ``break_expected_ids`` and ``break_found_ids`` have the ids around all breaks,
                concatenated.
            The option, (1,)
                ``merge_rewards``, its index in ("error", "sum", "last").
        """
        return self._merge.to_dict()

    def __eq__(self, other: object) -> bool:
        return self._merge == other._merge if isinstance(other, MergePlan) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[MergePlan], tuple[Any, ...]]:
        return type(self), (self._merge, self.trajectory_ids, None, self._has_mask)

    def __repr__(self) -> str:
        trajectories = tally(self.num_trajectories, "trajectory", "trajectories")
        turns, rows = tally(self.num_turns, "turn"), tally(self.num_rows, "row")
        return f"MergePlan: {turns} of {trajectories} in {rows}"

    def _repr_html_(self) -> str:
        from fastcollate.inspect.markup import text_page

        return text_page(f"{self!r}\n{self.report}")


@suggests_names
def merge_turns(
    prompts: Rows | None = None,
    responses: Rows | None = None,
    *,
    sequences: Rows | None = None,
    prompt_lens: Any | None = None,
    trajectory_ids: Collection[Any] | None = None,
    is_last_step: Collection[bool] | None = None,
    policy: Policy | Merge = "exact",
    loss_mask: Rows | Field | None = None,
    drop_untrainable: bool = False,
    allow_unfinished: bool = False,
    tokenizer: Tokenizer | None = None,
) -> MergePlan:
    """Plan the merging of turns of step-wise rollouts into training rows.

    Turns form one row if each prompt begins with all tokens of the turns before it. The row's
    prompt is the first turn's; its response is the turns' responses with the observations (tokens
    added by the environment) between them. No token is copied; :func:`fastcollate.build_batch`
    writes the rows of the plan from the turns.

    Parameters
    ----------
    prompts, responses, sequences, prompt_lens
        One row of token ids per turn, in either form that ``build_batch`` takes. The turns of a
        trajectory are consecutive.
    trajectory_ids
        The trajectory id of each turn: any comparable objects, hashable or not.
    is_last_step
        True for the last turn of each trajectory. Ids or flags suffice; both must agree.
    policy
        The rule: ``"exact"``, ``"branch"`` or ``"realign"`` with its default options, or a
        :class:`fastcollate.planning.Merge`. Its rule for rewards is stored in the plan.
    loss_mask, drop_untrainable
        Drop trajectories without a token to train: whose responses are empty or, with a loss mask,
        masked entirely. Otherwise they keep their rows. The plan does not keep the mask:
        ``build_batch`` needs it again.
    allow_unfinished
        Allow the last trajectory to lack a last step.
    tokenizer
        Any object with ``decode(ids)``, for text in the report. Pickled plans do not include it.

    Returns
    -------
    MergePlan
        Rows of a trajectory are ordered by their last turns.

    Raises
    ------
    ValueError
        There are no trajectories; ids are not contiguous; flags contradict ids; turns lack a last
        step; row counts differ; or `drop_untrainable` leaves nothing.
    TypeError
        An argument or item has the wrong type.

    Notes
    -----
    The behaviour matches SkyRL's ``merge_stepwise_output`` (exact), prime-rl's
    ``interleave_rollout`` (branch, which there takes the first group that fits), slime's realigning
    of responses (``"response"``) and TRL's of tails (``"tail"``). Per-token values stay with the
    remaining sampled tokens: a reward on a token that realigning masks is lost.

    Examples
    --------
    >>> plan = fc.merge_turns(
    ...     [[1, 2], [1, 2, 3, 9]], [[3], [4, 5]], trajectory_ids=["a", "a"]
    ... )
    >>> plan
    MergePlan: 2 turns of 1 trajectory in 1 row
    >>> plan.report.metrics["generate/num_tokens_after_merge"]
    6.0
    """
    tokens = check_tokens(prompts, responses, sequences, prompt_lens)
    check_continued("prompt_lens", tokens)
    if not isinstance(policy, Merge):
        check_choice("policy", policy, POLICIES)
        policy = MERGES[policy]
    check_bool("drop_untrainable", drop_untrainable)
    check_bool("allow_unfinished", allow_unfinished)
    if tokenizer is not None and not hasattr(tokenizer, "decode"):
        raise TypeError(f"tokenizer is {describe(tokenizer)}; pass an object with decode(ids)")
    trajectories = parse_trajectories(
        trajectory_ids, is_last_step, allow_unfinished=allow_unfinished
    )
    mask = None if loss_mask is None else read_align(loss_mask, LOSS_MASK)
    merge = _fastcollate.merge_turns(
        tokens, trajectories.for_core(), policy.spec, mask, drop_untrainable
    )
    plan = MergePlan(merge, trajectories.ids, tokenizer, mask is not None)
    tell_breaks(plan)
    return plan


class RowSource(NamedTuple):
    """The source of a batch's rows, if not one turn each."""

    row_source: CoreMerge | tuple[MergeSpec, tuple[NDArray[np.int64], str]] | Plan
    """The core's source of rows: a merge, a policy and trajectories, or the plan of a batch whose
    rows are read again."""
    plan: MergePlan | None = None
    """The plan that merged the turns, if known."""
    trajectory_ids: list[Any] | None = None
    masked_rewards: int = 0
    """Number of rewards on tokens that an earlier merge masked."""

    def plan_of(self, merge: CoreMerge | None) -> MergePlan | None:
        """Return the plan of a new merge, or the existing plan if `merge` is None."""
        if merge is None:
            return self.plan
        plan = MergePlan(merge, self.trajectory_ids)
        tell_breaks(plan)
        return plan

    @property
    def ends(self) -> NDArray[np.int64] | None:
        """One past the last turn of each trajectory; None if rows are read again."""
        if isinstance(self.row_source, Plan):
            return None
        if isinstance(self.row_source, CoreMerge):
            return self.row_source.ends if self.plan is None else self.plan._ends
        return np.array(self.row_source[1][0], np.int64)

    @property
    def ids(self) -> Sequence[Any] | None:
        """The id of each trajectory, if there are ids."""
        return self.trajectory_ids if self.plan is None else self.plan.trajectory_ids

    def names_of(self, turns: Sequence[int]) -> dict[str, list[Any]]:
        """Return the ids and flags of turns that follow from their trajectories.

        Those of a turn of -1, which a padding row has, mean nothing.
        """
        if (ends := self.ends) is None:
            return {}
        given = np.array(turns, np.int64)
        trajectories = ends.searchsorted(given, "right")
        is_last = ends[trajectories] - 1 == given
        names: dict[str, list[Any]] = {"is_last_step": is_last.tolist()}
        if (ids := self.ids) is not None:
            names["trajectory_ids"] = [ids[index] for index in trajectories.tolist()]
        return names


def check_merge(merge: Any) -> Merge | MergePlan:
    """Return the argument ``merge``, with the options of a policy."""
    if isinstance(merge, (Merge, MergePlan)):
        return merge
    if isinstance(merge, str) and merge in MERGES:
        return MERGES[merge]
    raise ValueError(
        f"merge is {describe(merge)}; pass 'exact', 'branch', 'realign' or None or, for more "
        "options, fc.planning.Merge(...) or a plan of fc.merge_turns"
    )


def merging_of(
    merge: Merge | MergePlan | None, trajectory_ids: Any, is_last_step: Any, shard: Shard | None
) -> RowSource | None:
    """Return the rows that turns are merged into, with their trajectories."""
    if merge is None:
        return None
    if isinstance(merge, MergePlan):
        merge.check_trajectories(trajectory_ids, is_last_step, shard)
        return RowSource(merge._merge, merge)
    trajectories = parse_trajectories(trajectory_ids, is_last_step)
    return RowSource((merge.spec, trajectories.for_core()), None, trajectories.ids)


def check_uids(merging: RowSource | None, uids: Any | None, shard: Shard | None) -> None:
    """Check that the turns of each merged trajectory, of all or of a shard's rows, have one uid.

    Raises
    ------
    ValueError
        A trajectory has several uids.
    """
    if merging is None or uids is None or (ends := merging.ends) is None:
        return
    if len(uids) != ends.max(initial=0):
        return  # not one per turn: reported elsewhere
    if shard is not None and merging.plan is not None and type(uids) is list:
        rows = shard.rows[(shard.rows >= 0) & (shard.rows < merging.plan.num_rows)]
        of_rows = np.unique(merging.plan._trajectories[rows]).tolist()
        spans = (uids[int(ends[index - 1]) if index else 0 : ends[index]] for index in of_rows)
        if all(set(map(type, own)) <= {str, int} and len(set(own)) == 1 for own in spans):
            return
    starts = starts_of("uids", uids)
    split = np.setdiff1d(starts[1:], ends, assume_unique=True)
    if len(split) == 0:
        return
    turn = int(split[0])
    trajectory = int(np.searchsorted(ends, turn, side="right"))
    name = trajectory if merging.ids is None else show_id(merging.ids[trajectory])
    raise ValueError(
        f"uids[{turn}] is {show_id(uids[turn])}, but uids[{turn - 1}], of the same trajectory "
        f"{name}, is {show_id(uids[turn - 1])}; the turns of a trajectory are of one prompt: "
        "pass the same uid for all of them"
    )


def tell_breaks(plan: MergePlan) -> None:
    """Log the first breaks of every trajectory at level DEBUG; warn if no turn was joined."""
    if (message := _unjoined_message(plan)) is not None:
        warn_user(message)
    if not logger.isEnabledFor(logging.DEBUG):
        return
    for broken in plan.report.breaks.firsts(LOGGED_BREAKS):
        logger.debug("%s", broken)


def _unjoined_message(plan: MergePlan) -> str | None:
    """Return a warning if no turn continues another, and every prompt begins anew."""
    if not plan.num_trajectories < plan.num_turns == plan.num_rows:
        return None
    is_later = np.diff(plan.trajectories) == 0
    lens = plan.prompt_lens + plan.response_lens
    if (plan.prompt_lens[1:] >= lens[:-1])[is_later].any():
        return None
    return (
        f"merging joined none of {plan.num_turns:,} turns: every prompt is shorter than the turn "
        "before it; pass the whole conversation so far as each turn's prompt, not its new part "
        "alone, with the first turn first, or leave merge out"
    )
