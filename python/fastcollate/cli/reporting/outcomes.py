"""Rewards, log-probabilities, finish reasons and weight versions of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastcollate.ops.metrics import are_logprobs
from fastcollate.rows.columns import Ragged

if TYPE_CHECKING:
    from fastcollate.cli.rows import FileRows

PARTS = 4
"""Parts of equally many rewards, by the length of responses."""

BARS = 48
"""Columns of a histogram."""

LOWEST_LOGPROB = -12.0
"""End of the histogram of log-probabilities, whose last column holds all below it."""

RARE = float(np.log(0.01))
"""Log-probability below which a sampled token is counted as rare."""


class Outcomes:
    """Collects the outcomes of rows, chunk by chunk."""

    def __init__(self) -> None:
        self._rewards: list[NDArray[np.float64]] = []
        self._lens: list[NDArray[Any]] = []
        self._groups: list[Any] = []
        self._reasons: Counter[str] = Counter()
        self._last_reasons: list[str] = []
        self._logprobs = {"number": 0, "bad": 0, "zero": 0, "rare": 0, "rows_of_zeros": 0}
        self._logprob_sum, self._range = 0.0, (np.inf, -np.inf)
        self.logprob_bars = np.zeros(BARS, np.int64)
        self._versions: Counter[str] = Counter()

    def add(self, rows: FileRows) -> None:
        """Add rows of whole trajectories."""
        values, ids = rows.values, rows.ids
        given = rows.calls.columns.get("versions", ())
        for one, tokens in zip(given, rows.calls.responses.lengths.tolist(), strict=False):
            self._add_versions(one, tokens)
        if "logprobs" in values:
            self._add_logprobs(values["logprobs"])
        reasons = [str(one) for one in rows.calls.columns.get("finish_reasons", ())]
        self._reasons.update(reasons)
        if "rewards" not in values:
            return
        lens = rows.calls.responses.lengths
        last = list(range(len(lens)))
        if "trajectory_ids" in ids:
            last = list({one: row for row, one in enumerate(ids["trajectory_ids"])}.values())
        elif "is_last_step" in ids:
            last = np.flatnonzero(ids["is_last_step"]).tolist()
        self._rewards.append(_by_row(values["rewards"])[last])
        self._lens.append(lens[last])
        uids = ids.get("uids", [None] * len(lens))
        self._groups += [uids[row] for row in last]
        self._last_reasons += [reasons[row] for row in last] if reasons else []

    def _add_versions(self, given: Any, tokens: int) -> None:
        """Add the versions of a call: one, one of each of its tokens, or of spans."""
        if _is_known(given):
            self._versions[str(given)] += tokens
        for one in given if isinstance(given, (list, tuple, np.ndarray)) else ():
            if isinstance(one, Mapping):
                if one.get("version") is not None:
                    self._versions[str(one["version"])] += one["end"] - one["start"]
            elif _is_known(one):
                self._versions[str(one)] += 1

    def _add_logprobs(self, logprobs: Ragged) -> None:
        values = logprobs.values
        is_good, is_zero = are_logprobs(values), values == 0
        of_zeros = _by_row(Ragged(is_zero, logprobs.offsets)) == logprobs.lengths
        self._logprobs["number"] += len(values)
        self._logprobs["bad"] += int(len(values) - is_good.sum())
        self._logprobs["zero"] += int(is_zero.sum())
        self._logprobs["rows_of_zeros"] += int((of_zeros & (logprobs.lengths > 0)).sum())
        found = values[is_good]
        self._logprobs["rare"] += int((found < RARE).sum())
        self._logprob_sum += float(found.sum(dtype=np.float64))
        bars = (found * (BARS / LOWEST_LOGPROB)).clip(0, BARS - 1).astype(np.int64)
        self.logprob_bars += np.bincount(bars, minlength=BARS)
        least, most = self._range
        self._range = (
            min(least, float(found.min(initial=np.inf))),
            max(most, float(found.max(initial=-np.inf))),
        )

    def rewards(self) -> NDArray[np.float64]:
        """Return the reward of each trajectory's last turn, or of each row."""
        return np.concatenate(self._rewards) if self._rewards else np.empty(0)

    def group_means(self) -> NDArray[np.float64]:
        """Return the mean reward of each prompt with several samples."""
        means = np.array([np.mean(found) for found in self._several()], np.float64)
        return means[np.isfinite(means)]

    def _several(self) -> list[list[float]]:
        """Return the rewards of each prompt that has several."""
        groups: dict[Any, list[float]] = {}
        for uid, reward in zip(self._groups, self.rewards().tolist(), strict=True):
            if uid is not None:
                groups.setdefault(uid, []).append(reward)
        return [found for found in groups.values() if len(found) > 1]

    def figures(self) -> dict[str, Any]:
        """Return the figures on rewards and log-probabilities; None where there are none.

        Means and ranges are of finite values, and of log-probabilities above -9999; others are
        counted beside them.
        """
        least, most = self._range
        has_logprobs = self._logprobs["number"] > 0
        good = self._logprobs["number"] - self._logprobs["bad"]
        spread = {}
        if good > 0:
            spread = {"least": least, "most": most, "mean": self._logprob_sum / good}
        return {
            "rewards": self._of_rewards() if self._groups else None,
            "logprobs": self._logprobs | spread if has_logprobs else None,
            "versions": self._of_versions() if self._versions else None,
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
        tokens = self._versions.total()
        known = {"number": len(self._versions), "tokens": tokens, "by_version": self._versions}
        if not all(name.isascii() and name.isdecimal() for name in self._versions):
            return known
        latest = max(map(int, self._versions))
        by_age = sorted(self._versions.items(), key=lambda one: -int(one[0]))
        lags = {latest - int(name): count for name, count in by_age}
        mean = sum(lag * count for lag, count in lags.items()) / max(tokens, 1)
        known["by_version"] = dict(by_age)
        return known | {"latest": latest, "lag_mean": mean, "lag_max": max(lags)}

    def _of_rewards(self) -> dict[str, Any]:
        rewards, lens = self.rewards(), np.concatenate(self._lens)
        is_finite = np.isfinite(rewards)
        several = self._several()
        equal = [found[0] for found in several if len(set(found)) == 1]
        rewards, lens = rewards[is_finite], lens[is_finite]
        parts = np.array_split(np.argsort(lens, kind="stable"), min(PARTS, len(lens)) or 1)
        known = {}
        if len(rewards) > 0:
            known = {"mean": rewards.mean(), "least": rewards.min(), "most": rewards.max()}
        return {
            "number": len(is_finite),
            "not_finite": len(is_finite) - len(rewards),
            **{name: float(value) for name, value in known.items()},
            "groups": len(several),
            "equal_groups": len(equal),
            "equal_at_least": equal.count(float(known.get("least", np.nan))),
            "equal_at_most": equal.count(float(known.get("most", np.nan))),
            "samples": [min(map(len, several)), max(map(len, several))] if several else None,
            "by_length": [
                {
                    "shortest": int(lens[part[0]]),
                    "longest": int(lens[part[-1]]),
                    "mean": float(rewards[part].mean()),
                }
                for part in parts
                if len(part) > 0
            ],
        }


def _is_known(version: Any) -> bool:
    """Return True for an integer that is a version: -1 stands for unknown weights."""
    is_whole = isinstance(version, (int, np.integer)) and not isinstance(version, bool)
    return is_whole and bool(version >= 0)


def _by_row(values: Any) -> NDArray[np.float64]:
    """Return one number for each row: the sum of its tokens' values, if there are such."""
    if not isinstance(values, Ragged):
        return np.asarray(values, np.float64)
    rows = np.repeat(np.arange(len(values)), values.lengths)
    return np.bincount(rows, values.values, len(values)).astype(np.float64, copy=False)
