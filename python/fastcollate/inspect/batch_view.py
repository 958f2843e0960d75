"""Readable views of a batch."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from fastcollate.common.arguments import check_count
from fastcollate.inspect import markup
from fastcollate.inspect.lines import lines_of, plain
from fastcollate.inspect.row_view import FOLD, Names, show
from fastcollate.inspect.styles import STYLES

if TYPE_CHECKING:
    from fastcollate.ops.batch_state import BatchState


HTML_WIDTH = 100
"""Columns of a line in HTML that has values below its tokens; narrower pages scroll."""


class BatchView:
    """A readable view of a batch's rows, returned by :meth:`fastcollate.Batch.show`.

    ``print`` and ``str`` give plain text as wide as the terminal. At a prompt, and by
    ``rich.print``, it has colours if rich is installed; in a notebook it is HTML.
    """

    def __init__(
        self,
        state: BatchState,
        rows: Any = None,
        tokenizer: Any = None,
        fields: Any = (),
        fold: Any = FOLD,
        names: Names = None,
    ) -> None:
        fold = None if fold is None else check_count("fold", fold, "a number of tokens, or None")
        self._shown = show(state, rows, tokenizer, fields, fold, names)

    def text(self, width: int = 80) -> str:
        """Return plain text in lines of the given width.

        Parameters
        ----------
        width
            In columns; 20 at least.
        """
        return plain(lines_of(self._shown, width))

    def __str__(self) -> str:
        return self.text(shutil.get_terminal_size().columns)

    def __repr__(self) -> str:
        if not sys.stdout.isatty():
            return str(self)
        try:
            from rich.console import Console
        except ImportError:
            return str(self)
        console = Console()
        with console.capture() as capture:
            console.print(self)
        return capture.get().rstrip("\n")

    def _repr_html_(self) -> str:
        """Return HTML for a notebook, with its styles and without scripts."""
        return markup.page(self.rows_html())

    def rows_html(self, has_legend: bool = True) -> str:
        """Return HTML without styles, which :func:`markup.page` adds."""
        is_table = bool(self._shown.fields)
        width = HTML_WIDTH if is_table else sys.maxsize
        lines = (
            "".join(
                markup.text("span", "".join(text for text, _ in words), style)
                for style, words in groupby(line, itemgetter(1))
            )
            for line in lines_of(self._shown, width, has_legend)
        )
        content = "".join(markup.element("div", f"{line}\n") for line in lines)
        return markup.element("div", content, "text" if is_table else "tokens")

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """Yield the lines for rich."""
        from rich.text import Text

        for line in lines_of(self._shown, options.max_width):
            words = ((text, STYLES[style].rich) for text, style in line)
            yield Text.assemble(*words, no_wrap=True, overflow="ignore")


def batch_page(state: BatchState, summary: str) -> str:
    """Return HTML of a whole batch: the text of its repr, and some rows."""
    has_values = not getattr(state.data.get("input_ids"), "is_meta", False)
    known = state.options is not None and state.options.cp is None and has_values
    rows = BatchView(state).rows_html() if known else ""
    return markup.page(markup.text("div", summary, "text"), rows)
