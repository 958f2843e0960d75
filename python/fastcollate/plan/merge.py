"""The rule by which turns are merged into rows."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from typing import Literal, TypeAlias, get_args

from fastcollate._fastcollate import MASK_DRIFTS, MERGE_REWARDS, POLICIES, MergeSpec
from fastcollate.common.arguments import check_choice, check_count, suggests_names

Policy: TypeAlias = Literal["exact", "branch", "realign"]
"""The rule that joins turns into rows."""

MaskDrift: TypeAlias = Literal["tail", "response", "span"]
"""The tokens that realigning masks."""

MergeRewards: TypeAlias = Literal["error", "sum", "last"]
"""The reward of a merged row if each turn has one number."""


@suggests_names
@dataclass(frozen=True)
class Merge:
    """The rule that merges the turns of a trajectory into rows; ``"exact"`` is ``Merge("exact")``.

    Parameters
    ----------
    policy
        ``"exact"``: a turn continues the one before it if its prompt begins with that turn's prompt
        and response; else it starts a new row. ``"branch"``: it continues the longest matching
        earlier turn of its trajectory that has no continuation yet, so that sub-agents, retries
        and folded contexts get separate rows. ``"realign"``: as ``"exact"``, but if the prompt
        differs inside the last response, as in re-tokenised text, the prompt takes precedence, and
        the sampled tokens that it replaces are masked.
    mask_drift
        The tokens that ``"realign"`` masks: ``"tail"``, the response from the first difference;
        ``"response"``, the whole response with the difference, and those after it; ``"span"``, the
        tail except for the end of the response, if that occurs later in the prompt. Rewards and
        log-probabilities of masked tokens are dropped.
    max_drift_tokens
        Realign also if the prompt differs at most this many tokens before the end of the last
        response. A difference inside the first prompt of a row is never realigned.
    fork_threshold
        At this many tokens or more, a turn starts a new row instead of being realigned; None for no
        bound. With ``mask_drift="tail"``, tokens of the row from the first difference (TRL's rule
        and default); with ``mask_drift="response"``, tokens of the turn's own response (slime's).
    rewards
        The reward of a row of several turns if `build_batch` gets one number per turn. ``"error"``:
        the last turn's number, and an error if an earlier turn's is not 0. ``"sum"``: the sum
        over its turns, added in float64 in the order of turns. ``"last"``: the last turn's number;
        earlier ones are dropped. The reward is placed at the row's last sampled token. Per-token
        rewards are unaffected: each stays with its token.

    Raises
    ------
    ValueError, TypeError
        An option has no such value, or does not apply to the policy.
    """

    policy: Policy = "exact"
    _: KW_ONLY
    mask_drift: MaskDrift = "tail"
    max_drift_tokens: int = 0
    fork_threshold: int | None = 1024
    rewards: MergeRewards = "error"

    def __post_init__(self) -> None:
        for name, values in (
            ("policy", POLICIES),
            ("mask_drift", MASK_DRIFTS),
            ("rewards", MERGE_REWARDS),
        ):
            check_choice(name, getattr(self, name), values)
        policy, mask_drift = self.policy, self.mask_drift
        advice = "a number of tokens"
        drift = check_count("max_drift_tokens", self.max_drift_tokens, advice, least=0)
        object.__setattr__(self, "max_drift_tokens", drift)
        if self.fork_threshold is not None:
            advice = "None for no bound, or a number of tokens"
            fork = check_count("fork_threshold", self.fork_threshold, advice, least=0)
            object.__setattr__(self, "fork_threshold", fork)
        if policy != "realign" and (mask_drift != "tail" or drift != 0):
            name = "mask_drift" if mask_drift != "tail" else "max_drift_tokens"
            raise ValueError(
                f"{name} is {getattr(self, name)!r}, but policy is {policy!r}; pass "
                f"policy='realign', or leave {name} out"
            )
        if self.fork_threshold != 1024 and (policy != "realign" or mask_drift == "span"):
            raise ValueError(
                f"fork_threshold is {self.fork_threshold}, but policy is {policy!r} and mask_drift "
                f"{mask_drift!r}; pass policy='realign' with mask_drift='tail' or 'response', or "
                "leave fork_threshold out"
            )

    def __repr__(self) -> str:
        own = (field for field in fields(self) if getattr(self, field.name) != field.default)
        options = (f", {one.name}={getattr(self, one.name)!r}" for one in own if one.kw_only)
        return f"Merge({self.policy!r}{''.join(options)})"

    @property
    def spec(self) -> MergeSpec:
        """The compiled form."""
        return MergeSpec(
            self.policy, self.mask_drift, self.max_drift_tokens, self.fork_threshold, self.rewards
        )


MERGES: dict[str, Merge] = {policy: Merge(policy) for policy in get_args(Policy)}
"""Policies with their default options."""
