"""Weight versions of response tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcollate.common.arguments import as_list, check_count, suggests_names, tally
from fastcollate.common.arrays import is_array, offsets_of, to_numpy
from fastcollate.common.text import show
from fastcollate.rows.column_input import ragged
from fastcollate.rows.columns import Ragged
from fastcollate.rows.lengths import Integers

PARTS = ("version", "start", "end")
_MOST = 2**31 - 1

NO_VERSION = -1
"""On tokens that were not sampled, or whose weights are unknown."""


@suggests_names
@dataclass(frozen=True, eq=False)
class WeightVersions:
    """Versions of the weights that sampled tokens, for ``fields=`` of ``build_batch``.

    Written as int32 (B, R), as other fields per response token; -1 on padding, on observations of
    merged turns, and on tokens of unknown weights. Merged rows keep each turn's versions.

    Parameters
    ----------
    rows
        One version per row; one integer per response token, or per token of the whole sequence, of
        which prompts are ignored; or for each row its spans of response tokens, in order:
        ``(version, start, end)``, or mappings with these names. Lists, arrays or Arrow. None for
        unknown rows and spans, -1 for unknown tokens. A version is an integer from 0 on or, of rows
        and spans, a string of one. If any is another string, all are numbered from 0 on, in the
        order of their first tokens.
    current
        The version that is trained, for :attr:`Batch.metrics`: ``batch/<key>_lag_mean`` and
        ``batch/<key>_lag_max`` over tokens. Later versions are errors.
    max_lag
        Tokens with an earlier version than ``current - max_lag`` leave the loss mask; they stay in
        the row as context. ``batch/<key>_stale_tokens`` counts them, and
        ``batch/<key>_stale_fraction`` is their share of the tokens with versions.
    """

    rows: Any
    current: int | None = None
    max_lag: int | None = None


class Lag(NamedTuple):
    """The version that is trained, and the largest lag behind it, if limited."""

    current: int
    max_lag: int | None

    @classmethod
    def of(cls, key: str, field: WeightVersions) -> Lag | None:
        """Return the checked options of a field; None if it has none."""
        if field.current is None:
            if field.max_lag is None:
                return None
            raise ValueError(
                f"max_lag of {key} is {show(field.max_lag)}, but current is None; pass the version "
                "that is trained as current"
            )
        current = check_count(f"current of {key}", field.current, "a version", least=0)
        if field.max_lag is None:
            return cls(current, None)
        max_lag = check_count(f"max_lag of {key}", field.max_lag, "a number of versions", least=0)
        return cls(current, max_lag)

    def stale(self, versions: NDArray[Any]) -> NDArray[np.bool_]:
        """Return True for versions that are too old."""
        if self.max_lag is None:
            return np.zeros(versions.shape, np.bool_)
        return (versions >= 0) & (versions < self.current - self.max_lag)


class Versions(NamedTuple):
    """The versions of rows: one of each row, or one of each response token."""

    values: Any
    """A number of each row, int64 (rows,), or a `Ragged` with one of each token."""
    has_names: bool = False

    @property
    def is_per_row(self) -> bool:
        """True if each row has one."""
        return not isinstance(self.values, Ragged)

    def of_tokens(self, lens: Integers) -> NDArray[Any]:
        """Return the version of each response token of rows end to end."""
        if self.is_per_row:
            return np.repeat(self.values, lens)
        values: NDArray[Any] = to_numpy(self.values.values)
        return values


def read_versions(key: str, given: Any, lens: Integers) -> Versions:
    """Return the versions of rows with responses of these lengths.

    Raises
    ------
    TypeError, ValueError
        Versions that are not integers or strings, and spans that overlap or leave the response.
    """
    if isinstance(given, (list, tuple)):
        first = next(filter(_has_items, given), None)
        if len(given) != len(lens):
            raise ValueError(
                f"{key} has {tally(len(given), 'row')}, but the batch has {len(lens)}; pass the "
                "versions of each row"
            )
        are_rows = any(one is not None and not _is_version(one) for one in given)
        if not are_rows or (first is not None and not _is_row(first)):
            found = [(f"{key}[{row}]", one) for row, one in enumerate(given)]
            return Versions(*_numbers(key, found))
        if first is None or not _is_version(first[0]):
            return _of_spans(key, given, lens)
        for row in given:
            if isinstance(row, (list, tuple)) and not {bool, np.bool_}.isdisjoint(map(type, row)):
                _check_tokens(key, given)
        pairs = zip(given, lens.tolist(), strict=True)
        given = [
            np.full(count, NO_VERSION) if row is None else to_numpy(row) for row, count in pairs
        ]
    elif is_array(given) and given.ndim == 1:
        numbers = to_numpy(given)
        if numbers.dtype.kind not in "iu":
            raise TypeError(f"{key} has versions of {numbers.dtype}; pass integers")
        if numbers.dtype == np.uint64:
            numbers = numbers.clip(max=_MOST + 1)  # too large in any case
        return Versions(numbers.astype(np.int64))
    try:
        tokens = ragged(given)
    except TypeError:
        _check_tokens(key, given)
        if not hasattr(given, "__arrow_c_stream__") and not hasattr(given, "__arrow_c_array__"):
            advice = "pass integers: one of each row, or a row of one per token"
            raise TypeError(f"{key} is {show(given)}; {advice}") from None
        return read_versions(key, as_list(given), lens)  # numbers, strings or spans in a table
    if to_numpy(tokens.values).dtype.kind not in "iu":
        _check_tokens(key, given)
        raise TypeError(f"{key} has versions of {tokens.values.dtype}; pass integers")
    return Versions(tokens)


def check_versions(key: str, versions: Versions, lag: Lag | None) -> None:
    """Refuse versions that the trained one does not have behind it."""
    numbers = versions.values if versions.is_per_row else to_numpy(versions.values.values)
    if lag is not None and versions.has_names:
        raise ValueError(
            f"{key} has versions that are not numbers, so their lag behind current={lag.current} "
            "is unknown; pass numbers, or leave current out"
        )
    wrong = (numbers < NO_VERSION) | (numbers > (_MOST if lag is None else lag.current))
    if not wrong.any():
        return
    at = int(wrong.argmax())
    place = f"{key}[{at}]"
    if not versions.is_per_row:
        row = int(np.searchsorted(versions.values.offsets, at, "right")) - 1
        place = f"{key}[{row}][{at - versions.values.offsets[row]}]"
    if lag is None or numbers[at] < NO_VERSION:
        raise ValueError(
            f"{place} is version {numbers[at]}; pass 0 to {_MOST}, or {NO_VERSION} if unknown"
        )
    raise ValueError(
        f"{place} is version {numbers[at]}, but current is {lag.current}; pass the version that is "
        "trained as current"
    )


def check_spans(name: str, spans: Any, tokens: int) -> list[tuple[Any, int, int]]:
    """Return spans of versions, ``(version, start, end)``, in a response of this many tokens.

    Raises
    ------
    ValueError
        Spans that overlap, or leave the response.
    """
    before, found = 0, list[tuple[Any, int, int]]()
    for span in spans:
        parts: Any = span if isinstance(span, (list, tuple, np.ndarray)) else ()
        if isinstance(span, Mapping):
            parts = [span.get(part) for part in PARTS]
        are_whole = all(type(one) is int or isinstance(one, np.integer) for one in parts[1:])
        if len(parts) != len(PARTS) or not are_whole:
            raise ValueError(
                f"{name} has {show(span)}; pass integers, or spans (version, start, end)"
            )
        version, start, end = parts
        if not before <= start <= end <= tokens:
            raise ValueError(
                f"{name} has the span {start} to {end}, which is not one from {before} on in a "
                f"response of {tally(tokens, 'token')}; pass spans in order, without overlap"
            )
        before = int(end)
        found.append((version, int(start), before))
    return found


def _of_spans(key: str, given: Any, lens: Integers) -> Versions:
    offsets = offsets_of(lens)
    found: list[tuple[str, Any]] = []
    places: list[tuple[int, int]] = []
    for row, spans in enumerate(given):
        begin = int(offsets[row])
        of_row = check_spans(f"{key}[{row}]", () if spans is None else spans, int(lens[row]))
        for version, start, end in of_row:
            found.append((f"{key}[{row}]", version))
            places.append((begin + start, begin + end))
    numbers, has_names = _numbers(key, found)
    dtype = np.int32 if numbers.max(initial=0) <= _MOST else np.int64
    values = np.full(int(offsets[-1]), NO_VERSION, dtype)
    for (start, end), number in zip(places, numbers.tolist(), strict=True):
        values[start:end] = number
    return Versions(Ragged(values, offsets), has_names)


def _check_tokens(key: str, given: Any) -> None:
    """Refuse the first version in lists that is not an integer."""
    for row, versions in enumerate(given if isinstance(given, (list, tuple)) else ()):
        for token, one in enumerate(versions if isinstance(versions, (list, tuple)) else ()):
            if isinstance(one, bool) or not isinstance(one, (int, np.integer)):
                raise TypeError(
                    f"{key}[{row}][{token}] is {show(one)}; pass an integer for each token, "
                    f"{NO_VERSION} if unknown, or spans (version, start, end)"
                )


def _is_version(value: Any) -> bool:
    return isinstance(value, (int, str, np.integer)) or (is_array(value) and value.ndim == 0)


def _is_row(value: Any) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, Mapping) and not _is_version(value)


def _has_items(row: Any) -> bool:
    return row is not None and not (_is_row(row) and len(row) == 0)


def _numbers(key: str, found: list[tuple[str, Any]]) -> tuple[Integers, bool]:
    """Return versions as numbers, and True if they are names."""
    for place, one in found:
        if isinstance(one, bool) or not (one is None or _is_version(one)):
            raise TypeError(f"{place} has the version {show(one)}; pass an integer or a string")
    strings = [one for _, one in found if isinstance(one, str)]
    names: dict[str, int] | None = None
    if not all(one.isascii() and one.isdecimal() for one in strings):
        known = dict.fromkeys(str(one) for _, one in found if one is not None)
        names = {name: number for number, name in enumerate(known)}
    numbers = [
        NO_VERSION if one is None else int(one) if names is None else names[str(one)]
        for _, one in found
    ]
    # Beyond 64 bits, numbers are too large in any case.
    return np.array([min(one, _MOST + 1) for one in numbers], np.int64), names is not None
