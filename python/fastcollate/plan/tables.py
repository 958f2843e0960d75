"""The base of plans: dataclasses of read-only arrays."""

from __future__ import annotations

import functools
from dataclasses import fields
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy import ndarray

from fastcollate.common.arguments import check_bool, check_int
from fastcollate.common.arrays import describe, read_array
from fastcollate.common.names import ListsNames

T = TypeVar("T", bound="Table")

_DTYPES = {"Integers": np.int64, "NDArray[np.bool_]": np.bool_}
"""Dtypes of arrays by their annotations."""


class Table(ListsNames):
    """A frozen dataclass of arrays and numbers. Two are equal if their values are.

    Values that a caller or a pickle passes are converted to the types of their annotations, and
    checked.
    """

    _what: ClassVar[str]
    """The kind of plan, as errors name it."""

    def __post_init__(self) -> None:
        try:
            for one in fields(self):  # type: ignore[arg-type]
                self._set(one.name, str(one.type))
        except (TypeError, ValueError, OverflowError) as error:
            raise not_valid(self._what, error) from error
        self._check()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(map(np.array_equal, self._values(), other._values()))

    def __hash__(self) -> int:
        values = (x.tobytes() if isinstance(x, np.ndarray) else x for x in self._values())
        return hash((type(self), *values))

    def __reduce__(self) -> tuple[type[Table], tuple[Any, ...]]:
        return type(self), self._values()

    @classmethod
    def _trusted(cls: type[T], **values: Any) -> T:
        """Make a table of all values without checks; arrays have their dtypes and are owned."""
        for value in values.values():
            if type(value) is ndarray:
                value.setflags(False)  # type: ignore[call-arg]  # by name, twice as slow
        table = object.__new__(cls)
        table.__dict__.update(values)
        return table

    @classmethod
    def _from_own(cls: type[T], **values: Any) -> T:
        """Make a table of all values, as `_trusted`, and check their consistency."""
        table = cls._trusted(**values)
        table._check()
        return table

    def _check(self) -> None:
        """Reject inconsistent values."""
        if (defect := self._defect()) is not None:
            raise contradiction(self._what, defect)

    def _defect(self) -> str | None:
        """Describe the first inconsistency, or return None."""
        raise NotImplementedError

    def _named(self) -> dict[str, Any]:
        return dict(zip(self._names(), self._values(), strict=True))

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._names())

    @classmethod
    @functools.cache
    def _names(cls) -> list[str]:
        """Return the names of the values."""
        return [field.name for field in fields(cls) if field.compare]  # type: ignore[arg-type]

    def _set(self, name: str, kind: str) -> None:
        """Store a value in the type of its annotation, arrays as read-only."""
        value, required = getattr(self, name), kind.removesuffix(" | None")
        if value is None and kind != required:
            return
        if (dtype := _DTYPES.get(required)) is not None:
            array = read_array(value)
            if array.size > 0 and array.dtype.kind != np.dtype(dtype).kind:
                found = f"{name} is {describe(array)}"
                raise TypeError(f"{found}; pass an array of {np.dtype(dtype).name}")
            if not _is_frozen(array) or array.dtype != dtype or not array.flags.aligned:
                array = array.astype(dtype)
                array.flags.writeable = False
            value = array
        elif required == "int":
            value = check_int(name, value, "a number", bits=32 if name == "multiple_of" else 64)
        elif required == "bool":
            check_bool(name, value)
        object.__setattr__(self, name, value)


def _is_frozen(array: np.ndarray) -> bool:
    """Return whether an array and all its bases are read-only."""
    view: Any = array
    while isinstance(view, np.ndarray):
        if view.flags.writeable:
            return False
        view = view.base
    return True  # no base, or a read-only buffer


def not_valid(what: str, reason: object) -> ValueError:
    """Return the error for an invalid plan; `reason` includes the advice."""
    return ValueError(f"this is not a valid {what}: {reason}")


def contradiction(what: str, defect: str) -> ValueError:
    """Return the error for inconsistent tables."""
    source = "that to_dict returned" if what == "step plan" else "of a plan as it was made"
    return not_valid(what, f"{defect}; pass the tables {source}")


def offsets_defect(name: str, offsets: Any, count: int, parts: str, items: str) -> str | None:
    """Describe the defect of offsets that should divide `count` items into non-empty parts."""
    if offsets.ndim != 1 or len(offsets) == 0:
        return f"{name} has shape {offsets.shape}, but must be of shape ({parts} + 1,)"
    if (offsets[0], offsets[-1]) != (0, count):
        return (
            f"{name} must start at 0 and end at {count} (the number of {items}), but go from "
            f"{offsets[0]} to {offsets[-1]}"
        )
    sizes = np.diff(offsets)
    if (sizes < 1).any():
        index = int(np.argmax(sizes < 1))
        return f"{name} must rise, but go from {offsets[index]} to {offsets[index + 1]}"
    return None


def check_step_plan(plan: Any) -> None:
    """Check that an argument is a step plan."""
    if not hasattr(plan, "inverse") or not hasattr(plan, "mini_batch_offsets"):
        raise TypeError(
            f"plan is {describe(plan)}; pass a plan of fastcollate.plan_step, or the step of a "
            "plan of fastcollate.ray.plan_step"
        )
