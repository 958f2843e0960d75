"""Rewards, advantages, log-probabilities, finish reasons and weight versions of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcollate.cli.reporting.wording import NO_REASON
from fastcollate.ops.metrics import are_logprobs
from fastcollate.rows.columns import Ragged

if TYPE_CHECKING:
    from fastcollate.cli.rows import FileRows

PARTS = 4
"""Parts of equally many rewards, by the length of responses."""

LEAST_EQUAL = 3
"""Responses of the largest length from which on it is probably a limit."""

LEAST_AT_LIMIT = 0.05
"""Share of the largest length from which on it is a part of its own."""

BARS = 48
"""Columns of a histogram."""

LOWEST_LOGPROB = -12.0
"""End of the histogram of log-probabilities, whose last column holds all below it."""

RARE = float(np.log(0.01))
"""Log-probability below which a sampled token is counted as rare."""

MOST_PROMPTS = 50
"""Prompts with equal rewards that are listed."""

UNKNOWN = ""
"""The version of tokens whose weights are unknown."""


class RowRewards(NamedTuple):
    """Rewards of trajectories, or of rows."""

    rows: NDArray[np.int64]
    """The last row of each."""
    values: NDArray[np.float64]


class Numbers:
    """The range and moments of numbers, added in parts; bad ones are counted beside them."""

    def __init__(self) -> None:
        self.number, self.bad, self.zero = 0, 0, 0
        self._sums = np.zeros(2)
        self._range = (np.inf, -np.inf)

    def add(self, values: NDArray[Any], is_good: NDArray[np.bool_]) -> NDArray[Any]:
        """Add numbers; return the good ones."""
        good = values[is_good]
        self.number += len(values)
        self.bad += len(values) - len(good)
        self.zero += int((good == 0).sum())
        self._sums += good.sum(dtype=np.float64), np.square(good, dtype=np.float64).sum()
        least, most = self._range
        self._range = (
            min(least, float(good.min(initial=np.inf))),
            max(most, float(good.max(initial=-np.inf))),
        )
        return good

    def figures(self) -> dict[str, Any]:
        """Return the counts, and the mean, deviation and range of good numbers if there are any."""
        found: dict[str, Any] = {"number": self.number, "bad": self.bad, "zero": self.zero}
        if (good := self.number - self.bad) > 0:
            mean, square = (self._sums / good).tolist()
            deviation = max(square - mean * mean, 0.0) ** 0.5
            least, most = self._range
            found |= {"mean": mean, "std": deviation, "least": least, "most": most}
        return found


class Outcomes:
    """Collects the outcomes of rows, chunk by chunk."""

    def __init__(self) -> None:
        self._lasts: list[NDArray[np.float64]] = []
        self._sums: list[NDArray[np.float64]] = []
        self._of_tokens, self._has_earlier, self._are_repeated = False, False, True
        self._lens: list[NDArray[Any]] = []
        self._turns: list[NDArray[Any]] = []
        self._groups: list[Any] = []
        self._are_guessed = False
        self._last_rows: list[int] = []
        self._reasons: Counter[str] = Counter()
        self._last_reasons: list[str] = []
        self._logprobs, self._advantages = Numbers(), Numbers()
        self._rare, self._rows_of_zeros = 0, 0
        self.logprob_bars = np.zeros(BARS, np.int64)
        self._versions: Counter[str] = Counter()
        self._mixed = 0

    def add(self, rows: FileRows) -> RowRewards | None:
        """Add rows of whole trajectories; return their rewards, if there are any."""
        values, calls = rows.values, rows.calls
        offsets = calls.responses.offsets
        trains = np.full(offsets[-1], True)
        if "loss_mask" in values:
            trains = values["loss_mask"].values != 0
        given = calls.columns.get("versions", ())
        for one, start, end in zip(given, offsets[:-1], offsets[1:], strict=False):
            self._add_versions(one, trains[start:end])
        if "logprobs" in values:
            self._add_logprobs(values["logprobs"], trains)
        if (advantages := calls._arguments("advantages").get("advantages")) is not None:
            is_ragged = isinstance(advantages, Ragged)
            numbers = np.asarray(advantages.values if is_ragged else advantages, np.float64)
            self._advantages.add(numbers, np.isfinite(numbers))
        given = calls.columns.get("finish_reasons", ())
        reasons = [NO_REASON if one is None else str(one) for one in given]
        self._reasons.update(reasons)
        if "rewards" not in values:
            return None
        self._of_tokens |= isinstance(values["rewards"], Ragged)
        return self._add_rewards(_by_row(values["rewards"]), rows, reasons)

    def _add_versions(self, given: Any, trains: NDArray[np.bool_]) -> None:
        """Add the versions of a call's trained tokens: one, one per token, or of spans."""
        spans: list[tuple[Any, Any]] = [(given, trains)]
        if isinstance(given, (list, tuple, np.ndarray)) and len(given) > 0:
            if isinstance(given[0], Mapping):
                spans = [(one.get("version"), trains[one["start"] : one["end"]]) for one in given]
            elif len(given) == len(trains):
                spans = list(zip(given, trains, strict=True))
            else:  # of parts of unknown lengths
                spans = [(given[0] if all(one == given[0] for one in given) else None, trains)]
        found = Counter[str]()
        for version, of in spans:
            name = str(version) if _is_known(version) else UNKNOWN
            found[name] += int(np.count_nonzero(of))
        self._versions += found
        self._mixed += len((+found).keys() - {UNKNOWN}) > 1

    def _add_logprobs(self, logprobs: Ragged, trains: NDArray[np.bool_]) -> None:
        values = logprobs.values[trains]
        good = self._logprobs.add(values, are_logprobs(values))
        are_zero = _by_row(Ragged(trains & (logprobs.values == 0), logprobs.offsets))
        counts = _by_row(Ragged(trains, logprobs.offsets))
        self._rows_of_zeros += int(((are_zero == counts) & (counts > 0)).sum())
        self._rare += int((good < RARE).sum())
        bars = (good * (BARS / LOWEST_LOGPROB)).clip(0, BARS - 1).astype(np.int64)
        self.logprob_bars += np.bincount(bars, minlength=BARS)

    def _add_rewards(
        self, rewards: NDArray[np.float64], rows: FileRows, reasons: list[str]
    ) -> RowRewards:
        """Add the rewards of trajectories, or of rows; return them."""
        ids, lens = rows.ids, rows.calls.responses.lengths
        of_turn = rows.trajectories
        if of_turn is None:
            of_turn = np.arange(len(lens))
        last = np.zeros(int(of_turn.max(initial=-1)) + 1, np.int64)
        last[of_turn] = np.arange(len(of_turn))
        is_earlier = last[of_turn] != np.arange(len(of_turn))
        rewards = np.where(is_earlier & np.isnan(rewards), 0.0, rewards)  # only the last has one
        self._has_earlier |= bool((rewards[is_earlier] != 0).any())
        self._are_repeated &= bool((rewards == rewards[last][of_turn]).all())
        self._lasts.append(rewards[last])
        self._sums.append(np.bincount(of_turn, rewards, len(last)).astype(np.float64, copy=False))
        self._lens.append(np.bincount(of_turn, lens, len(last)).astype(np.int64))
        self._turns.append(np.bincount(of_turn, minlength=len(last)))
        uids = ids.get("uids")
        self._are_guessed |= uids is None
        firsts = np.unique(of_turn, return_index=True)[1].tolist()
        self._groups += map(rows.prompt_key if uids is None else uids.__getitem__, firsts)
        self._last_rows += (last + rows.first_row).tolist()
        self._last_reasons += [reasons[row] for row in last.tolist()] if reasons else []
        return RowRewards(last, (self._sums if self._are_summed else self._lasts)[-1])

    @property
    def _are_summed(self) -> bool:
        """True if turns before the last have rewards of their own."""
        return self._has_earlier and not self._are_repeated

    def rewards(self) -> NDArray[np.float64]:
        """Return the reward of each trajectory, or of each row.

        That of a trajectory is its last turn's, if earlier ones are 0 or the same; else the sum.
        """
        found = self._sums if self._are_summed else self._lasts
        return np.concatenate(found) if found else np.empty(0)

    def group_means(self) -> NDArray[np.float64]:
        """Return the mean reward of each prompt with several samples."""
        rewards = self.rewards()
        return np.array([rewards[found].mean() for found in self._several().values()], np.float64)

    def _several(self) -> dict[Any, list[int]]:
        """Return the samples of each prompt that has several, all with finite rewards."""
        groups: dict[Any, list[int]] = {}
        for at, uid in enumerate(self._groups):
            if _is_id(uid):
                groups.setdefault(uid, []).append(at)
        is_finite = np.isfinite(self.rewards())
        several = {uid: of for uid, of in groups.items() if len(of) > 1}
        return {uid: of for uid, of in several.items() if is_finite[of].all()}

    def figures(self) -> dict[str, Any]:
        """Return the figures on all outcomes; None where there are none.

        Means and ranges are of finite values, and of log-probabilities above -9999; others are
        counted beside them.
        """
        more = {"rare": self._rare, "rows_of_zeros": self._rows_of_zeros}
        return {
            "rewards": self._of_rewards() if self._groups else None,
            "advantages": self._advantages.figures() if self._advantages.number else None,
            "logprobs": self._logprobs.figures() | more if self._logprobs.number else None,
            "versions": self._of_versions() if self._versions.keys() - {UNKNOWN} else None,
            "finish_reasons": self._of_reasons() if self._reasons else None,
        }

    def _of_reasons(self) -> dict[str, dict[str, Any]]:
        """Return the number of responses by finish reason, and the mean reward of those ended."""
        rewards, last = self.rewards(), np.array(self._last_reasons)
        found: dict[str, dict[str, Any]] = {}
        for reason, number in self._reasons.most_common():
            known = rewards[last == reason] if len(last) == len(rewards) else rewards[:0]
            known = known[np.isfinite(known)]
            mean = float(known.mean()) if len(known) > 0 else None
            found[reason] = {"number": number, "mean_reward": mean}
        return found

    def _of_versions(self) -> dict[str, Any]:
        """Return the tokens of each version, and their lag behind the latest if it has a number."""
        versions = Counter(self._versions)
        unknown, tokens = versions.pop(UNKNOWN, 0), versions.total()
        known = {
            "number": len(versions),
            "tokens": tokens,
            "unknown": unknown,
            "mixed": self._mixed,
            "by_version": dict(versions.most_common()),
        }
        if not all(name.isascii() and name.isdecimal() for name in versions):
            return known
        latest = max(map(int, versions))
        by_age = sorted(versions.items(), key=lambda one: -int(one[0]))
        lags = {latest - int(name): count for name, count in by_age}
        mean = sum(lag * count for lag, count in lags.items()) / max(tokens, 1)
        known["by_version"] = dict(by_age)
        return known | {"latest": latest, "lag_mean": mean, "lag_max": max(lags)}

    def _of_rewards(self) -> dict[str, Any]:
        rewards, lens = self.rewards(), np.concatenate(self._lens)
        turns = np.concatenate(self._turns)
        is_finite = np.isfinite(rewards)
        several = self._several()
        equal = {uid: of for uid, of in several.items() if _are_equal(rewards[of])}
        at = [float(rewards[of[0]]) for of in equal.values()]
        prompts = [
            {
                "uid": None if self._are_guessed else str(uid),
                "samples": len(of),
                "reward": float(rewards[of[0]]),
                "rows": [self._last_rows[one] for one in of],
            }
            for uid, of in list(equal.items())[:MOST_PROMPTS]
        ]
        rewards, lens, turns = rewards[is_finite], lens[is_finite], turns[is_finite]
        # Rows of equal lengths stay together.
        is_limit = lens == lens.max(initial=0)
        if is_limit.all() or is_limit.sum() < max(LEAST_AT_LIMIT * len(lens), LEAST_EQUAL):
            is_limit[:] = False
        others = lens[~is_limit]
        ends = np.quantile(others, np.arange(1, PARTS) / PARTS, method="lower") if len(lens) else []
        part_of = np.searchsorted(np.unique(ends), lens)
        part_of[is_limit] = PARTS
        parts = [np.flatnonzero(part_of == part) for part in range(PARTS + 1)]
        known = {}
        if len(rewards) > 0:
            known = {
                "mean": rewards.mean(),
                "median": np.median(rewards),
                "std": rewards.std(),
                "least": rewards.min(),
                "most": rewards.max(),
                **dict(zip(("p1", "p99"), usual_range(rewards), strict=True)),
            }
        return {
            "number": len(is_finite),
            "not_finite": len(is_finite) - len(rewards),
            "of_tokens": self._of_tokens,
            "are_summed": self._are_summed,
            **{name: float(value) for name, value in known.items()},
            "are_guessed": self._are_guessed,
            "most_samples": max(Counter(filter(_is_id, self._groups)).values(), default=0),
            "groups": len(several),
            "samples": [f(map(len, several.values())) for f in (min, max)] if several else None,
            "equal_groups": len(equal),
            "equal_at_least": at.count(float(known.get("least", np.nan))),
            "equal_at_most": at.count(float(known.get("most", np.nan))),
            "equal_prompts": prompts,
            "by_length": [
                {
                    "shortest": int(lens[part].min()),
                    "longest": int(lens[part].max()),
                    "number": len(part),
                    "mean": float(rewards[part].mean()),
                }
                for part in parts
                if len(part) > 0
            ],
            "by_turns": [
                {
                    "turns": number,
                    "number": int((turns == number).sum()),
                    "mean": float(rewards[turns == number].mean()),
                }
                for number in np.unique(turns).tolist()
            ],
        }


def usual_range(rewards: NDArray[np.float64]) -> tuple[float, float]:
    """Return the range of all but one in 100 rewards at either end, at least one each."""
    low = np.quantile(rewards, 0.01, method="higher")
    return float(low), float(np.quantile(rewards, 0.99, method="lower"))


def _are_equal(rewards: NDArray[np.float64]) -> bool:
    """Return True if rewards differ by rounding at most."""
    return bool(np.ptp(rewards) <= 1e-6 * np.abs(rewards).max())


def _is_id(uid: Any) -> bool:
    return uid is not None


def _is_known(version: Any) -> bool:
    """Return True for a version, which is not negative: -1 stands for unknown weights."""
    if isinstance(version, str):
        return bool(version)
    is_whole = isinstance(version, (int, np.integer)) and not isinstance(version, bool)
    return is_whole and bool(version >= 0)


def _by_row(values: Any) -> NDArray[np.float64]:
    """Return one number for each row: the sum of its tokens' values, if there are such."""
    if not isinstance(values, Ragged):
        return np.asarray(values, np.float64)
    rows = np.repeat(np.arange(len(values)), values.lengths)
    return np.bincount(rows, values.values, len(values)).astype(np.float64, copy=False)
