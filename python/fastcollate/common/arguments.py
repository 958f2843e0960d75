"""Checks of arguments: their names, and values of plain types."""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import FrozenInstanceError
from itertools import islice
from numbers import Real
from typing import Any, NoReturn, TypeVar, cast

from fastcollate._fastcollate import check_range
from fastcollate.common.arrays import describe, pieces_of
from fastcollate.common.names import INSTEAD, VALUES, ListsNames, advice_for
from fastcollate.common.text import show

T = TypeVar("T", bound=Callable[..., Any])

OWN = ("self", "cls")
"""Parameters that callers do not pass."""

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


def suggests_names(target: T) -> T:
    """Decorate a function or class: the error for an unknown argument names the one to pass.

    An argument whose ``__len__`` claims more items than any memory holds is named, too. For a
    class, this covers ``__init__`` and the public methods, inherited ones included.
    """
    if not isinstance(target, type):
        return cast("T", _suggesting(target))
    bases = [base for base in target.__mro__[::-1] if base.__module__.startswith("fastcollate.")]
    methods = {name: value for base in bases for name, value in vars(base).items()}
    for name, method in methods.items():
        function = getattr(method, "__func__", method)
        is_called = name in ("__init__", "__call__") or not name.startswith("_")
        if inspect.isfunction(function) and is_called:
            call = _suggesting(function)
            call.__qualname__ = f"{target.__name__}.{name}"
            setattr(target, name, call if function is method else type(method)(call))
    if "__setattr__" in methods and hasattr(target, "__dataclass_fields__"):  # it is frozen
        target.__setattr__ = _refuse_change  # type: ignore[assignment, method-assign]
    return target


def _refuse_change(self: Any, name: str, value: Any) -> NoReturn:
    """Refuse to change an attribute of a frozen dataclass."""
    raise FrozenInstanceError(
        f"{name} of a {type(self).__name__} cannot be changed; make another one"
    )


def spells_out(names: Collection[str], source: Callable[..., Any]) -> Callable[[T], T]:
    """Decorate a function that passes ``**options`` on: its signature lists them.

    Parameters
    ----------
    names
        The names of the options.
    source
        The function that takes them, with their defaults.
    """

    def decorate(function: T) -> T:
        own = inspect.signature(function)
        parameters = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
        options = inspect.signature(source).parameters
        parameters += [options[name] for name in options if name in names]
        function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return decorate


