"""Lines that fit the terminal."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from typing import TextIO

from fastcollate.common.text import printable


def print_text(text: str, stream: TextIO | None = None) -> None:
    """Print lines, wrapped between words at the width of the terminal, or at ``COLUMNS``.

    Without either, as in a pipe, lines stay whole. A terminal wraps longer words by itself, so that
    paths can be copied.
    """
    stream = stream or sys.stdout
    is_terminal, columns = stream.isatty(), os.environ.get("COLUMNS", "")
    if is_terminal or (columns.isdecimal() and int(columns) > 0):
        lines = (_wrapped(line, is_terminal) for line in text.split("\n"))
        text = "\n".join(lines)
    print(printable(text), file=stream, flush=True)


def _wrapped(line: str, keeps_words: bool) -> str:
    """Return a line as several, those after the first indented more."""
    width = shutil.get_terminal_size().columns
    indent = " " * (len(line) - len(line.lstrip(" ")) + 2)
    return textwrap.fill(
        line,
        width,
        subsequent_indent=indent if len(indent) < width else "",
        break_long_words=not keeps_words,
        break_on_hyphens=False,
        replace_whitespace=False,
        expand_tabs=False,
    )
