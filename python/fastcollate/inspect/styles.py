"""Styles of the four kinds of tokens, distinct with and without colours."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["prompt", "trained", "masked", "padding"]
"""Kinds of positions; `masked` is a response token that does not train."""


class Style(NamedTuple):
    """The style of a kind.

    Attributes
    ----------
    marks : tuple of str
        Text before and after it.
    rich : str
        The style in a terminal.
    """

    marks: tuple[str, str]
    rich: str


STYLES: dict[Kind, Style] = {
    "prompt": Style(("", ""), "cyan"),
    "trained": Style(("«", "»"), "bold green"),
    "masked": Style(("‹", "›"), "italic yellow"),
    "padding": Style(("·", "·"), "dim"),
}
"""The kinds in the order of legends."""

TITLE = "bold"
"""The style of titles in a terminal."""

FOLDED = "dim"
"""The style of omitted tokens."""