def _suggesting(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            # If the call itself fails, no frame of the function is in the traceback.
            has_begun = error.__traceback__ is None or error.__traceback__.tb_next is not None
            if has_begun:
                raise
            message = wrong_name(call, kwargs) or _nameless(call, args)
            message = message or _missing(call, args, kwargs)
            if message is None:
                raise
        except KeyError as error:
            key = error.args[0] if error.args else None
            place = None if " " in str(key) else _without(key, call, args, kwargs)
            if place is None:
                raise
            raise KeyError(f"{place} has no {key!r}; add it, for {_callee(call)}") from error
        except MemoryError as error:
            # Python's own lists trust a length, and name nothing.
            if error.args or (claim := _false_length(call, args, kwargs)) is None:
                raise
            raise MemoryError(claim) from error
        raise TypeError(message)

    return call


def _nameless(function: Callable[..., Any], given: tuple[Any, ...]) -> str | None:
    """Return an error message for too many arguments without names; None for other calls."""
    parameters = inspect.signature(function).parameters.values()
    most = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    if len(given) <= len(most):
        return None
    callee = _callee(function)
    expected = ", ".join(name for name in most if name not in OWN) or "nothing"
    named = [one for one in parameters if one.kind is one.KEYWORD_ONLY]
    if not named:
        return f"{callee} takes {expected}; {INSTEAD.get(callee, 'pass no more arguments')}"
    needed = next((one for one in named if one.default is one.empty), named[0])
    advice = INSTEAD.get(f"{callee}()", f"pass others by name: {needed.name}=...")
    return f"{callee} takes {expected} without a name; {advice}"


def _missing(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """Return an error message for arguments that are missing; None if there are none."""
    parameters = list(inspect.signature(function).parameters.values())
    needed = [one.name for one in parameters if one.default is one.empty and one.name not in OWN]
    positional = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    missing = [name for name in needed if name not in (*positional[: len(args)], *kwargs)]
    if positional[:1] == ["self"] and not args:
        return f"{_callee(function)} is called on the class; make an object of it first"
    if not missing or any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters):
        return None
    callee = _callee(function)
    found = (f"{name}={VALUES[name]}" if name in VALUES else name for name in needed)
    advice = INSTEAD.get(callee, f"pass {', '.join(found)}")
    if args and isinstance(args[0], list) and all(isinstance(one, Mapping) for one in args[0]):
        advice += "; a fastcollate.Collator takes samples"
    return f"{callee} is called without {' and '.join(missing)}; {advice}"


def _callee(function: Callable[..., Any]) -> str:
    """Return the name of a function, or the class that its ``__init__`` or ``__call__`` is of."""
    return function.__qualname__.removesuffix(".__init__").removesuffix(".__call__")


def wrong_name(function: Callable[..., Any], given: Iterable[str]) -> str | None:
    """Return an error message for the first unknown argument; None if there is none."""
    known, takes_any = _parameters(function)
    unknown = next((name for name in given if name not in known), None)
    if unknown is None or takes_any:
        return None
    callee = _callee(function)
    if (advice := advice_for(unknown, known)) is None:
        advice = f"pass some of {', '.join(known)}" if known else "it takes none"
        advice = INSTEAD.get(callee, advice)
    return f"{callee} has no argument {unknown!r}; {advice}"


def _named(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call by their names."""
    return {**dict(zip(inspect.signature(function).parameters, args, strict=False)), **kwargs}


def _false_length(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """Return an error message for the first argument with too many items; None if there is none."""
    named = _named(function, args, kwargs)
    return next(filter(None, map(_claim_of, named, named.values())), None)


def _without(
    key: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """Return the place of the first mapping that lacks a key; None if all have it."""
    for name, value in _named(function, args, kwargs).items():
        items = value if isinstance(value, (list, tuple)) else [value]
        for index, item in enumerate(items):
            if isinstance(item, Mapping) and key not in item.keys():  # noqa: SIM118
                return name if item is value else f"{name}[{index}]"
    return None


def _claim_of(name: str, value: Any, depth: int = 5) -> str | None:
    """Return an error message for a value, or an item of it, with too many items."""
    with suppress(Exception):  # its own code may raise anything
        own = getattr(value, "__dict__", {})
        value = own.get("rows", own.get("values", value))  # of a field
        count = max(len(value), operator.length_hint(iter(value)))
        if count > MOST_ITEMS:
            kind = type(value).__name__
            return f"{name} is a {kind} that claims {count:,} items; pass one of its true length"
    if depth == 0 or type(value) not in (list, tuple, dict):
        return None
    items = value.items() if type(value) is dict else enumerate(value)
    found = (_claim_of(f"{name}[{key!r}]", item, depth - 1) for key, item in islice(items, 1000))
    return next(filter(None, found), None)


MOST_ITEMS = 1 << 40
"""More items than any memory holds."""


@functools.cache
def _parameters(function: Callable[..., Any]) -> tuple[list[str], bool]:
    """Return the names of a function's parameters; True if it takes others, too."""
    parameters = inspect.signature(function).parameters.values()
    known = [one.name for one in parameters if one.name not in OWN]
    return known, any(one.kind is one.VAR_KEYWORD for one in parameters)


def warn_user(message: str) -> None:
    """Warn at the line that called this package."""
    depth = 1
    while sys._getframe(depth).f_code.co_filename.startswith(_PACKAGE):
        depth += 1
    warnings.warn(message, stacklevel=depth + 1)


def check_index(name: str, value: Any, count: int) -> int:
    """Return an argument as an index below `count`."""
    index = check_integer(name, value, "an index")
    if not 0 <= index < count:
        if count == 1:
            raise IndexError(f"{name} is {show(index)}, but there is only one; pass 0")
        raise IndexError(
            f"{name} is {show(index)}, but there are {count}; pass an index from 0 to {count - 1}"
        )
    return index


def check_integer(name: str, value: Any, advice: str) -> int:
    """Return an argument as an int. Booleans are refused."""
    if isinstance(value, bool) or str(getattr(value, "dtype", "")) == "torch.bool":
        raise TypeError(f"{name} is {describe(value)}; pass {advice}")
    try:
        return operator.index(value)
    except TypeError as error:
        if isinstance(value, float) and value.is_integer() and advice != "an integer":
            raise TypeError(f"{name} is {value}, a float; pass int({value})") from error
        raise TypeError(f"{name} is {show(value)}; pass {advice}") from error


def check_int(name: str, value: Any, advice: str, *, bits: int = 64) -> int:
    """Return an argument as an int that fits the given number of bits."""
    integer: int = value if type(value) is int else check_integer(name, value, advice)
    limit = 1 << (bits - 1)
    if not -limit <= integer < limit:
        raise ValueError(
            f"{name} is {show(integer)}, which does not fit int{bits}; "
            f"pass a number of less than {bits} bits"
        )
    return integer


def check_number(name: str, value: Any, advice: str = "a number") -> float:
    """Return an argument as a float. Booleans are refused."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} is {describe(value)}; pass {advice}")
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(
            f"{name} is {show(value)}, which does not fit float64; pass {advice}"
        ) from error


def check_count(name: str, value: Any, advice: str, *, least: int = 1, bits: int = 64) -> int:
    """Return an argument as a count of at least `least`."""
    count = check_int(name, value, advice, bits=bits)
    if count < least:
        raise ValueError(f"{name} is {count}; pass {advice}, {least} or more")
    return count


def check_bool(name: str, value: Any) -> None:
    """Check that an argument is a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {show(value)}; pass True or False")


def check_choice(name: str, value: Any, choices: Collection[str | None], more: str = "") -> None:
    """Check that an argument is one of the choices: strings, or None."""
    if (value is None or isinstance(value, str)) and value in choices:
        return
    advice = f"pass {', '.join(map(repr, choices))}{more}"
    if not isinstance(value, str):
        raise TypeError(f"{name} is {describe(value)}; {advice}")
    raise ValueError(f"{name} is {show(value)}; {advice}")


def check_seconds(name: str, value: Any) -> float:
    """Return an argument as a positive and finite number of seconds."""
    seconds = check_number(name, value, "a number of seconds")
    if not 0 < seconds < math.inf:
        raise ValueError(f"{name} is {show(value)}; pass a finite number of seconds above 0")
    return seconds


def id_list(name: str, values: Any) -> list[Any]:
    """Return a sequence of objects as a new list."""
    if not is_sequence(values):
        raise TypeError(f"{name} is {show(values)}; pass a sequence of one object per row")
    return as_list(values)


def is_sequence(values: Any) -> bool:
    """Return True for a sequence of items, such as a list, an array or a series."""
    if type(values) is list:
        return True  # most are
    if not (hasattr(type(values), "__len__") and hasattr(type(values), "__getitem__")):
        return False
    if type(values).__len__ is vars(ListsNames).get("__len__"):  # which is an error
        return False
    return getattr(values, "ndim", 1) != 0 and not isinstance(
        values, (str, bytes, bytearray, Mapping)
    )


def as_list(values: Any) -> list[Any]:
    """Return items as a list of Python objects, also from NumPy, Arrow and Polars."""
    if type(values) is not list:
        check_arrow(values)
        for method in ("to_pylist", "tolist", "to_list"):
            if hasattr(values, method) and not hasattr(values, "detach"):
                return list(getattr(values, method)())
        check_range(values)
        return list(iter(values))  # a list of another class may claim any length
    items: list[Any] = []
    for at in pieces_of(len(values)):
        items += values[at]
    return items


def check_arrow(values: Any) -> None:
    """Check the offsets and indices of Arrow data: PyArrow reads memory wherever they point."""
    if hasattr(values, "to_pylist") and hasattr(values, "validate"):
        try:
            values.validate(full=True)
        except (ValueError, IndexError) as error:
            raise ValueError(f"Arrow data is not valid: {error}; write it again") from error


def tally(number: int, noun: str, plural: str | None = None) -> str:
    """Format a count with its noun: ``1 row``, ``1,500 rows``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
