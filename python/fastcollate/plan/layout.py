"""The base of layouts: their options as values, and widths of rows."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

from fastcollate._fastcollate import LayoutSpec
from fastcollate.arguments import checked_count
from fastcollate.arrays import describe
from fastcollate.plan.costs import Costs
from fastcollate.plan.tables import Table


class Layout:
    """Base class of layouts: small frozen values, validated on construction.

    Two layouts are equal if their classes and all options are.
    """

    __slots__ = ("spec",)

    name: ClassVar[str]
    """The layout's name as a string argument."""

    spec: LayoutSpec
    """The compiled form, built once."""

    def to_dict(self) -> dict[str, Any]:
        """Return the layout as a JSON-compatible dict.

        Returns
        -------
        dict
            ``"layout"``, the name, and the options that differ from their defaults.

        Raises
        ------
        TypeError
            An option is a function: pickle the layout instead.
        """
        return {"layout": self.name} | {
            name: _plain(name, value) for name, value in self._options().items()
        }

    def row_width(
        self, widths: tuple[int, int, int], bin_width: int | None, has_only_totals: bool
    ) -> int | None:
        """Return the width of an output row in positions; None if rows lie end to end.

        Parameters
        ----------
        widths
            Token counts of the longest prompt, response and row.
        bin_width
            Width of the widest bin, if there are bins.
        has_only_totals
            True if only total row lengths are known.
        """
        width = self._rounded(widths[2] if bin_width is None else bin_width)
        return max(width, getattr(self, "pad_to", None) or 0)

    def _rounded(self, width: int) -> int:
        multiple = getattr(self, "multiple_of", None) or 1
        return -(-width // multiple) * multiple

    def __reduce__(self) -> tuple[Callable[..., Layout], tuple[Any, ...]]:
        return _restored, (type(self), self._options())

    def __repr__(self) -> str:
        return call_text(type(self).__name__, self._options())

    def _options(self) -> dict[str, Any]:
        """Return the options that differ from their defaults."""
        return {
            option.name: value
            for option in fields(self)  # type: ignore[arg-type]
            if (value := getattr(self, option.name)) is not option.default
            and (option.default is None or _differ(value, option.default))
        }

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_widths(self, *widths: str, rounded: Sequence[str]) -> None:
        """Check fixed widths, and that the `rounded` ones are multiples of ``multiple_of``."""
        for name in widths:
            if (width := getattr(self, name)) is not None:
                self._set(name, checked_count(name, width, "a number of tokens", least=0))
        name = "multiple_of"
        multiple = checked_count(name, getattr(self, name), "a number of tokens")
        self._set(name, multiple)
        for name in rounded:
            if (width := getattr(self, name) or 0) % multiple:
                raise ValueError(
                    f"{name} is {width}, but multiple_of is {multiple}; "
                    f"pass a multiple of {multiple} as {name}"
                )


def _differ(value: Any, default: Any) -> bool:
    """Return whether an option differs from its default."""
    try:
        return bool(value != default)
    except ValueError:  # of an array, which no option is
        return True


def _restored(kind: type[Layout], options: dict[str, Any]) -> Layout:
    """Return the layout restored from a pickle."""
    return kind(**options)


def _plain(name: str, value: Any) -> Any:
    """Return an option as a JSON-compatible value."""
    if isinstance(value, Costs):
        return value.to_dict()
    if isinstance(value, tuple):
        return [list(item) if isinstance(item, tuple) else item for item in value]
    if callable(value) or isinstance(value, Table):
        kind = "a plan" if isinstance(value, Table) else "a function"
        raise TypeError(
            f"{name} is {kind}, {describe(value)}, which JSON cannot hold; pickle the layout "
            f"or the plan instead, or pass {name} by name"
        )
    return value


def call_text(name: str, options: Mapping[str, Any]) -> str:
    """Return the source text of a call with these options."""

    def shown(value: Any) -> str:
        if isinstance(value, Table):
            return f"<{value!r}>"
        return reprlib.repr(value) if isinstance(value, tuple) else repr(value)

    return f"{name}({', '.join(f'{name}={shown(value)}' for name, value in options.items())})"
