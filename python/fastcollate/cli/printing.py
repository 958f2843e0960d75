"""Lines that fit the terminal, and JSON."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import textwrap
from typing import Any, TextIO

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


def print_json(value: Any, indent: int | None = None) -> None:
    """Print JSON, with null for numbers that it cannot write: NaN and infinite ones."""
    print(json.dumps(_finite(value), indent=indent, allow_nan=False), flush=True)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
