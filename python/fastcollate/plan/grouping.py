"""Groups of consecutive items: turns of a trajectory, rows of a prompt."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcollate import _fastcollate
from fastcollate.common.arguments import as_list, check_arrow, id_list, suggests_names
from fastcollate.common.arrays import is_tensor, pieces_of, to_numpy
from fastcollate.common.text import show_id

NO_KEY = object()
"""Key of an id that cannot be hashed."""

MAX_WITHOUT_HASH = 1_024
"""Limit of distinct unhashable ids: each is compared with all before it."""


def group_offsets(
    name: str, ids: Any, noun: str, advice: str, *, are_required: bool = True
) -> NDArray[np.int64]:
    """Return the offsets of runs of equal ids, with the end of the last; each id has one run.

    Parameters
    ----------
    name, ids
        An argument: any sequence of objects that can be compared, also without a hash.
    noun, advice
        The word for an id and the advice in error messages.
    are_required
        Refuse None and NaN, which stand for a missing id in tables.

    Returns
    -------
    array
        int64 (groups + 1,).

    Raises
    ------
    ValueError
        An id recurs after another, or is missing though required.
    TypeError
        `ids` is not a sequence, or holds incomparable ids or more than 1,024 distinct unhashable
        ones.
    """
    ids = _plain(ids)
    are_different = False
    if isinstance(ids, np.ndarray) and are_required and ids.dtype.kind == "f":
        ids = ids.tolist() if np.isnan(ids).any() else ids  # the error names the first
    if isinstance(ids, np.ndarray):
        ends = np.flatnonzero(ids[1:] != ids[:-1]) + 1
        bounds = ([0], ends, [len(ids)]) if len(ids) > 0 else ([0],)
        offsets = np.concatenate(bounds).astype(np.int64)
    else:
        ids = ids if type(ids) is list else id_list(name, ids)
        offsets, are_different = _fastcollate.group_offsets(ids, name, are_required)
    if not are_different:
        starts = offsets[:-1]
        is_array = isinstance(ids, np.ndarray)
        firsts = as_list(ids[starts] if is_array else map(ids.__getitem__, starts.tolist()))
        if (again := _first_seen_before(name, firsts)) is not None:
            raise ValueError(
                f"{noun} {show_id(firsts[again])} appears in non-contiguous positions at index "
                f"{offsets[again]}; {advice}"
            )
    return offsets


@suggests_names
def prompt_boundaries(uids: Any) -> list[tuple[int, int]]:
    """Return the boundaries of prompts in rows.

    Parameters
    ----------
    uids
        The prompt id of each row: a sequence of str, int, bytes, tuples or other comparable
        objects; a NumPy array, a tensor or an Arrow column. At most 1,024 distinct ones may be
        unhashable.

    Returns
    -------
    list[tuple[int, int]]
        The first row of each prompt, and one past its last; empty for no uids.

    Raises
    ------
    ValueError
        A uid recurs after another.
    TypeError
        `uids` is not a sequence, or holds incomparable uids or more than 1,024 distinct unhashable
        ones.

    Notes
    -----
    The behaviour matches SkyRL's ``compute_prompt_boundaries``.

    Examples
    --------
    >>> fc.planning.prompt_boundaries(["p0", "p0", "p1", "p1", "p1"])
    [(0, 2), (2, 5)]
    """
    return prompt_spans(uids)


def prompt_spans(uids: Any) -> list[tuple[int, int]]:
    """Return the first row of each prompt, and one past its last."""
    if (spans := _fastcollate.prompt_spans(uids)) is not None:  # of few, in a third of the time
        return spans
    return list(pairwise(prompt_offsets(uids, are_required=False).tolist()))


def prompt_offsets(uids: Any, *, are_required: bool = True) -> NDArray[np.int64]:
    """Return the offsets of prompts, with the end of the last: int64 (prompts + 1,)."""
    advice = "pass the rows of a prompt next to each other"
    return group_offsets("uids", uids, "uid", advice, are_required=are_required)


def group_numbers(name: str, ids: Any) -> NDArray[np.int64]:
    """Assign numbers to distinct ids, in any order, by first occurrence.

    Parameters
    ----------
    name, ids
        An argument: any sequence of objects that can be compared, also without a hash.

    Returns
    -------
    array
        The group of each id, int64 (ids,), numbered from 0.

    Raises
    ------
    TypeError
        `ids` is not a sequence, or holds incomparable ids or more than 1,024 distinct unhashable
        ones.
    """
    ids = _plain(ids)
    if isinstance(ids, np.ndarray) and ids.dtype.kind != "f":  # NaNs are distinct
        # Of runs: usually ids come in some, and sorting takes most of the time.
        starts = np.flatnonzero(np.append(len(ids) > 0, ids[1:] != ids[:-1]))
        _, firsts, groups = np.unique(ids[starts], return_index=True, return_inverse=True)
        ranks = np.empty(len(firsts), np.int64)
        ranks[np.argsort(firsts)] = np.arange(len(firsts))
        numbers, bounds = np.empty(len(ids), np.int64), np.append(starts, len(ids))
        for at in pieces_of(len(starts)):
            ends = bounds[at.start : at.stop + 1]
            numbers[ends[0] : ends[-1]] = np.repeat(ranks[groups[at]], np.diff(ends))
        return numbers
    ids = id_list(name, ids)
    if _are_plain(ids):
        by_id = {identity: number for number, identity in enumerate(dict.fromkeys(ids))}
        return np.fromiter(map(by_id.__getitem__, ids), np.int64, len(ids))
    seen = _Seen(name)
    return np.array([seen.number(one, index) for index, one in enumerate(ids)], np.int64)


def _plain(ids: Any) -> Any:
    """Return ids as an array that NumPy compares fast, if possible."""
    if type(ids) is list:
        # Equal tensors have different hashes.
        if len(ids) > 0 and is_tensor(ids[0]):
            return [i.item() if is_tensor(i) and i.dim() == 0 else i for i in ids]
        return ids
    if is_tensor(ids):
        ids = to_numpy(ids)
    elif hasattr(ids, "to_pylist") and getattr(ids, "null_count", None) == 0:
        check_arrow(ids)
        # Arrow's to_pylist takes ten times as long as the way through NumPy.
        array = np.asarray(ids)
        if array.dtype.kind in "biu" or (
            array.dtype == object and len(array) > 0 and isinstance(array[0], (str, bytes))
        ):
            ids = array
    is_fast = isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype.kind in "biufSU"
    return ids if is_fast or not isinstance(ids, np.ndarray) else ids.tolist()


def firsts_of(name: str, ids: list[Any]) -> list[Any]:
    """Return the first of each run of equal ids."""
    ids = as_list(_plain(ids))
    return list(map(ids.__getitem__, starts_of(name, ids).tolist()))


def starts_of(name: str, ids: list[Any]) -> NDArray[np.int64]:
    """Return the starts of runs of equal ids, int64 (runs,)."""
    offsets, _ = _fastcollate.group_offsets(as_list(_plain(ids)), name, False)
    return offsets[:-1]


def distinct(name: str, ids: Sequence[Any]) -> list[Any]:
    """Return the distinct ids by first occurrence."""
    seen = _Seen(name)
    return [identity for identity in ids if seen.add(identity)]


def find_repeated(name: str, ids: Sequence[Any]) -> tuple[int, int] | None:
    """Return both indices of the first repeated id, or None."""
    if (again := _first_seen_before(name, ids)) is None:
        return None
    is_same = (one is ids[again] or bool(one == ids[again]) for one in ids)
    return next(index for index, same in enumerate(is_same) if same), again


def _first_seen_before(name: str, ids: Sequence[Any]) -> int | None:
    """Return the index of the first repeated id, or None."""
    if _are_plain(ids) and len(set(ids)) == len(ids):
        return None  # a tenth of the time
    seen = _Seen(name)
    return next((index for index, identity in enumerate(ids) if not seen.add(identity)), None)


def _are_plain(ids: Sequence[Any]) -> bool:
    """Return whether ids are all plain hashable types."""
    return set(map(type, ids)) <= {str, bytes, int}


class _Seen:
    """Numbered ids seen so far. Unhashable ones are compared one by one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._hashable: dict[Hashable, int] = {}
        self._others: list[tuple[Any, int]] = []

    def add(self, identity: Any) -> bool:
        """Add an id; return False if it was known."""
        known = self._count
        return self.number(identity) == known

    def number(self, identity: Any, index: int | None = None) -> int:
        """Add an id unless known, and return its number."""
        key = _key(identity)
        if key is not NO_KEY:
            return self._hashable.setdefault(key, self._count)
        try:
            for other, number in self._others:
                if other is identity or bool(other == identity):
                    return number
        except Exception as error:  # whatever its own code raises
            found = f"{self._name} has" if index is None else f"{self._name}[{index}] is"
            raise TypeError(
                f"{found} {show_id(identity)}, which cannot be compared with other ids ({error}); "
                "pass strings, integers or tuples of them"
            ) from error
        if len(self._others) == MAX_WITHOUT_HASH:
            raise TypeError(
                f"{self._name} hold more than {MAX_WITHOUT_HASH:,} different ids without a hash, "
                f"such as {show_id(identity)} ({type(identity).__name__}), each of which would be "
                "compared with all others; pass strings, integers or tuples of them, or give the "
                "type a __hash__"
            )
        self._others.append((identity, self._count))
        return self._others[-1][1]

    @property
    def _count(self) -> int:
        return len(self._hashable) + len(self._others)


def _key(identity: Any) -> Hashable:
    """Return a lookup key, the same for equal ids, or `NO_KEY`."""
    key: Hashable = identity
    if is_tensor(identity):
        return NO_KEY
    if type(identity) is list or _is_compared_by_fields(identity):
        values = identity
        if type(identity) is not list:
            # SkyRL's TrajectoryID is such a dataclass: it has no hash, but its values have.
            names = (field.name for field in dataclasses.fields(identity) if field.compare)
            values = [getattr(identity, name) for name in names]
        try:
            keys = [_key(value) for value in values]
        except RecursionError:  # it contains itself, or is too deep
            return NO_KEY
        key = NO_KEY if NO_KEY in keys else (type(identity), *keys)
    try:
        hash(key)
    except Exception:  # whatever its own code raises
        return NO_KEY
    return key


def _is_compared_by_fields(identity: Any) -> bool:
    """Return whether this is an unhashable dataclass with a generated ``__eq__``."""
    kind = type(identity)
    if not dataclasses.is_dataclass(kind) or kind.__hash__ is not None:
        return False
    code = getattr(kind.__eq__, "__code__", None)
    return getattr(code, "co_filename", "") == "<string>"  # of generated code
