"""Styles of the four kinds of tokens, distinct with and without colours."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

Kind: TypeAlias = Literal["prompt", "trained", "masked", "padding"]
"""Kinds of positions; `masked` is a response token that does not train."""


class Style(NamedTuple):
    """A style of text.

    Attributes
    ----------
    marks : tuple of str
        Text before and after it.
    rich : str
        The style in a terminal.
    """

    marks: tuple[str, str]
    rich: str


KINDS: tuple[Kind, ...] = get_args(Kind)
"""In the order of legends."""

STYLES: dict[str, Style] = {
    "": Style(("", ""), ""),
    "prompt": Style(("", ""), "cyan"),
    "trained": Style(("«", "»"), "bold green"),
    "masked": Style(("‹", "›"), "italic yellow"),
    "padding": Style(("·", "·"), "dim"),
    "title": Style(("", ""), "bold"),
    "folded": Style(("", ""), "dim"),
}
"""All styles by name, which is their class in HTML."""
