"""Trajectories of turns, by ids or last-step flags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcollate.common.arguments import id_list
from fastcollate.common.arrays import check_array, describe, is_tensor, to_numpy
from fastcollate.common.text import show
from fastcollate.plan.grouping import group_offsets


def check_flags(name: str, values: Any) -> NDArray[np.bool_]:
    """Return one flag per turn as an array of booleans."""
    if is_tensor(values):
        values = to_numpy(check_array(name, values), name)
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise TypeError(f"{name} is {describe(values)}; pass one flag per turn")
    flags = id_list(name, values)
    for turn, flag in enumerate(flags):
        if not isinstance(flag, (bool, int, np.bool_)) or flag not in (0, 1):
            raise TypeError(f"{name}[{turn}] is {show(flag)}; pass True or False")
    return np.array(flags, np.bool_)


class Trajectories(NamedTuple):
    """The turns of each trajectory, as offsets of their ends."""

    ends: list[int]
    """One past each trajectory's last turn."""
    known_by: str
    """The argument that defines them."""
    ids: list[Any] | None
    """The id of each trajectory, if there are ids."""

    def for_core(self) -> tuple[NDArray[np.int64], str]:
        """Return the arguments of the core."""
        return np.array(self.ends, np.int64), self.known_by


def parse_trajectories(
    trajectory_ids: Any | None, is_last_step: Any | None, *, allow_unfinished: bool = False
) -> Trajectories:
    """Find the trajectories, by ids, flags or both.

    Raises
    ------
    ValueError
        Neither ids nor flags are given; they contradict each other; an id recurs after another, or
        is None or NaN; or turns follow the last flagged one, unless `allow_unfinished`.
    TypeError
        An argument is not a sequence of ids or flags.
    """
    if is_last_step is None:
        if trajectory_ids is None:
            raise ValueError(
                "trajectory_ids and is_last_step are None, so the turns of a trajectory are not "
                "known; pass one of them"
            )
        ids = id_list("trajectory_ids", trajectory_ids)
        ends = _ends_of_ids(ids)
        return Trajectories(ends, "trajectory_ids", [ids[end - 1] for end in ends])
    flags = check_flags("is_last_step", is_last_step)
    ends = (np.flatnonzero(flags) + 1).tolist()
    ids = [] if trajectory_ids is None else id_list("trajectory_ids", trajectory_ids)
    if trajectory_ids is not None:
        _check_agreement(flags, ids)
    if len(flags) > 0 and not flags[-1]:
        if not allow_unfinished:
            raise ValueError(
                f"is_last_step[{len(flags) - 1}] is False, but there is no later turn; pass True, "
                "or merge_turns(allow_unfinished=True) for an unfinished last trajectory"
            )
        ends.append(len(flags))
    firsts = None if trajectory_ids is None else [ids[end - 1] for end in ends]
    return Trajectories(ends, "is_last_step", firsts)


def _ends_of_ids(ids: Sequence[Any]) -> list[int]:
    """Return the ends of runs of equal ids; each id has one run."""
    advice = "pass the turns of a trajectory next to each other"
    ends: list[int] = group_offsets("trajectory_ids", ids, "trajectory id", advice)[1:].tolist()
    return ends


def _check_agreement(flags: NDArray[np.bool_], ids: Sequence[Any]) -> None:
    if len(flags) != len(ids):
        raise ValueError(
            f"is_last_step has {len(flags)} items, but trajectory_ids has {len(ids)}; "
            "pass one of each per turn"
        )
    of_ids = np.zeros(len(ids), np.bool_)
    of_ids[np.array(_ends_of_ids(ids), np.int64) - 1] = True
    # Ids do not determine the flag of the last turn.
    contradicting = np.flatnonzero(of_ids[:-1] != flags[:-1])
    if len(contradicting) > 0:
        turn = int(contradicting[0])
        relation = "differ" if of_ids[turn] else "are the same"
        raise ValueError(
            f"is_last_step[{turn}] is {bool(flags[turn])}, but trajectory_ids[{turn}] and "
            f"[{turn + 1}] {relation} ({show(ids[turn])}, {show(ids[turn + 1])}); "
            "pass True for the last turn of each trajectory id alone"
        )
