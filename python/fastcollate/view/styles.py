"""What tokens are shown as: four kinds, which differ with colours and without."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["prompt", "trained", "masked", "padding"]
"""What a position holds: `masked` is a token of a response that does not train."""


class Style(NamedTuple):
    """How a kind is shown.

    Attributes
    ----------
    marks : tuple of str
        What stands before and after it in text.
    rich : str
        Its style in a terminal.
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
"""That of what is left out."""
