"""The base of layouts, and the layouts whose output rows are rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar

from fastcollate._fastcollate import LayoutSpec
from fastcollate.common.arguments import check_count, suggests_names
from fastcollate.common.arrays import describe
from fastcollate.common.names import ListsNames
from fastcollate.common.text import show
from fastcollate.plan.costs import Costs
from fastcollate.plan.tables import Table


class Layout(ListsNames):
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

    def __reduce__(self) -> tuple[Callable[..., Layout], tuple[Any, ...]]:
        return partial(type(self), **self._options()), ()

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

    def _check_widths(
        self, *widths: str, rounded: Sequence[str], multiple: str = "multiple_of"
    ) -> None:
        """Check fixed widths, and that the `rounded` ones are multiples of that option."""
        for name in widths:
            if (width := getattr(self, name)) is not None:
                self._set(name, check_count(name, width, "a number of tokens", least=0))
        count = check_count(multiple, getattr(self, multiple), "a number of tokens")
        self._set(multiple, count)
        for name in rounded:
            if (width := getattr(self, name) or 0) % count:
                raise ValueError(
                    f"{name} is {width}, but {multiple} is {count}; "
                    f"pass a multiple of {count} as {name}"
                )


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class _OneBlock(Layout):
    """Base of layouts with prompts and responses in one block."""

    pad_to: int | None = None
    pad_response_to: int | None = None
    multiple_of: int = 1

    def __post_init__(self) -> None:
        self._check_widths("pad_to", "pad_response_to", rounded=["pad_to"])
        widths = (self.pad_to, None, self.pad_response_to)
        self._set("spec", LayoutSpec(self.name, *widths, self.multiple_of))


@suggests_names
@dataclass(frozen=True, repr=False, kw_only=True)
class Left(_OneBlock):
    """One left-padded block; response-aligned fields are right-aligned. SkyRL's layout.

    With ``B`` rows, ``W = max(prompt + response)`` and ``R = max(response)``::

        input_ids       | PAD PAD  p   p   r   r  |      loss_mask  |  0   r   r  |
                        |  p   p   p   r   r   r  |                 |  r   r   r  |
                         <---------- W ---------->                   <---- R --->

    Response values are aligned with ``log_probs[:, -R - 1 : -1]``.

    Parameters
    ----------
    pad_to
        Fixed ``W``, equal on all data-parallel ranks. A longer row is an error.
    pad_response_to
        Fixed ``R``, and a lower bound of ``W``.
    multiple_of
        Round ``W`` up to a multiple of this.

    Raises
    ------
    ValueError
        A width is below 0, `multiple_of` is below 1, or `pad_to` is not a multiple of it.
    TypeError
        An argument is not an integer.

    Examples
    --------
    >>> fc.Left(pad_to=4096, multiple_of=64)
    Left(pad_to=4096, multiple_of=64)
    """

    __slots__ = ()

    name: ClassVar[str] = "left"


@suggests_names
@dataclass(frozen=True, repr=False, kw_only=True)
class Right(_OneBlock):
    """One right-padded block.

    With ``B`` rows, ``W = max(prompt + response)`` and ``R = max(response)``::

        input_ids       |  p   p   r   r  PAD PAD |      loss_mask  |  r   r   0  |
                        |  p   p   p   r   r   r  |                 |  r   r   r  |
                         <---------- W ---------->                   <---- R --->

    Parameters
    ----------
    pad_to, pad_response_to, multiple_of
        As in :class:`Left`.

    Raises
    ------
    ValueError, TypeError
        As in :class:`Left`.
    """

    __slots__ = ()

    name: ClassVar[str] = "right"


@suggests_names
@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class TwoSegment(Layout):
    """Left-padded prompts, then right-padded responses. verl's layout.

    With ``B`` rows, ``P = max(prompt)``, ``R = max(response)`` and ``W = P + R``::

        input_ids       | PAD  p   p   r   r  PAD |      loss_mask  |  r   r   0  |
                        |  p   p   p   r   r   r  |                 |  r   r   r  |
                         <--- P --->   <--- R --->                   <---- R --->

    Parameters
    ----------
    pad_prompt_to, pad_response_to
        Fixed ``P`` and ``R``, equal on all data-parallel ranks. A longer prompt or response is an
        error.
    multiple_of
        Round ``P`` and ``R`` each up to a multiple of this.

    Raises
    ------
    ValueError
        A width is below 0, `multiple_of` is below 1, or a fixed width is not a multiple of it.
    TypeError
        An argument is not an integer.
    """

    name: ClassVar[str] = "two_segment"

    pad_prompt_to: int | None = None
    pad_response_to: int | None = None
    multiple_of: int = 1

    def __post_init__(self) -> None:
        widths = "pad_prompt_to", "pad_response_to"
        self._check_widths(*widths, rounded=widths)
        fixed = (None, self.pad_prompt_to, self.pad_response_to)
        self._set("spec", LayoutSpec(self.name, *fixed, self.multiple_of))


@suggests_names
@dataclass(frozen=True, slots=True, repr=False)
class Jagged(Layout):
    """Rows end to end without padding, for variable-length attention.

    For two rows::

        input_ids       |  p   p   r   r  |  p   p   p   r   r   r  |
        loss_mask       |  r   r  |  r   r   r  |

    ``input_ids``, int64 (tokens,), come with the rows' ``offsets``, int64 (B + 1,), the same
    offsets as ``cu_seqlens``, int32, and ``max_seqlen``, an int. Per-token fields are
    (tokens, ...). Response-aligned fields are (response tokens, ...), with ``response_offsets``,
    int64 (B + 1,). ``loss_mask`` is the only mask.
    """

    name: ClassVar[str] = "jagged"

    def __post_init__(self) -> None:
        self._set("spec", LayoutSpec(self.name, None, None, None, 1))


def _differ(value: Any, default: Any) -> bool:
    """Return whether an option differs from its default."""
    try:
        return bool(value != default)
    except ValueError:  # of an array, which no option is
        return True


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

    def text(value: Any) -> str:
        if isinstance(value, Table):
            return f"<{value!r}>"
        return show(value) if isinstance(value, tuple) else repr(value)

    return f"{name}({', '.join(f'{name}={text(value)}' for name, value in options.items())})"
