"""Rewards, log-probabilities and weight versions of a report."""

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


class Outcomes:
    """Collects the outcomes of rows, chunk by chunk."""

    def __init__(self) -> None:
        self._rewards: list[NDArray[np.float64]] = []
        self._lens: list[NDArray[Any]] = []
        self._groups: list[Any] = []
        self._logprobs = {"number": 0, "bad": 0, "zero": 0, "rows_of_zeros": 0}
        self._range = (np.inf, -np.inf)
        self._versions: Counter[str] = Counter()

    def add(self, rows: FileRows) -> None:
        """Add rows of whole trajectories."""
        values, ids = rows.values, rows.ids
        given = rows.calls.columns.get("versions", ())
        for one, tokens in zip(given, rows.calls.responses.lengths.tolist(), strict=False):
            self._add_versions(one, tokens)
        if "logprobs" in values:
            self._add_logprobs(values["logprobs"])
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
        least, most = self._range
        self._range = (
            min(least, float(found.min(initial=np.inf))),
            max(most, float(found.max(initial=-np.inf))),
        )

    def rewards(self) -> NDArray[np.float64]:
        """Return the reward of each trajectory's last turn, or of each row."""
        return np.concatenate(self._rewards) if self._rewards else np.empty(0)

    def figures(self) -> dict[str, Any]:
        """Return the figures on rewards and log-probabilities; None where there are none.

        Means and ranges are of finite values, and of log-probabilities above -9999; others are
        counted beside them.
        """
        least, most = self._range
        spread = {"least": least, "most": most} if least <= most else {}
        has_logprobs = self._logprobs["number"] > 0
        return {
            "rewards": self._of_rewards() if self._groups else None,
            "logprobs": self._logprobs | spread if has_logprobs else None,
            "versions": self._of_versions() if self._versions else None,
        }

    def _of_versions(self) -> dict[str, Any]:
        """Return the tokens of each version, and their lag behind the latest if it has a number."""
        tokens = self._versions.total()
        known = {"number": len(self._versions), "tokens": tokens}
        if not all(name.isascii() and name.isdecimal() for name in self._versions):
            return known
        latest = max(map(int, self._versions))
        lags = {latest - int(name): count for name, count in self._versions.items()}
        mean = sum(lag * count for lag, count in lags.items()) / max(tokens, 1)
        return known | {"latest": latest, "lag_mean": mean, "lag_max": max(lags)}

    def _of_rewards(self) -> dict[str, Any]:
        rewards, lens = self.rewards(), np.concatenate(self._lens)
        is_finite = np.isfinite(rewards)
        groups: dict[Any, list[float]] = {}
        for uid, reward in zip(self._groups, rewards.tolist(), strict=True):
            if uid is not None:
                groups.setdefault(uid, []).append(reward)
        several = [found for found in groups.values() if len(found) > 1]
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
            "equal_groups": sum(len(set(found)) == 1 for found in several),
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
